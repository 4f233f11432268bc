"""The middleware's error responses: problem documents (RFC 9457), as the broker writes them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ._route import Route
from ._stored import Response


@dataclass(eq=False)
class Problem(Exception):
    """``code`` is for programs: one of the broker's, or ``in_doubt`` or ``response_not_kept``. A
    retryable one has ``Retry-After``."""

    code: str
    status: int
    title: str
    detail: str
    retry_after: float | None = None
    more: Mapping[str, object] = field(default_factory=dict)

    def response(self) -> Response:
        document = {
            # A URN: the service behind has no such page.
            "type": f"urn:hapax:error:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "retryable": self.retry_after is not None,
            **self.more,
        }
        headers = [
            (b"content-type", b"application/problem+json"),
            (b"cache-control", b"no-store"),
        ]
        if self.retry_after is not None:
            seconds = max(1, math.ceil(self.retry_after))
            headers.append((b"retry-after", str(seconds).encode()))
        return Response(self.status, headers, json.dumps(document).encode())


def missing_key(detail: str) -> Problem:
    return Problem("missing_key", 400, "An idempotency key is required", detail)


def malformed_key(detail: str) -> Problem:
    return Problem("malformed_key", 400, "The idempotency key is malformed", detail)


def broken_request() -> Problem:
    detail = "the connection ended before the end of the body; nothing was done"
    return Problem("invalid", 400, "The request is invalid", detail)


def lookalike(route: Route) -> Problem:
    detail = (
        "the method or path of this request is ambiguous (case, encoded slashes, ';'): some "
        f"services would read it as {route}, which requires a key. Write it in that form"
    )
    return Problem("invalid", 400, "The request is invalid", detail)


def hop_by_hop(name: str) -> Problem:
    detail = (
        f"the Connection header names {name}, so services behind a proxy would not see that "
        "header; nothing was done"
    )
    return Problem("invalid", 400, "The request is invalid", detail)


def no_tenant() -> Problem:
    detail = (
        "this route stores its answers per caller, and this request does not identify its caller"
    )
    return Problem("unauthorized", 401, "The caller is unknown", detail)


def request_timeout(seconds: float) -> Problem:
    detail = f"the request did not arrive within {seconds:.0f} s"
    return Problem("unavailable", 408, "The request took too long to arrive", detail, 1.0)


def too_large(most: int) -> Problem:
    detail = f"a request with a key may have at most {most} bytes; nothing was done"
    return Problem("too_large", 413, "The request is too large", detail)


def conflict() -> Problem:
    detail = (
        "the key was used before with a different request (method, path, query, headers and body "
        "are compared); the earlier one is unchanged, and this one was not carried out"
    )
    return Problem("conflict", 422, "The key was used for another operation", detail)


def in_progress(after: float) -> Problem:
    detail = (
        "a request with this key is in progress: retry later, or wait for its answer with Prefer: "
        "wait=SECONDS"
    )
    return Problem("in_flight", 409, "The first request is in progress", detail, after)


def in_doubt(claim_key: str) -> Problem:
    detail = (
        "a request with this key was begun and its outcome is unknown: it may have been carried "
        "out, and is not repeated until an operator has resolved it"
    )
    more = {"claim_key": claim_key}
    return Problem("in_doubt", 409, "The outcome is unknown", detail, more=more)


def lease_lost(after: float) -> Problem:
    detail = (
        "this request lost its lease while it was in progress, and another request with the same "
        "key is being processed: retry with the same key to get its answer"
    )
    return Problem("lease_lost", 409, "Another request has the key", detail, after)


def too_old() -> Problem:
    detail = (
        "the date of the key is older than the retention, so the request may have been carried "
        "out already; it was not carried out now"
    )
    return Problem("too_old", 410, "The request is older than the retention", detail)


def undated_key() -> Problem:
    detail = "this route accepts only UUIDv7 or ULID keys, so that late retries can be recognised"
    return Problem("undated_key", 422, "The key has no date", detail)


def not_kept(status: int) -> Problem:
    detail = (
        f"the request with this key was carried out and answered with {status}; its response was "
        "too large to be stored"
    )
    more = {"original_status": status}
    return Problem("response_not_kept", 410, "The response was not stored", detail, more=more)


def unavailable(detail: str, after: float) -> Problem:
    return Problem("unavailable", 503, "Idempotency cannot be guaranteed now", detail, after)


def internal(detail: str) -> Problem:
    return Problem("internal", 500, "The service has an internal error", detail)
