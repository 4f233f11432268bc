"""Settles on their way to the broker: many in one request, sent again until they are answered."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from .._async.queue import AsyncQueue
from .._errors import Error, Foreign, Invalid, TooLarge
from .._log import logger
from .._model import Settled
from .._retry import Retry

#: The broker's limits for one request, the latter less room for its JSON. A single settle may be
#: larger: then the broker judges it.
ITEMS_MAX = 1000
BYTES_MAX = 8 * 1024 * 1024
#: A request without an answer for this long is made again.
TRY_SECONDS = 10.0
#: The longest pause between two tries: leases may be short.
PAUSE_SECONDS_MAX = 1.0
#: A settle with a retryable refusal is sent again after at least this long.
AGAIN_SECONDS = 0.5


class Settle:
    """A settle, and who gets its answer."""

    __slots__ = ("answered", "item")

    def __init__(
        self, item: bytes, answered: Callable[[Settled | Error], None] | None = None
    ) -> None:
        #: As JSON: written once, so that its size is known, and so that what cannot be written
        #: fails where it is made, and not later with its neighbours.
        self.item = item
        self.answered = answered

    def answer(self, answer: Settled | Error) -> None:
        """Called with the answer, or with the broker's refusal."""
        if self.answered is not None:
            self.answered(answer)


class Settler:
    """Sends settles, one request at a time, each with everything that has gathered meanwhile.

    The same lease settled the same way again gets the same answer, so what was not answered is
    simply sent again.
    """

    def __init__(self, queue: AsyncQueue, seen: Callable[[Error | None], None]) -> None:
        self._queue = queue
        #: Called with the error of every request that did not reach the broker, and with ``None``
        #: after one that did.
        self._seen = seen
        self._pending: deque[Settle] = deque()
        #: So many of the pending ones were refused together, and are sent one by one.
        self._singly = 0
        self._unanswered = 0
        self._wake = asyncio.Event()
        self.idle = asyncio.Event()
        self.idle.set()

    def settle(self, settle: Settle) -> None:
        self._unanswered += 1
        if self._unanswered == 1:
            self.idle.clear()
        self._put(settle)

    async def answer(self, item: bytes) -> Settled:
        """Settles, and returns the answer or raises the refusal."""
        future: asyncio.Future[Settled] = asyncio.get_running_loop().create_future()

        def answered(answer: Settled | Error) -> None:
            if future.done():
                return  # Nobody waits for it any more.
            if isinstance(answer, Error):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.settle(Settle(item, answered))
        return await future

    async def run(self) -> None:
        retry = Retry(None, longest=PAUSE_SECONDS_MAX)
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._pending:
                batch = self._take()
                try:
                    answers = await self._queue._settle([it.item for it in batch], TRY_SECONDS)
                except Error as error:
                    self._seen(error)
                    if self._refused(batch, error):
                        await asyncio.sleep(retry.next_pause(error.retry_after))
                    continue
                retry.reset()
                self._seen(None)
                for settle, answer in zip(batch, answers, strict=True):
                    self._deliver(settle, answer)

    def _put(self, settle: Settle) -> None:
        self._pending.append(settle)
        if len(self._pending) == 1:
            self._wake.set()

    def _take(self) -> list[Settle]:
        most = ITEMS_MAX
        if self._singly > 0:
            self._singly -= 1
            most = 1
        pending = self._pending
        batch = [pending.popleft()]
        size = len(batch[0].item)
        while pending and len(batch) < most:
            size += len(pending[0].item)
            if size > BYTES_MAX:
                break
            batch.append(pending.popleft())
        return batch

    def _refused(self, batch: list[Settle], error: Error) -> bool:
        """A whole request was refused, or did not reach the broker. Returns whether to pause."""
        if error.retryable or isinstance(error, Foreign):
            self._pending.extendleft(reversed(batch))
            return True
        if len(batch) > 1 and isinstance(error, (Invalid, TooLarge)):
            # It is about one of them, or about their size: the others must not suffer for it.
            self._pending.extendleft(reversed(batch))
            self._singly = len(batch)
            return False
        for settle in batch:
            self._answer(settle, error)
        return False

    def _deliver(self, settle: Settle, answer: Settled | Error) -> None:
        if isinstance(answer, Error) and answer.retryable:
            pause = max(AGAIN_SECONDS, answer.retry_after or 0.0)
            asyncio.get_running_loop().call_later(pause, self._put, settle)
        else:
            self._answer(settle, answer)

    def _answer(self, settle: Settle, answer: Settled | Error) -> None:
        self._unanswered -= 1
        try:
            settle.answer(answer)
        except Exception:
            logger.exception("an answer to a settle could not be handled")
        if self._unanswered == 0:
            self.idle.set()
