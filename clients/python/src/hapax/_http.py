"""What both transports share: the settings of a connection, and how a response is read."""

from __future__ import annotations

import json
import os
import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx2

from . import _errors as errors

T = TypeVar("T")

ADDRESS = "http://127.0.0.1:4747"
TIMEOUT_SECONDS = 30.0
CONNECT_SECONDS = 5.0
CONNECTIONS_MAX = 64
#: A try that has no answer for this long, beyond its own wait, is made again while there is time.
TRY_SECONDS = 10.0
#: The longest try: sockets take no longer timeout than some weeks.
TRY_SECONDS_MAX = 24 * 3600.0
#: The most parsed addresses that are kept.
URLS_MAX = 256


@dataclass(frozen=True)
class Settings:
    """Where the broker is, and who asks."""

    address: str
    token: str | None = field(repr=False)
    timeout: float
    verify: ssl.SSLContext | bool
    connections_max: int

    @classmethod
    def of(
        cls,
        address: str | None,
        token: str | None,
        timeout: float,
        ca: str | Path | ssl.SSLContext | None,
        identity: tuple[str | Path, str | Path] | None,
        connections_max: int,
    ) -> Settings:
        address = address or os.environ.get("HAPAX_SERVER") or ADDRESS
        if "://" not in address:
            address = f"http://{address}"
        scheme = address.split("://", 1)[0]
        if scheme not in ("http", "https"):
            raise errors.Invalid(f"{address}: {scheme} is not supported: use http or https")
        token = token if token is not None else os.environ.get("HAPAX_TOKEN")
        ca = ca if ca is not None else os.environ.get("HAPAX_CA")
        return cls(
            address=address.rstrip("/"),
            token=token.strip() if token else None,
            timeout=timeout,
            verify=tls(ca, identity) if scheme == "https" else False,
            connections_max=connections_max,
        )

    def transport_arguments(self, *, waits: bool) -> dict[str, Any]:
        """For calls that wait at the broker, or for all others. The former have connections of
        their own, as many as callers wait: they must not take those of the calls they wait for."""
        limits = httpx2.Limits(
            max_connections=None if waits else self.connections_max,
            max_keepalive_connections=self.connections_max,
            keepalive_expiry=30.0,
        )
        # A broker is not reached through the proxies of a desktop.
        return {"limits": limits, "verify": self.verify, "trust_env": False}


def tls(
    ca: str | Path | ssl.SSLContext | None,
    identity: tuple[str | Path, str | Path] | None,
) -> ssl.SSLContext:
    if isinstance(ca, ssl.SSLContext):
        return ca
    context = ssl.create_default_context(cafile=None if ca is None else str(ca))
    if identity is not None:
        certificate, key = identity
        context.load_cert_chain(str(certificate), str(key))
    return context


class Requests:
    """Makes the requests of a client. They go to the transport of httpx2 directly, without its
    client: there are no cookies, redirects or encodings here, and half of the time is saved."""

    def __init__(self, settings: Settings) -> None:
        self._address = settings.address
        self._headers = [(b"user-agent", b"hapax-python"), (b"accept", b"application/json")]
        if settings.token:
            self._headers.append((b"authorization", f"Bearer {settings.token}".encode()))
        self._urls: dict[str, httpx2.URL] = {}

    def request(
        self,
        method: str,
        path: str,
        content: bytes | None,
        headers: Mapping[str, str | bytes] | None,
        seconds: float,
    ) -> httpx2.Request:
        seconds = min(max(seconds, 0.001), TRY_SECONDS_MAX)
        timeout = {"connect": min(seconds, CONNECT_SECONDS)}
        timeout |= {"read": seconds, "write": seconds, "pool": seconds}
        sent = self._headers
        if headers is not None:
            sent = sent + [
                (name.encode(), value.encode() if isinstance(value, str) else value)
                for name, value in headers.items()
            ]
        # Always with a length: an empty body is one too.
        body = b"" if content is None and method != "GET" else content
        extensions = {"timeout": timeout}
        return httpx2.Request(
            method, self._url(path), headers=sent, content=body, extensions=extensions
        )

    def _url(self, path: str) -> httpx2.URL:
        """Paths of queues are used again and again, those of keys are not."""
        url = self._urls.get(path)
        if url is None:
            url = httpx2.URL(self._address + path)
            if len(self._urls) < URLS_MAX and "/keys/" not in path:
                self._urls[path] = url
        return url


def read(address: str, response: httpx2.Response, content: bytes) -> Any:
    """The object of a successful response, ``None`` if it must have none (204); raises the error of
    any other."""
    if response.is_success:
        if response.status_code == 204:
            return None
        try:
            fields = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise _not_an_answer(address, "not JSON") from error
        if not isinstance(fields, dict):
            raise _not_an_answer(address, "JSON that is not its answer")
        return fields
    retry_after = _retry_after(response.headers.get("retry-after", ""))
    try:
        problem = json.loads(content)
        if isinstance(problem["code"], str):
            request_id = response.headers.get("request-id")
            raise errors.from_problem(problem, retry_after=retry_after, request_id=request_id)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    # Not our problem document: a proxy, a load balancer, or another service.
    status = response.status_code
    why = f"no broker answers at {address}: HTTP {status}"
    if status in (408, 425, 429) or status >= 500:
        raise errors.Unavailable(why, retry_after=retry_after)
    if status == 413:
        # It takes smaller requests than the broker: not for now, but for good.
        raise errors.TooLarge(why)
    raise errors.Foreign(why)


def parsed(address: str, read: Callable[[Any], T], fields: Any) -> T:
    """What the JSON of a successful response says. Any other JSON is not the broker's: a success
    is believed only if it is the answer to what was asked."""
    try:
        return read(fields)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise _not_an_answer(address, "JSON that is not its answer") from error


def _not_an_answer(address: str, what: str) -> errors.Unreachable:
    """It is unknown whether the broker has got the request, and what it has answered."""
    return errors.Unreachable(f"no broker answers at {address}, but something that sends {what}")


def _retry_after(text: str) -> float | None:
    """Seconds; a date is not read."""
    if not re.fullmatch("[0-9]+", text):
        return None
    return min(float(text), errors.RETRY_AFTER_SECONDS_MAX)


def failed(address: str, error: httpx2.RequestError, seconds: float) -> errors.Error:
    """The error of a request without a response."""
    why = str(error) or type(error).__name__
    if isinstance(error, httpx2.LocalProtocolError):
        return errors.Invalid(f"the request cannot be written: {why}")
    if isinstance(error, httpx2.TimeoutException) and not isinstance(error, httpx2.ConnectTimeout):
        return timed_out(address, seconds)
    return errors.Unreachable(f"cannot reach the broker at {address}: {why}")


def timed_out(address: str, seconds: float) -> errors.TimedOut:
    return errors.TimedOut(
        f"no answer of {address} within {seconds:.1f} s; a retry under the same key is safe"
    )
