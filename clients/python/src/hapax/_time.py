"""Times and durations of the HTTP API."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Union

#: Seconds, or a timedelta.
Duration = Union[float, int, timedelta]

#: A longer wait is one of a year: the clocks of the system take no infinite ones.
LONGEST_SECONDS = 365 * 24 * 3600.0


def seconds(duration: Duration) -> float:
    """How long to wait."""
    return min(_seconds(duration), LONGEST_SECONDS)


def milliseconds(duration: Duration) -> int:
    """Whole milliseconds, rounded up: a wait is never shorter than it was asked for."""
    value = _seconds(duration) * 1000
    if not math.isfinite(value):
        raise ValueError(f"a duration must have an end: {duration}")
    return math.ceil(value)


def _seconds(duration: Duration) -> float:
    value = duration.total_seconds() if isinstance(duration, timedelta) else float(duration)
    if not value >= 0:
        raise ValueError(f"a duration must not be negative: {duration}")
    return value


def parse_time(text: str) -> datetime:
    """Reads a time of the broker: RFC 3339 in UTC."""
    return datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)


def write_time(time: datetime) -> str:
    """Writes a time for the broker. One without a time zone is local time, as in Python."""
    text = time.astimezone(timezone.utc).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
