"""A handler's access to its lease: save, extend, begin, steps, and the signals it can wait for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from .. import _wire as wire
from .._errors import Error, Invalid, LeaseLost, TooLarge
from .._model import Delivery, Settled, to_bytes
from .._retry import Retry
from .._time import Duration, seconds
from . import steps

if TYPE_CHECKING:
    from .lane import Lane
    from .leases import Hold

T = TypeVar("T")


class Context:
    """The context of a handler that is a coroutine."""

    __slots__ = ("_hold", "_lane", "_ledger")

    def __init__(self, lane: Lane, hold: Hold) -> None:
        self._lane = lane
        self._hold = hold
        self._ledger: steps.Ledger | None = None

    @property
    def message(self) -> Delivery:
        return self._hold.delivery

    @property
    def is_lost(self) -> bool:
        """Whether another worker may have the message now."""
        return self._hold.is_lost

    async def lost(self) -> None:
        """Returns when the lease is lost. The handler is cancelled then; this is for what it has
        started beside itself. A failure after that is not reported. A result is, and counts if no
        other worker has taken the message meanwhile."""
        await self._hold.lost.wait()

    @property
    def is_stopping(self) -> bool:
        return self._lane.stopping.is_set()

    async def stopping(self) -> None:
        """Returns when the worker is asked to stop: for handlers that can finish early."""
        await self._lane.stopping.wait()

    async def begin(self) -> None:
        """Marks durably that an effect that cannot be repeated starts now. A queue with ``on_lost =
        "park"`` parks the message if after this the lease is lost, the handler ends with anything
        but ``Fail``, or its result is refused."""
        await self._keep({"lease": self.message.lease, "do": "begin"})

    async def save(self, name: str, data: str | bytes) -> None:
        """Stores a recovery point: the next attempt finds it in ``message.recovery_points``. At
        most 64, and 64 KiB together."""
        data = to_bytes(data)
        await self._keep(wire.save_item(self.message.lease, name, data))
        self._steps().saved(name, data)

    async def extend(self, length: Duration | None = None) -> None:
        """Extends the lease to at least this long from now, by default to its own length. Leases
        are extended by themselves; this is for a handler that is about to block the event loop."""
        wanted = 0.0 if length is None else seconds(length)
        settled = await self._lane.extend(self._hold, wanted)
        self._check(settled)

    async def step(self, name: str, call: Callable[[str], Awaitable[T]]) -> T:
        """Calls another service once per message.

        ``call`` gets a key that is derived from the message's key and ``name``: the same in every
        attempt. The intent is saved before the call and the outcome, as JSON, after it. This
        attempt gets it as it was saved (a tuple is a list, keys are text), and a later one gets the
        same without a call. If an attempt dies between the call and its outcome, the next one calls
        again with the same key, and the service must return its first answer.

        An exception of the call fails the step and saves nothing: return a final answer, such as a
        declined card, as an outcome. Names are unique per message.
        """
        key, found = self._found(name)
        if found is not None and found.is_done:
            outcome: T = found.outcome
            return outcome
        await self._begin_step(name, key)
        value: T = await self._end_step(name, key, await call(key))
        return value

    def _found(self, name: str) -> tuple[str, steps.Found | None]:
        """The key of a step, and what was saved of it."""
        ledger = self._steps()
        ledger.take(name)
        key = self.message.derive(name)
        found = ledger.found(name, key)
        return (key if found is None else found.key), found

    async def _begin_step(self, name: str, key: str) -> None:
        """Saves the intent. This also proves that the worker still holds the lease."""
        self._steps().reserve(name)
        await self._save_surely(steps.PREFIX + name, steps.intent(key))

    async def _end_step(self, name: str, key: str, value: object) -> Any:
        """Saves the outcome of a call, and returns it as it was saved."""
        point, data = steps.PREFIX + name, steps.outcome(name, key, value)
        if self._steps().fits(point, data):
            try:
                await self._save_surely(point, data)
            except (Invalid, TooLarge):
                pass  # Recovery points saved elsewhere, or a broker with other bounds.
            else:
                self._steps().saved(point, data)
                return steps.read_outcome(data)
        await self._save_surely(point, steps.too_large(key, len(data)))
        raise steps.too_large_failure(name, key, len(data))

    async def _save_surely(self, name: str, data: bytes) -> None:
        """Saves, as long as that may help: a call was made, or is about to be."""
        retry = Retry(None)
        while True:
            try:
                return await self._keep(wire.save_item(self.message.lease, name, data))
            except Error as error:
                pause = retry.pause_after(error)
                if pause is None or self.is_lost:
                    raise
            await asyncio.sleep(pause)

    def _steps(self) -> steps.Ledger:
        if self._ledger is None:
            self._ledger = steps.Ledger(self.message.recovery_points)
        return self._ledger

    async def _keep(self, item: dict[str, Any]) -> None:
        self._check(await self._lane.ask(self._hold, item))

    def _check(self, settled: Settled) -> None:
        if settled.is_lost:
            raise LeaseLost("another worker has the message now, or it is finished")


class BlockingContext:
    """The context of a handler that runs in a thread. Its methods block; ``lost`` is an event."""

    def __init__(self, context: Context, loop: asyncio.AbstractEventLoop) -> None:
        self._context = context
        self._loop = loop
        #: Set when the lease is lost: look at it from time to time, and stop then.
        self.lost = threading.Event()
        #: Set when the worker is asked to stop.
        self.stopping = context._lane.thread_stopping

    @property
    def message(self) -> Delivery:
        return self._context.message

    @property
    def is_lost(self) -> bool:
        return self.lost.is_set()

    @property
    def is_stopping(self) -> bool:
        return self.stopping.is_set()

    def begin(self) -> None:
        """See ``Context.begin``."""
        self._wait(self._context.begin())

    def save(self, name: str, data: str | bytes) -> None:
        """See ``Context.save``."""
        self._wait(self._context.save(name, data))

    def extend(self, length: Duration | None = None) -> None:
        """See ``Context.extend``. A handler in a thread does not need it: it does not keep the
        event loop from extending its lease."""
        self._wait(self._context.extend(length))

    def step(self, name: str, call: Callable[[str], T]) -> T:
        """See ``Context.step``."""
        key, found = self._context._found(name)
        if found is not None and found.is_done:
            outcome: T = found.outcome
            return outcome
        self._wait(self._context._begin_step(name, key))
        value: T = self._wait(self._context._end_step(name, key, call(key)))
        return value

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        if self.lost.is_set():
            coroutine.close()
            raise LeaseLost("another worker has the message now, or the worker has stopped")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
