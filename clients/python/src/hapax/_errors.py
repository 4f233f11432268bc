"""Errors: a class per code of the broker's list, and what went wrong on the way to it.

Under one key a retry is always safe, whatever the error. ``retryable`` says whether it may help.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from ._time import parse_time


class Error(Exception):
    """A refusal of the broker, or a broker that cannot be reached.

    ``code`` is one of the codes that the broker explains at ``/errors/CODE``.
    """

    code: ClassVar[str] = "internal"

    def __init__(
        self,
        detail: str,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        request_id: str | None = None,
        key: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        #: Whether the same request may succeed later.
        self.retryable = type(self).code in _RETRYABLE if retryable is None else retryable
        #: Seconds after which the broker asked to retry.
        self.retry_after = retry_after
        self.request_id = request_id
        #: The generated key of a message that was sent without one, where it is unknown whether
        #: the message was accepted. Sent again under this key, it is accepted once.
        self.key = key

    def __str__(self) -> str:
        text = f"{self.code}: {self.detail}"
        if self.key is not None:
            text += "; the message got a generated key (error.key): send it again under that key"
        return text


class Invalid(Error):
    """The request is invalid, or not allowed in the state of the message."""

    code = "invalid"


class MissingKey(Error):
    """The queue requires a key, and the message has none."""

    code = "missing_key"


class MalformedKey(Error):
    """The key is empty, too long, or has control characters."""

    code = "malformed_key"


class Unauthorized(Error):
    """The token is missing or not valid."""

    code = "unauthorized"


class Forbidden(Error):
    """The token does not allow this."""

    code = "forbidden"


class NoSuchQueue(Error):
    code = "no_such_queue"


class NoSuchKey(Error):
    """The key is unknown: never sent, or forgotten."""

    code = "no_such_key"


class Conflict(Error):
    """The key was used for another operation: ``differs`` names what differs."""

    code = "conflict"

    def __init__(
        self,
        detail: str,
        *,
        differs: tuple[str, ...] = (),
        id: str | None = None,
        accepted_at: datetime | None = None,
        **more: Any,
    ) -> None:
        super().__init__(detail, **more)
        self.differs = differs
        #: The first message under the key.
        self.id = id
        self.accepted_at = accepted_at

    def __str__(self) -> str:
        differs = f" ({', '.join(self.differs)} differs)" if self.differs else ""
        return super().__str__() + differs


class InFlight(Error):
    """Another caller holds the key."""

    code = "in_flight"


class TooOld(Error):
    """The operation is older than the queue's retention: it may have been carried out before."""

    code = "too_old"


class UndatedKey(Error):
    """The queue accepts dated keys only (UUIDv7, ULID, or ``issued_at``)."""

    code = "undated_key"


class LeaseLost(Error):
    """Another worker has the message now, or it is finished."""

    code = "lease_lost"


class InvalidConfig(Error):
    """The configuration of the queue is refused."""

    code = "invalid_config"


class TooLarge(Error):
    code = "too_large"


class OverQuota(Error):
    """The queue or the tenant is full."""

    code = "over_quota"


class RateLimited(Error):
    code = "rate_limited"


class StoreFull(Error):
    """The broker's disk is full."""

    code = "store_full"


class Unavailable(Error):
    """The broker cannot do this now."""

    code = "unavailable"


class Unreachable(Unavailable):
    """The broker cannot be reached, or the connection broke: it is unknown whether a request in
    flight was carried out."""


class TimedOut(Unavailable):
    """There was no answer in time: it is unknown whether the request was carried out."""


class Internal(Error):
    """A bug of the broker."""

    code = "internal"


class Foreign(Invalid):
    """Not the broker answered, but a proxy, a load balancer or another service."""


#: No broker asks for a longer pause; what stands between may write anything.
RETRY_AFTER_SECONDS_MAX = 3600.0


_CLASSES: dict[str, type[Error]] = {
    it.code: it
    for it in (
        Invalid,
        MissingKey,
        MalformedKey,
        Unauthorized,
        Forbidden,
        NoSuchQueue,
        NoSuchKey,
        Conflict,
        InFlight,
        TooOld,
        UndatedKey,
        LeaseLost,
        InvalidConfig,
        TooLarge,
        OverQuota,
        RateLimited,
        StoreFull,
        Unavailable,
        Internal,
    )
}
_RETRYABLE = frozenset(
    {"in_flight", "over_quota", "rate_limited", "store_full", "unavailable", "internal"}
)


def from_problem(
    problem: Mapping[str, Any],
    *,
    retry_after: float | None = None,
    request_id: str | None = None,
) -> Error:
    """Makes the error of a problem document, or of a refusal in its place in a batch."""
    code = problem.get("code")
    retryable = bool(problem.get("retryable"))
    detail = str(problem.get("detail") or problem.get("title") or "no detail")
    after_ms = problem.get("retry_after_ms")
    if retry_after is None and isinstance(after_ms, int) and after_ms >= 0:
        retry_after = min(after_ms, RETRY_AFTER_SECONDS_MAX * 1000) / 1000
    more: dict[str, Any] = {
        "retryable": retryable,
        "retry_after": retry_after,
        "request_id": request_id or problem.get("request_id"),
    }
    kind = _CLASSES.get(str(code))
    if kind is None:
        # The code of a newer broker: only whether to retry matters.
        return (Unavailable if retryable else Invalid)(f"{code}: {detail}", **more)
    if kind is Conflict:
        accepted_at = problem.get("accepted_at")
        return Conflict(
            detail,
            differs=tuple(problem.get("differs") or ()),
            id=problem.get("id"),
            accepted_at=parse_time(accepted_at) if accepted_at else None,
            **more,
        )
    return kind(detail, **more)
