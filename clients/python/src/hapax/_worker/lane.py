"""The driver of one queue of a worker: receives, starts handlers, extends leases, settles.

Leases outlive connections: a message that is finished while the broker cannot be reached is settled
when it is back.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from .. import _wire as wire
from .._async.queue import AsyncQueue
from .._errors import Error, Foreign
from .._failure import Fail
from .._keys import new_key
from .._log import logger
from .._model import Delivery, Settled, to_json
from .._retry import Retry
from .._text import describe, text_of
from .._time import LONGEST_SECONDS, Duration
from .context import BlockingContext, Context
from .leases import Extension, Hold, Leases
from .settler import Settle, Settler
from .threads import Threads

#: How long a receive waits at the broker.
WAIT_SECONDS = 20.0
#: Beyond the wait of a receive.
SLACK_SECONDS = 10.0
#: How long to wait for the answers to the last settles.
LAST_ANSWERS_SECONDS = 5.0
#: The most messages of one receive.
RECEIVE_MAX = 1000

EventKind = Literal["done", "failed", "parked", "released", "lost", "refused", "away", "back"]


@dataclass(frozen=True)
class WorkerEvent:
    """Something that a worker reports: a settle that the broker has answered, a lease that was
    lost, a broker that cannot be reached, and one that can again."""

    kind: EventKind
    queue: str
    message: Delivery | None = None
    error: str | None = None


@dataclass(frozen=True)
class Limits:
    concurrency: int
    prefetch: int
    lease: float | None
    drain: float


@dataclass(frozen=True)
class LaneHealth:
    """The state of one queue of a worker."""

    queue: str
    #: Whether the last request reached the broker.
    is_connected: bool
    #: Handlers that run, and messages that wait for one.
    running: int
    waiting: int
    done: int
    failed: int
    lost: int
    #: Seconds since the broker last answered.
    last_contact: float | None


class End(Settle):
    """What becomes of a message: the last settle of its lease."""

    __slots__ = ("error", "hold", "kind", "lane")

    def __init__(
        self, lane: Lane, hold: Hold, kind: EventKind, item: bytes, error: str | None = None
    ) -> None:
        self.lane = lane
        self.hold = hold
        self.kind = kind
        self.item = item
        self.error = error

    def answer(self, answer: Settled | Error) -> None:
        self.lane._ended(self, answer)


class Lane:
    def __init__(
        self,
        queue: AsyncQueue,
        handler: Callable[[Delivery, Any], Any],
        is_async: bool,
        name: str,
        limits: Limits,
        observe: Callable[[WorkerEvent], None] | None,
    ) -> None:
        self._queue = queue
        self._handler = handler
        self._name = name
        self._limits = limits
        self._observe = observe
        self._leases = Leases()
        self._waiting: deque[Hold] = deque()
        self._running: set[Hold] = set()
        self._threads = None if is_async else Threads(limits.concurrency, f"hapax-{queue.name}")
        self._ends = Settler(queue, self._seen)
        # Apart, so that a large result on its way does not keep a lease from being extended.
        self._extends = Settler(queue, self._seen)
        self._loop = asyncio.get_running_loop()
        self._room = asyncio.Event()
        self._clock = asyncio.Event()
        self._clock_at = float("inf")
        self._no_handlers = asyncio.Event()
        self._no_handlers.set()
        self._receive_id: str | None = None
        self._is_away = False
        self._last_contact: float | None = None
        self._counts = {"done": 0, "failed": 0, "lost": 0}
        self.stopping = asyncio.Event()
        self.thread_stopping = threading.Event()

    def health(self) -> LaneHealth:
        last = self._last_contact
        return LaneHealth(
            queue=self._queue.name,
            is_connected=last is not None and not self._is_away,
            running=len(self._running),
            waiting=len(self._waiting),
            done=self._counts["done"],
            failed=self._counts["failed"],
            lost=self._counts["lost"],
            last_contact=None if last is None else time.monotonic() - last,
        )

    async def run(self, stop: asyncio.Event, give_up: asyncio.Event) -> None:
        """Works until ``stop``, then drains: handlers may continue for the drain timeout, or until
        ``give_up``. Raises what ends a worker, such as a queue that does not exist."""
        receiver = asyncio.ensure_future(self._receive())
        helpers = [
            asyncio.ensure_future(it)
            for it in (self._ends.run(), self._extends.run(), self._watch())
        ]
        stopped = asyncio.ensure_future(stop.wait())
        try:
            await asyncio.wait({receiver, stopped, *helpers}, return_when=asyncio.FIRST_COMPLETED)
            failed = [it for it in (receiver, *helpers) if it.done()]
            await self._drain(receiver, give_up)
            for task in failed:
                task.result()
        finally:
            stopped.cancel()
            for task in helpers:
                task.cancel()
            await asyncio.gather(*helpers, stopped, return_exceptions=True)
            if self._threads is not None:
                self._threads.close()

    # ---- Receiving

    async def _receive(self) -> None:
        most = self._limits.concurrency + self._limits.prefetch
        retry = Retry(None)
        while True:
            # What is only being settled takes no handler: the next messages are fetched meanwhile.
            unfinished = len(self._running) + len(self._waiting)
            room = min(most - unfinished, 2 * most - len(self._leases))
            # Small receives only where handlers have nothing to do.
            if room <= 0 or (self._waiting and room * 4 < most):
                self._room.clear()
                await self._room.wait()
                continue
            is_old = self._receive_id is not None
            if self._receive_id is None:
                self._receive_id = new_key()
            # Without a wait where it is open whether the broker is there: it is known at once then.
            is_there = self._last_contact is not None and not self._is_away
            wait = WAIT_SECONDS if is_there else 0.0
            try:
                messages = await self._receive_once(min(room, RECEIVE_MAX), wait)
            except Error as error:
                self._seen(error)
                is_passing = isinstance(error, Foreign) and self._last_contact is not None
                if not (error.retryable or is_passing):
                    raise
                # Under the same id: if only the answer was lost, it brings the same messages.
                await asyncio.sleep(retry.next_pause(error.retry_after))
                continue
            self._receive_id = None
            retry.reset()
            self._seen(None)
            self._take(messages, is_old)

    async def _receive_once(self, most: int, wait: float) -> list[Delivery]:
        request: dict[str, Any] = {
            "max": most,
            "wait_ms": int(wait * 1000),
            "worker": self._name,
            "receive_id": self._receive_id,
        }
        if self._limits.lease is not None:
            request["lease_ms"] = int(self._limits.lease * 1000)
        return await self._queue.client._once(
            "POST",
            f"{self._queue._path}/receive",
            wire.read_deliveries,
            content=to_json(request),
            headers={"Content-Type": "application/json"},
            seconds=wait + SLACK_SECONDS,
            waits=True,
        )

    def _take(self, messages: list[Delivery], is_old: bool) -> None:
        now = time.monotonic()
        taken = [self._leases.take(delivery, now, is_old=is_old) for delivery in messages]
        self._waiting.extend(taken)
        if taken:
            self._wake_clock(min([hold.due for hold in taken]))
        self._start()

    def _start(self) -> None:
        """Starts handlers for waiting messages, as long as there are free ones."""
        waiting, running, most = self._waiting, self._running, self._limits.concurrency
        if not waiting or self.stopping.is_set():
            return
        now = time.monotonic()
        while waiting and len(running) < most:
            hold = waiting.popleft()
            if hold.until <= now:
                self._lose(hold)  # It waited for too long, while the event loop was blocked.
                continue
            running.add(hold)
            hold.task = self._loop.create_task(self._attend(hold))
        if running:
            self._no_handlers.clear()

    # ---- Handlers

    async def _attend(self, hold: Hold) -> None:
        """Runs the handler of a message and settles what becomes of it, whatever it raises."""
        hold.is_begun = True
        interrupt: BaseException | None = None
        try:
            if hold.is_cancelled or hold.is_lost:
                raise asyncio.CancelledError
            if self._threads is None:
                result = await self._handler(hold.delivery, Context(self, hold))
            else:
                result = await self._block(self._threads, hold)
            if result is None:
                end = End(self, hold, "done", wire.done_without_result(hold.delivery.lease))
            else:
                end = self._returned(hold, result)
        except Fail as failure:
            end = self._failed(hold, failure)
        except asyncio.CancelledError:
            end = self._raised(hold, self._why_cancelled(hold))
        except GeneratorExit:
            raise  # The event loop is gone, and nothing can be settled.
        except BaseException as error:
            end = self._raised(hold, describe(error))
            if isinstance(error, KeyboardInterrupt):
                interrupt = error
            elif not hold.is_lost:
                logger.warning(
                    "attempt %d of %s failed unexpectedly",
                    hold.delivery.attempt,
                    hold.delivery.id,
                    exc_info=error,
                )
        finally:
            self._running.discard(hold)
        self._end(end)
        if self._waiting:
            self._start()
        self._room.set()
        if not self._running:
            self._no_handlers.set()
        if interrupt is not None:
            raise interrupt

    def _returned(self, hold: Hold, result: Any) -> End:
        lease = hold.delivery.lease
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("the handler returned a coroutine: make it an async def")
        try:
            return End(
                self, hold, "done", wire.write_item(wire.done_item(lease, wire.as_done(result)))
            )
        except Exception as error:
            # The handler has done its work, and would return the same again.
            why = f"the result cannot be stored: {describe(error)}"
            logger.warning("the result of %s cannot be stored", hold.delivery.id, exc_info=error)
            item = wire.fail_item(lease, why, dead=True, in_doubt=True)
            return End(self, hold, "refused", wire.write_item(item), why)

    def _failed(self, hold: Hold, failure: Fail) -> End:
        """The handler says how its attempt failed."""
        why = text_of(failure)
        item = wire.fail_item(
            hold.delivery.lease,
            why,
            _retry_in(failure.retry_in),
            bool(failure.dead),
            failure.in_doubt,
        )
        logger.info("attempt %d of %s failed", hold.delivery.attempt, hold.delivery.id)
        return End(
            self, hold, "parked" if failure.in_doubt else "failed", wire.write_item(item), why
        )

    def _raised(self, hold: Hold, why: str) -> End:
        """It may have failed at any place, so a begun effect is in doubt."""
        item = wire.fail_item(hold.delivery.lease, why, in_doubt=True)
        return End(self, hold, "parked", wire.write_item(item), why)

    def _why_cancelled(self, hold: Hold) -> str:
        if hold.is_cancelled:
            return "the worker stopped before it was finished"
        return "the handler was cancelled"

    async def _block(self, threads: Threads, hold: Hold) -> Any:
        blocking = BlockingContext(Context(self, hold), self._loop)
        hold.thread_lost = blocking.lost
        try:
            return await threads.run(lambda: self._handler(hold.delivery, blocking))
        finally:
            # A handler that goes on after the drain timeout finds that it has lost the message.
            blocking.lost.set()

    # ---- Settling

    def _end(self, end: End) -> None:
        """Sends the last settle of a lease. The lease is extended until it is answered."""
        # A late success is still reported. A late failure is not: another worker has the message,
        # or it is in doubt and must stay so.
        hold = end.hold
        if end.kind != "done" and (hold.is_lost or hold.until <= time.monotonic()):
            self._counts["lost"] += 1
            self._tell("lost", hold)
            self._forget(hold)
            return
        self._ends.settle(end)

    def _ended(self, end: End, answer: Settled | Error) -> None:
        hold = end.hold
        if isinstance(answer, Error) and end.kind == "done":
            # The result or the follow-ups cannot be stored, now or later: another attempt would not
            # help. Only the broker knows for sure whether an effect has begun.
            logger.warning("the result of %s was refused: %s", hold.delivery.id, answer)
            why = f"the result was refused: {answer}"
            refused = wire.fail_item(hold.delivery.lease, why, dead=True, in_doubt=True)
            self._end(End(self, hold, "refused", wire.write_item(refused), why))
            return
        if isinstance(answer, Error):
            logger.warning("a settle of %s was refused: %s", hold.delivery.id, answer)
            self._tell("refused", hold, str(answer))
        elif answer.is_lost:
            self._counts["lost"] += 1
            self._tell("lost", hold)
        else:
            if end.kind != "released":
                self._counts["done" if end.kind == "done" else "failed"] += 1
            self._tell(end.kind, hold, end.error)
        self._forget(hold)

    def _forget(self, hold: Hold) -> None:
        self._leases.drop(hold)
        self._room.set()

    async def ask(self, hold: Hold, item: dict[str, Any]) -> Settled:
        """A settle that the handler asks for, which does not end the lease."""
        if hold.is_lost:
            return Settled("lease_lost")
        settled = await self._ends.answer(wire.write_item(item))
        if settled.is_lost:
            self._lose(hold)
        return settled

    async def extend(self, hold: Hold, wanted: float) -> Settled:
        """An extension that the handler asks for."""
        if hold.is_lost:
            return Settled("lease_lost")
        now = time.monotonic()
        before = hold.wanted
        hold.wanted = max(before, now + max(wanted, hold.delivery.lease_seconds))
        try:
            item = wire.extend_item(hold.delivery.lease, hold.wanted - now)
            settled = await self._extends.answer(wire.write_item(item))
        except Error:
            hold.wanted = before
            raise
        if settled.is_lost:
            self._lose(hold)
        else:
            hold.until = max(hold.until, hold.wanted)
        return settled

    # ---- Leases

    async def _watch(self) -> None:
        """Extends leases in time, and gives up those whose time is over."""
        while True:
            self._clock.clear()
            due = self._leases.next_due()
            self._clock_at = float("inf") if due is None else due
            wait = None if due is None else max(0.0, due - time.monotonic())
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._clock.wait(), wait)
            extensions, lost = self._leases.due(time.monotonic())
            for extension in extensions:
                self._extend(extension)
            for hold in lost:
                self._lose(hold)

    def _wake_clock(self, at: float) -> None:
        if at < self._clock_at:
            self._clock.set()

    def _extend(self, extension: Extension) -> None:
        hold, asked = extension.hold, time.monotonic()

        def answered(answer: Settled | Error) -> None:
            if isinstance(answer, Error):
                self._leases.not_extended(hold)
            elif answer.is_lost:
                self._lose(hold)
            else:
                self._leases.extended(hold, asked + extension.length)

        item = wire.extend_item(hold.delivery.lease, extension.length)
        self._extends.settle(Settle(wire.write_item(item), answered))

    def _lose(self, hold: Hold) -> None:
        if not hold.lose():
            return
        if hold in self._running:
            logger.warning("the lease of %s was lost", hold.delivery.id)
            if self._threads is None:
                hold.cancel()
        elif hold.task is None:
            # No handler has begun with it, and none will.
            with contextlib.suppress(ValueError):
                self._waiting.remove(hold)
            self._forget(hold)

    # ---- Stopping

    async def _drain(self, receiver: asyncio.Future[None], give_up: asyncio.Event) -> None:
        """Takes no more messages, gives back those that no handler has begun with, and waits for
        the handlers."""
        until = time.monotonic() + self._limits.drain
        self.stopping.set()
        self.thread_stopping.set()
        receiver.cancel()
        await asyncio.wait({receiver})
        self._give_back()
        await self._give_back_unread()
        await _any_of(self._no_handlers.wait(), give_up.wait(), timeout=until - time.monotonic())
        left = [hold for hold in self._running if hold.task is not None]
        if left:
            logger.warning("%d handlers were stopped before they had finished", len(left))
            for hold in left:
                hold.cancel()
            await asyncio.wait([it.task for it in left if it.task is not None], timeout=1.0)
        # Results on their way have the rest of the time, and some more if there is little.
        last = time.monotonic() + LAST_ANSWERS_SECONDS
        last = last if give_up.is_set() else max(last, until)
        await _any_of(self._ends.idle.wait(), timeout=last - time.monotonic())

    def _give_back(self) -> None:
        while self._waiting:
            hold = self._waiting.popleft()
            item = {"lease": hold.delivery.lease, "do": "release"}
            self._end(End(self, hold, "released", wire.write_item(item)))

    async def _give_back_unread(self) -> None:
        """The receive that was under way may have been answered. The same receive id brings the
        same messages, or new ones: both are given back."""
        if self._receive_id is None or self._is_away:
            return
        with contextlib.suppress(Error):
            now = time.monotonic()
            for delivery in await self._receive_once(1, 0.0):
                self._waiting.append(self._leases.take(delivery, now))
            self._give_back()

    # ---- Reporting

    def _seen(self, error: Error | None) -> None:
        """Whether the broker was reached."""
        is_away = error is not None and (error.retryable or isinstance(error, Foreign))
        if not is_away:
            self._last_contact = time.monotonic()
        if is_away == self._is_away:
            return
        self._is_away = is_away
        if is_away:
            logger.warning("queue %s: %s; retrying", self._queue.name, error)
            self._tell("away", None, str(error))
        else:
            logger.info("queue %s: the broker can be reached again", self._queue.name)
            self._tell("back", None)

    def _tell(self, kind: EventKind, hold: Hold | None, error: str | None = None) -> None:
        if self._observe is None:
            return
        message = None if hold is None else hold.delivery
        try:
            self._observe(WorkerEvent(kind, self._queue.name, message, error))
        except Exception:
            logger.exception("the observer of a worker failed")


def _retry_in(asked: Duration | None) -> float | None:
    """When a handler wants its message again. A time that is over means now, and what is not a
    time leaves it to the queue's backoff: the handler's error counts, not this."""
    if asked is None:
        return None
    try:
        value = asked.total_seconds() if isinstance(asked, timedelta) else float(asked)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if math.isnan(value):
        logger.warning("retry_in is not a time to wait: the queue's backoff counts")
        return None
    return min(max(value, 0.0), LONGEST_SECONDS)


async def _any_of(*waits: Awaitable[object], timeout: float) -> None:
    """Waits for the first of them, at most for this long."""
    timeout = max(timeout, 0.0)
    tasks = [asyncio.ensure_future(it) for it in waits]
    try:
        await asyncio.wait(tasks, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
