"""The ASGI protocol: its types, and how whole requests and responses go over it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any
from urllib.parse import quote

from ._stored import Response

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def raw_path(scope: Scope) -> bytes:
    raw: bytes | None = scope.get("raw_path")
    if raw is None:
        return quote(scope["path"]).encode()
    return raw.split(b"?", 1)[0]


def replayed(body: bytes, receive: Receive | None) -> Receive:
    """A ``receive`` that has the body again. Without the real one it never reports a disconnect: a
    handler runs to its end."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        if messages:
            return messages.pop()
        if receive is not None:
            return await receive()
        await asyncio.Event().wait()
        raise AssertionError("it waits for ever")

    return again


async def respond(send: Send, response: Response) -> None:
    body = response.body or b""
    headers = [*response.headers]
    if response.status >= 200 and response.status not in (204, 304):
        headers.append((b"content-length", str(len(body)).encode()))
    start = {"type": "http.response.start", "status": response.status, "headers": headers}
    await quietly(send, start)
    await quietly(send, {"type": "http.response.body", "body": body, "more_body": False})


async def quietly(send: Send, message: Message) -> None:
    """Sends to a client that may have disconnected: what was done is done all the same."""
    with contextlib.suppress(OSError):
        await send(message)
