"""The middleware: which requests are protected, and their bodies."""

from __future__ import annotations

import asyncio

from . import _identity as identity
from . import _problem as problem
from ._exchange import App, Receive, Scope, Send, replayed, respond
from ._rules import Idempotency
from ._run import Run
from ._stored import Headers

#: The first bytes of a body, which are not counted, so that slow uploads cannot block small ones.
UPLOAD_FREE_BYTES = 16 * 1024


class IdempotencyMiddleware:
    """The ASGI middleware."""

    def __init__(self, app: App, idempotency: Idempotency) -> None:
        self.app = app
        self.idempotency = idempotency

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        rules = self.idempotency
        try:
            route = rules.route_of(scope)
            key = None
            if route is not None and route.key_from is None:
                key = identity.read_key(scope["headers"], route.key_header)
                if key is None and route.is_required:
                    raise identity.missing(scope["headers"], route.key_header)
                if key is None:
                    route = None
            if route is None:
                await self.app(scope, receive, send)
                return
            tenant = rules.tenant_of(scope)
            body = await read_body(rules, scope["headers"], receive)
            asked = rules.ask(scope, route, key, tenant, body)
            if asked is None:
                await self.app(scope, replayed(body, receive), send)
                return
            run = Run(rules, asked, self.app, scope, send)
            # A handler that has begun runs to its end, even if its client disconnects.
            await asyncio.shield(rules.operate(run.run()))
        except problem.Problem as refused:
            await respond(send, refused.response())


async def read_body(rules: Idempotency, headers: Headers, receive: Receive) -> bytes:
    """The whole body, within limits of size, of time, and of the memory of all incomplete ones."""
    most = rules.request_bytes_max
    for value in identity.values_of(headers, b"content-length"):
        if value.isdigit() and int(value) > most:
            raise problem.too_large(most)
    body, counted = bytearray(), 0
    loop = asyncio.get_running_loop()
    until = loop.time() + rules.request_timeout
    try:
        while True:
            try:
                message = await asyncio.wait_for(receive(), max(0.0, until - loop.time()))
            except asyncio.TimeoutError:
                raise problem.request_timeout(rules.request_timeout) from None
            if message["type"] == "http.disconnect":
                raise problem.broken_request()
            body += message.get("body", b"")
            if len(body) > most:
                raise problem.too_large(most)
            more = max(0, len(body) - UPLOAD_FREE_BYTES) - counted
            if rules.uploads_bytes + more > rules.uploads_bytes_max:
                detail = "too many requests with keys are being received; nothing was done"
                raise problem.unavailable(detail, rules.retry_after)
            rules.uploads_bytes += more
            counted += more
            if not message.get("more_body", False):
                return bytes(body)
    finally:
        rules.uploads_bytes -= counted
