"""The rules of protected routes, and what a request asks for under them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

from .. import _errors as errors
from .._async.claim import AsyncClaim
from .._async.queue import AsyncQueue
from .._time import Duration, seconds
from . import _identity as identity
from . import _problem as problem
from . import _stored as stored
from ._exchange import Scope, raw_path
from ._operation import Remember
from ._route import Route, read_loosely, read_path
from ._stored import Headers

T = TypeVar("T")

TENANT_BYTES_MAX = 1024
#: The most characters of a path in the error of an operation in doubt.
NAMED_PATH_MAX = 100
REQUEST_BYTES_MAX = 1024 * 1024
RESPONSE_BYTES_MAX = 1024 * 1024 - stored.HEADERS_BYTES_MAX
UPLOADS_BYTES_MAX = 256 * 1024 * 1024
OPERATIONS_MAX = 1024
#: ``Connection`` must not name these: a service behind a proxy would see another request.
END_TO_END = frozenset(
    b"idempotency-key host content-encoding content-length content-type forwarded "
    b"x-forwarded-for x-forwarded-host x-forwarded-proto x-real-ip".split()
)


def usual(status: int) -> Remember:
    """The default policy: 2xx, 3xx and 4xx are the outcome of the operation. 408, 425, 429 and 5xx
    mean that it was not processed."""
    return "keep" if 200 <= status < 500 and status not in (408, 425, 429) else "release"


def _tenant_in(name: bytes, scope: Mapping[str, Any]) -> str | None:
    """The tenant in a header, which must occur once."""
    values = identity.values_of(scope["headers"], name)
    is_text = len(values) == 1 and values[0].isascii() and values[0].decode().isprintable()
    return values[0].decode() if is_text else None


@dataclass(frozen=True)
class Asked:
    """A protected request."""

    route: Route
    key: str
    claim_key: str
    fingerprint: str
    tenant: str
    #: Method and path, for the operator who has to resolve it: the claim's key is only a digest.
    request: str
    wait: int | None
    body: bytes


class Idempotency:
    """The rules of protected routes, and what is in progress. One object serves one application.

    ``required`` and ``optional`` are routes, as patterns or ``Route`` objects. ``tenant`` gets the
    scope of a request and returns whose keys it uses; ``None`` refuses it with 401. Instead of it,
    ``tenant_header`` is a header that has the tenant and must occur once: for services behind a
    proxy that authenticates callers and sets it. Without either all callers share their keys, and
    their credentials are compared with those of the first request.
    ``namespace`` separates the keys of services on one queue. ``policy`` chooses by status which
    responses are stored, and ``headers`` which of their headers. ``on_unavailable`` is what a
    request gets while the broker cannot be reached: ``close`` is 503, ``open`` runs it unprotected.
    """

    def __init__(
        self,
        queue: AsyncQueue,
        *,
        required: Iterable[Route | str] = (),
        optional: Iterable[Route | str] = (),
        tenant: Callable[[Mapping[str, Any]], str | None] | None = None,
        tenant_header: str | None = None,
        namespace: str = "",
        fingerprint_headers: Iterable[str] | None = None,
        policy: Callable[[int], Remember] = usual,
        headers: Iterable[str] | None = None,
        on_unavailable: Literal["close", "open"] = "close",
        lease: Duration = 30,
        wait_max: Duration = 30,
        request_timeout: Duration = 30,
        broker_timeout: Duration = 5,
        retry_after: Duration = 1,
        request_bytes_max: int = REQUEST_BYTES_MAX,
        response_bytes_max: int = RESPONSE_BYTES_MAX,
        uploads_bytes_max: int = UPLOADS_BYTES_MAX,
        operations_max: int = OPERATIONS_MAX,
        worker: str | None = None,
    ) -> None:
        self.queue = queue
        self.routes = [it if isinstance(it, Route) else Route(it) for it in required]
        self.routes += [
            it if isinstance(it, Route) else Route(it, required=False) for it in optional
        ]
        if not self.routes:
            raise errors.Invalid('no route is protected: name one, such as required=["POST /a"]')
        names = [str(route) for route in self.routes]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise errors.Invalid(f"the route {twice} is given twice")
        if tenant is not None and tenant_header is not None:
            raise errors.Invalid("tenant and tenant_header exclude each other")
        if tenant_header is not None:
            tenant = partial(_tenant_in, tenant_header.lower().encode())
        self.tenant = tenant
        self.namespace = namespace
        compared = [b"content-type"] if tenant else [b"content-type", *identity.CREDENTIALS]
        if fingerprint_headers is not None:
            compared = [name.lower().encode() for name in fingerprint_headers]
        self.compared = sorted(set(compared))
        self.policy = policy
        self.headers = None if headers is None else {name.lower().encode() for name in headers}
        self.on_unavailable = on_unavailable
        self.lease = seconds(lease)
        self.wait_max = seconds(wait_max)
        self.request_timeout = seconds(request_timeout)
        self.broker_timeout = seconds(broker_timeout)
        self.retry_after = seconds(retry_after)
        self.request_bytes_max = request_bytes_max
        self.response_bytes_max = response_bytes_max
        self.uploads_bytes_max = max(uploads_bytes_max, request_bytes_max)
        self.operations_max = operations_max
        self.worker = worker
        self.uploads_bytes = 0
        #: Requests with keys in progress, and settles after them.
        self._tasks: set[asyncio.Task[Any]] = set()
        self._operations = 0
        self._connection_names = END_TO_END | set(identity.CREDENTIALS) | set(self.compared)
        self._connection_names |= {route.key_header for route in self.routes}
        if tenant_header is not None:
            self._connection_names |= {tenant_header.lower().encode()}

    @property
    def running(self) -> int:
        """Operations in progress, including those whose clients have disconnected."""
        return len(self._tasks)

    async def drained(self, timeout: Duration) -> bool:
        """Waits until no operation is in progress; returns whether that is so. Call it before the
        process ends, after it has stopped accepting requests."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds(timeout)
        while self._tasks and loop.time() < until:
            await asyncio.wait(set(self._tasks), timeout=until - loop.time())
        return not self._tasks

    async def check_queue(self) -> list[str]:
        """What is wrong with the queue: empty if it is suitable. Call it at start; otherwise an
        unsuitable queue is noticed with the first request."""
        config, wrong = (await self.queue.info()).config, []
        if config.get("guarantee") == "at-most-once":
            wrong.append("its guarantee is at-most-once, and such a queue does not support claims")
        needed = self.response_bytes_max + stored.HEADERS_BYTES_MAX
        if config.get("max_body_bytes", 0) < needed:
            wrong.append(
                f"its max_body_bytes is {config.get('max_body_bytes')}, and responses of up to "
                f"{self.response_bytes_max} bytes with their headers need {needed}"
            )
        return wrong

    # ---- A request

    def route_of(self, scope: Scope) -> Route | None:
        """The route of a request. Raises a problem for one that is only similar."""
        headers: Headers = scope["headers"]
        for value in identity.values_of(headers, b"connection"):
            for name in value.split(b","):
                if name.strip().lower() in self._connection_names:
                    raise problem.hop_by_hop(name.strip().decode("latin-1"))
        method, path = scope["method"], raw_path(scope).decode("latin-1")
        segments = read_path(path)
        for route in self.routes:
            if route.matches(method, segments):
                return route
        loosely = read_loosely(path)
        for route in self.routes:
            if not route.may_match(method, loosely):
                continue
            has_key = bool(identity.values_of(headers, route.key_header))
            if route.is_required or route.key_from is not None or has_key:
                raise problem.lookalike(route)
        return None

    def tenant_of(self, scope: Scope) -> str:
        if self.tenant is None:
            return ""
        tenant = self.tenant(scope)
        # An empty name identifies nobody: those who have it would share their answers.
        if not tenant or len(tenant.encode()) > TENANT_BYTES_MAX:
            raise problem.no_tenant()
        return tenant

    def ask(
        self, scope: Scope, route: Route, key: str | None, tenant: str, body: bytes
    ) -> Asked | None:
        """The claim to make; ``None`` if there is no key and none is required."""
        if key is None and route.key_from is not None:
            try:
                key = route.key_from(body)
            except ValueError as error:
                raise problem.malformed_key(f"no key can be read in the body: {error}") from error
        if key is None:
            if route.is_required:
                raise problem.missing_key("this request contains no key")
            return None
        identity.check_key(key)
        headers: Headers = scope["headers"]
        method, path = scope["method"], raw_path(scope)
        wait = identity.wait(headers)
        shown = "".join(it if it.isprintable() else "?" for it in path.decode("latin-1"))
        shown = shown if len(shown) <= NAMED_PATH_MAX else f"{shown[:NAMED_PATH_MAX]}…"
        return Asked(
            route=route,
            key=key,
            claim_key=identity.claim_key(self.namespace, tenant, method, route.path, key),
            fingerprint=identity.fingerprint(
                method, path, scope.get("query_string", b""), headers, self.compared, body
            ),
            tenant=tenant,
            request=f"{method} {shown}".strip(),
            wait=None if wait is None else int(min(wait, self.wait_max)),
            body=body,
        )

    def claim(self, asked: Asked, wait: int | None) -> Coroutine[Any, Any, AsyncClaim]:
        """One claim of the key, as this request makes it."""
        return self.queue.claim(
            asked.claim_key,
            fingerprint=asked.fingerprint,
            # If this process dies, this tells an operator what is in doubt.
            headers={"request": asked.request},
            lease=self.lease,
            wait=wait or 0,
            worker=self.worker,
            issued_at=identity.date(asked.key),
        )

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs it to its end, whatever becomes of the request."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def operate(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs an operation to its end, if there is room for one more."""
        if self._operations >= self.operations_max:
            work.close()
            detail = "too many requests with keys are in progress; nothing was done"
            raise problem.unavailable(detail, self.retry_after)
        self._operations += 1
        task = self.spawn(work)
        task.add_done_callback(self._has_ended)
        return task

    def _has_ended(self, _: asyncio.Task[Any]) -> None:
        self._operations -= 1
