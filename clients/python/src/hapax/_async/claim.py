"""Claims: keys held by callers that do the work themselves."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from .. import _wire as wire
from .._errors import Error, InFlight, LeaseLost
from .._http import TRY_SECONDS
from .._keys import derive
from .._log import logger
from .._model import Answer, Blob, Done, Emit, Result, Settled, read_points
from .._text import describe
from .._time import Duration, seconds
from ._io import Background, Signal

if TYPE_CHECKING:
    from .queue import AsyncQueue

#: A claim is extended after this part of its lease.
EXTEND_AT = 0.4
EXTEND_SECONDS_MIN = 0.02
#: The longest wait of one call; longer ones take several.
WAIT_SECONDS_MAX = 60.0


class AsyncClaim:
    """The outcome of a claim. If ``is_fresh``, the caller holds the key.

    As a context manager it settles what was left open: a block that raises leaves the operation in
    doubt (a queue with ``on_lost = "park"`` parks it if it had begun, otherwise the key is freed),
    and one that only ends frees the key.

    A claim that nobody refers to any more is not extended: its key is freed when its lease ends.
    """

    def __init__(
        self,
        queue: AsyncQueue,
        key: str,
        taken: _Taken,
        lease: float,
        *,
        is_old: bool,
    ) -> None:
        self.queue = queue
        self.key = key
        self.answer = taken.answer
        #: What is known about a key that is not fresh.
        self.known = taken.known
        #: Grows with every claim; of two claims of one key the larger is the newer.
        self.fence = taken.fence
        self.tenant = taken.tenant
        #: What an earlier claim of the key saved before it was released or lost.
        self.recovery_points = taken.recovery_points
        #: How many seconds the key stays claimed after its last extension.
        self.lease_seconds = taken.lease_seconds or lease
        self.is_settled = False
        self._held: _Held | None = None
        if taken.lease is not None:
            self._held = _Held(queue, taken.lease, self.lease_seconds, is_old)

    @classmethod
    async def _take(
        cls,
        queue: AsyncQueue,
        head: Mapping[str, str | bytes],
        body: bytes,
        key: str,
        wait: float,
        timeout: float,
        lease: float,
    ) -> AsyncClaim:
        wait_until, tries = time.monotonic() + wait, 0

        async def call(left: float) -> _Taken:
            nonlocal tries
            tries += 1
            waits = min(max(0.0, wait_until - time.monotonic()), WAIT_SECONDS_MAX)
            headers = {**head, "Prefer": f"wait={math.ceil(waits)}"} if waits else head
            try:
                return await queue.client._once(
                    "POST",
                    f"{queue._path}/claims",
                    _Taken.read,
                    content=body,
                    headers=headers,
                    seconds=min(left, waits + TRY_SECONDS),
                    waits=waits > 0,
                )
            except InFlight:
                if waits > 0 and time.monotonic() < wait_until:
                    raise
                return _Taken("in_flight")

        try:
            taken = await queue.client._until(wait + timeout, call)
        except InFlight:
            taken = _Taken("in_flight")
        # The lease of an earlier try, whose answer was lost, may be old.
        return cls(queue, key, taken, lease, is_old=tries > 1)

    @property
    def is_fresh(self) -> bool:
        return self._held is not None

    @property
    def result(self) -> Blob | None:
        """What the key was completed with before."""
        return None if self.known is None else self.known.result

    def derive(self, name: str) -> str:
        """The key for a call to another service: the same for every claim of this key."""
        return derive(self.queue.name, "", self.key, 0, name)

    async def complete(self, result: Result | Done = None, *, emit: Sequence[Emit] = ()) -> Settled:
        """Finishes the claim with a result that every later claim of the key gets."""
        done = wire.as_done(result)
        if emit:
            done = Done(done.result, (*done.emit, *emit))
        return await self._end(wire.done_item(self._lease(), done))

    async def release(self) -> Settled:
        """Frees the key: the next claim is fresh."""
        return await self._end({"lease": self._lease(), "do": "release"})

    async def park(self, error: str) -> Settled:
        """The outcome is unknown: a queue that parks keeps a begun key until an operator resolves
        it, any other frees it."""
        return await self._end(wire.fail_item(self._lease(), error, in_doubt=True))

    async def begin(self) -> None:
        """Marks that an effect that cannot be repeated starts now. If the lease is lost after this,
        a queue with ``on_lost = "park"`` parks the key until an operator resolves it."""
        await self._keep({"lease": self._lease(), "do": "begin"})

    async def save(self, name: str, data: str | bytes) -> None:
        """Stores a recovery point, for the next claim of the key."""
        await self._keep(wire.save_item(self._lease(), name, data))

    async def extend(self, length: Duration | None = None) -> None:
        """Extends the lease to at least this long from now. It is extended by itself; this is for
        a caller that is about to block for longer."""
        held = self._hold()
        wanted = max(self.lease_seconds, 0.0 if length is None else seconds(length))
        before, now = held.wanted, time.monotonic()
        # Set before the call: an automatic extension that is sent meanwhile must not shorten it.
        held.wanted = max(before, now + wanted)
        try:
            await self._keep(wire.extend_item(held.lease, held.wanted - now))
        except Error:
            held.wanted = before
            raise

    @property
    def is_lost(self) -> bool:
        """Whether another caller may have the key now."""
        return self._hold().lost.is_set()

    async def lost(self, timeout: Duration | None = None) -> bool:
        """Waits until the lease is lost: work under it should stop then. Returns whether it is."""
        return await self._hold().lost.wait(None if timeout is None else seconds(timeout))

    def drop(self) -> None:
        """Lets go without a settle: the lease is not extended any more."""
        if self._held is not None:
            self._held.stop()

    def __del__(self) -> None:
        held = getattr(self, "_held", None)
        if held is not None:
            held.stop()

    async def __aenter__(self) -> AsyncClaim:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._held is None or self.is_settled:
            return
        try:
            if error is None:
                await self.release()
            else:
                await self.park(describe(error))
        except Error as refused:
            logger.warning("a claim was not settled, and its lease will end: %s", refused)
            self.drop()

    def _hold(self) -> _Held:
        if self._held is None:
            raise LeaseLost(f"the key was not claimed: it is {self.answer}")
        return self._held

    def _lease(self) -> str:
        return self._hold().lease

    async def _keep(self, item: Mapping[str, Any]) -> None:
        settled = await self.queue._settle_one(item)
        if settled.is_lost:
            self._hold().lost.set()
            raise LeaseLost("another caller has the key now, or it is finished")

    async def _end(self, item: Mapping[str, Any]) -> Settled:
        """The last settle. The lease is extended until it is answered."""
        settled = await self.queue._settle_one(item)
        self.is_settled = True
        self._hold().stop()
        return settled


@dataclass(frozen=True)
class _Taken:
    """The broker's answer to a claim."""

    answer: Literal["fresh", "done", "in_flight", "dead", "parked"]
    lease: str | None = None
    lease_seconds: float | None = None
    fence: int = 0
    tenant: str = ""
    recovery_points: Mapping[str, bytes] = field(default_factory=dict)
    known: Answer | None = None

    @classmethod
    def read(cls, fields: Any) -> _Taken:
        answer = fields["answer"]
        if answer in ("done", "dead", "parked"):
            known = wire.read_answer(fields, "")
            assert isinstance(known, Answer), "an error has another answer"
            return cls(answer, known=known)
        if answer != "fresh":
            raise ValueError(f"{answer} is not an answer to a claim")
        return cls(
            answer,
            lease=fields["lease"],
            lease_seconds=fields["lease_ms"] / 1000 if "lease_ms" in fields else None,
            fence=int(fields["fence"]),
            tenant=fields.get("tenant") or "",
            recovery_points=read_points(fields.get("recovery_points")),
        )


