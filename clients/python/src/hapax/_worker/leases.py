"""The leases of a worker: when to extend them, and when they are lost. No I/O: the time is an
argument, so that tests need no clock."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass

from .._model import Delivery

#: A lease is extended after this part of its length.
EXTEND_AT = 0.4


class Hold:
    """A message that this worker has leased."""

    __slots__ = (
        "_lost",
        "delivery",
        "due",
        "is_asked",
        "is_begun",
        "is_cancelled",
        "is_lost",
        "task",
        "thread_lost",
        "until",
        "wanted",
    )

    def __init__(self, delivery: Delivery, until: float, due: float) -> None:
        self.delivery = delivery
        #: By this process's clock: the lease is held until then.
        self.until = until
        #: When to look at it next.
        self.due = due
        #: The handler wants it until then; an automatic extension never asks for less.
        self.wanted = 0.0
        #: An extension is on its way.
        self.is_asked = False
        self.is_lost = False
        #: The task of its handler, once there is one.
        self.task: asyncio.Task[None] | None = None
        #: The task runs. Before that it must not be cancelled: it would end without a trace.
        self.is_begun = False
        self.is_cancelled = False
        self._lost: asyncio.Event | None = None
        #: For a handler in a thread.
        self.thread_lost: threading.Event | None = None

    @property
    def lost(self) -> asyncio.Event:
        """Set when it is lost; few handlers look at it."""
        if self._lost is None:
            self._lost = asyncio.Event()
            if self.is_lost:
                self._lost.set()
        return self._lost

    def cancel(self) -> None:
        """Cancels its handler, or keeps it from being called."""
        self.is_cancelled = True
        if self.is_begun and self.task is not None:
            self.task.cancel()

    def lose(self) -> bool:
        """Marks it as lost; returns whether that is news."""
        if self.is_lost:
            return False
        self.is_lost = True
        if self._lost is not None:
            self._lost.set()
        if self.thread_lost is not None:
            self.thread_lost.set()
        return True


@dataclass
class Extension:
    """A lease to extend."""

    hold: Hold
    length: float


class Leases:
    """All leases of a worker."""

    def __init__(self) -> None:
        self._holds: dict[str, Hold] = {}

    def __len__(self) -> int:
        return len(self._holds)

    def take(self, delivery: Delivery, now: float, *, is_old: bool = False) -> Hold:
        """``is_old``: it may have been leased long ago, so it is extended at once."""
        length = delivery.lease_seconds
        hold = Hold(delivery, now + length, now if is_old else now + length * EXTEND_AT)
        self._holds[delivery.lease] = hold
        return hold

    def drop(self, hold: Hold) -> None:
        self._holds.pop(hold.delivery.lease, None)

    def next_due(self) -> float | None:
        """When ``due`` has to be called next."""
        return min((hold.due for hold in self._holds.values() if not hold.is_lost), default=None)

    def due(self, now: float) -> tuple[list[Extension], list[Hold]]:
        """The leases to extend now, and those whose time is over."""
        extensions: list[Extension] = []
        lost: list[Hold] = []
        for hold in self._holds.values():
            if hold.is_lost or hold.due > now:
                continue
            if hold.until <= now:
                lost.append(hold)
                continue
            length = hold.delivery.lease_seconds
            if not hold.is_asked:
                hold.is_asked = True
                extensions.append(Extension(hold, max(length, hold.wanted - now)))
            # For the next extension, and when it would end.
            hold.due = min(now + length * EXTEND_AT, hold.until)
        return extensions, lost

    def extended(self, hold: Hold, until: float) -> None:
        """The broker has extended it: counted from before it was asked."""
        hold.is_asked = False
        hold.until = max(hold.until, until)

    def not_extended(self, hold: Hold) -> None:
        """The broker did not answer: it is tried again while there is time."""
        hold.is_asked = False
