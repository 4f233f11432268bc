"""Retries: how long to pause, and when to stop."""

from __future__ import annotations

import random
import time

from ._errors import Error

FIRST_SECONDS = 0.02
LONGEST_SECONDS = 5.0


class Retry:
    """The pauses of a retry loop.

    Retryable errors are retried until the deadline. Pauses double from 20 ms to 5 s. Each is drawn
    at random from the upper half of its bound, so that many clients that lost one broker do not
    come back at the same moment, and is never shorter than the broker asks for. If a pause would
    end after the deadline, there is none.
    """

    def __init__(
        self,
        seconds: float | None,
        *,
        first: float = FIRST_SECONDS,
        longest: float = LONGEST_SECONDS,
    ) -> None:
        self._until = None if seconds is None else time.monotonic() + seconds
        self._first = self._bound = first
        self._longest = longest

    def left(self, most: float = float("inf")) -> float:
        """Seconds until the deadline, at most ``most``."""
        if self._until is None:
            return most
        return max(0.0, min(most, self._until - time.monotonic()))

    def reset(self) -> None:
        """Starts again with the shortest pause, after a success."""
        self._bound = self._first

    def next_pause(self, asked: float | None = None) -> float:
        pause = self._bound * random.uniform(0.5, 1.0)
        self._bound = min(self._bound * 2, self._longest)
        return max(pause, asked or 0.0)

    def pause_after(self, error: Error) -> float | None:
        """Seconds to wait before the next try; ``None`` if there should be none."""
        if not error.retryable:
            return None
        pause = self.next_pause(error.retry_after)
        if self._until is not None and time.monotonic() + pause >= self._until:
            return None
        return pause
