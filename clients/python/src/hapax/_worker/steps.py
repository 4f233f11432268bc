"""The bookkeeping of steps: which names are used, what earlier attempts saved, whether there is
room for an outcome.

A step is one recovery point, ``step:NAME``, of JSON. First it holds the intent: that the step has
begun, and under which key. Then the outcome replaces it. The clients in all languages write and
read the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .._failure import Dead, Fail
from .._model import to_json

PREFIX = "step:"
#: The broker's limits: the number of recovery points, and the bytes of their names and data.
POINTS_MAX = 64
POINTS_BYTES_MAX = 64 * 1024
NAME_BYTES_MAX = 128 - len(PREFIX)
#: The free space that a step requires before it calls, because an outcome that cannot be stored
#: means a repeated call.
ROOM_BYTES = 1024


@dataclass(frozen=True)
class Found:
    """What an earlier attempt saved: the key of a call to be made again, or the outcome."""

    key: str
    is_done: bool
    outcome: Any = None


class Ledger:
    """The recovery points of one message, and the steps of one attempt."""

    def __init__(self, points: Mapping[str, bytes]) -> None:
        self._data = points
        #: Bytes of every point with its name, including the reserve of steps under way.
        self._points = {name: len(name.encode()) + len(data) for name, data in points.items()}
        self._taken: set[str] = set()

    def take(self, name: str) -> None:
        """Reserves the name of a step for the rest of the attempt."""
        size = len(name.encode())
        if not 1 <= size <= NAME_BYTES_MAX:
            raise Dead(f"a step's name must have 1 to {NAME_BYTES_MAX} bytes, not {size}: {name}")
        if name in self._taken:
            raise Dead(
                f"the step {name} is used twice in one attempt: the second would get the first "
                f'one\'s key and outcome. Give every step its own name (such as "{name}-2"), and '
                "retry a call within its step"
            )
        self._taken.add(name)

    def found(self, name: str, key: str) -> Found | None:
        """What an earlier attempt saved of a step whose key is ``key``."""
        data = self._data.get(PREFIX + name)
        if data is None:
            return None
        try:
            point = json.loads(data)
            stage, saved = point["step"], point["key"]
            if stage not in ("begun", "done", "too_large") or not isinstance(saved, str):
                raise ValueError("no such stage")
        except (ValueError, KeyError, TypeError) as error:
            raise Fail(
                f"the recovery point {PREFIX}{name} was not written by a step ({error}); the step "
                "was not called"
            ) from error
        if stage != "done":
            # A call may have been made with this key, so the next one must use it too.
            return Found(saved, is_done=False)
        if saved != key:
            raise Fail(
                f"the recovery point {PREFIX}{name} has the key {saved}, which belongs to another "
                "message; the step was not called"
            )
        return Found(saved, is_done=True, outcome=point.get("outcome"))

    def reserve(self, name: str) -> None:
        """Reserves space for the outcome of a step that is about to begin."""
        point = PREFIX + name
        left, size = self._left(point), len(point.encode()) + ROOM_BYTES
        if (point in self._points or len(self._points) < POINTS_MAX) and left >= size:
            self._points[point] = size
            return
        raise Dead(
            f"the step {name} was not begun, because its outcome could not be stored: the message "
            f"has {len(self._points)} recovery points of at most {POINTS_MAX}, and {left} of "
            f"{POINTS_BYTES_MAX} bytes are left. Use fewer steps, or return smaller outcomes"
        )

    def fits(self, point: str, data: bytes) -> bool:
        return len(point.encode()) + len(data) <= self._left(point)

    def saved(self, point: str, data: bytes) -> None:
        self._points[point] = len(point.encode()) + len(data)

    def _left(self, point: str) -> int:
        others = sum(size for name, size in self._points.items() if name != point)
        return max(0, POINTS_BYTES_MAX - others)


def intent(key: str) -> bytes:
    return to_json({"step": "begun", "key": key})


def outcome(name: str, key: str, value: object) -> bytes:
    try:
        return to_json({"step": "done", "key": key, "outcome": value})
    except (TypeError, ValueError) as error:
        raise Dead(f"the outcome of the step {name} cannot be written as JSON: {error}") from error


def read_outcome(data: bytes) -> Any:
    return json.loads(data)["outcome"]


def too_large(key: str, size: int) -> bytes:
    return to_json({"step": "too_large", "key": key, "bytes": size})


def too_large_failure(name: str, key: str, size: int) -> Dead:
    return Dead(
        f"the step {name} made its call with the key {key}, but its outcome of {size} bytes cannot "
        f"be stored: the recovery points of a message have at most {POINTS_BYTES_MAX} bytes in "
        "total. Return less from the step, such as an id, and redrive the message: it calls again "
        "with the same key"
    )