class _Held:
    """A lease that is extended in the background, by this process's clock."""

    def __init__(self, queue: AsyncQueue, lease: str, length: float, is_old: bool) -> None:
        self.lease = lease
        self.lost = Signal()
        #: The caller wants the key until then; an automatic extension never shortens it.
        self.wanted = 0.0
        self._queue = queue
        self._length = length
        self._is_old = is_old
        self._stopped = Signal()
        self._background = Background(self._extend)

    def stop(self) -> None:
        self._background.stop()
        self._stopped.set()

    async def _extend(self) -> None:
        try:
            await self._extend_on()
        finally:
            # Whatever ended it, nobody extends the lease any more.
            if not self._stopped.is_set():
                self.lost.set()

    async def _extend_on(self) -> None:
        until = time.monotonic() + self._length
        pause = 0.0 if self._is_old else self._length * EXTEND_AT
        while not await self._stopped.wait(max(pause, EXTEND_SECONDS_MIN)):
            pause = self._length * EXTEND_AT
            # Counted from before the call, so that our deadline is not later than the broker's.
            asked = time.monotonic()
            until = max(until, self.wanted)
            if asked >= until:
                return
            length = max(self._length, self.wanted - asked)
            try:
                item = wire.extend_item(self.lease, length)
                settled = await self._queue._settle_one(item, timeout=until - asked)
            except Error as error:
                if error.retryable and time.monotonic() < until:
                    continue
                logger.warning("a claim could not be extended: %s", error)
                return
            if settled.is_lost:
                return
            until = asked + length
