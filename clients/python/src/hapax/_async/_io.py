"""What is different under asyncio: connections, sleeping, signals and background work."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx2

from .. import _http
from .._http import Requests, Settings

sleep = asyncio.sleep


class Transport:
    """The connections to a broker."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._requests = Requests(settings)
        self._http = httpx2.AsyncHTTPTransport(**settings.transport_arguments(waits=False))
        self._waiting_http = httpx2.AsyncHTTPTransport(**settings.transport_arguments(waits=True))

    async def call(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        seconds: float,
        waits: bool = False,
    ) -> Any:
        """Makes one request; ``waits``: the broker may answer late. Returns the JSON."""
        request = self._requests.request(method, path, content, headers, seconds)
        http = self._waiting_http if waits else self._http
        until, parts = time.monotonic() + seconds, []
        try:
            response = await http.handle_async_request(request)
            async for part in response.aiter_bytes():
                parts.append(part)
                # The timeout of a socket begins anew with every byte.
                if time.monotonic() > until:
                    await response.aclose()
                    raise _http.timed_out(self.settings.address, seconds)
        except httpx2.RequestError as error:
            raise _http.failed(self.settings.address, error, seconds) from error
        return _http.read(self.settings.address, response, b"".join(parts))

    async def close(self) -> None:
        await self._http.aclose()
        await self._waiting_http.aclose()


class Signal:
    """Something that happens once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, seconds: float | None = None) -> bool:
        """Waits for it; returns whether it has happened."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._event.wait(), seconds)
        return self._event.is_set()


class Background:
    """Something that goes on beside its caller."""

    def __init__(self, run: Callable[[], Awaitable[None]]) -> None:
        async def go() -> None:
            await run()

        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] = self._loop.create_task(go())

    def stop(self) -> None:
        """Ends it, from any thread."""
        with contextlib.suppress(RuntimeError):  # The loop is closed, and so it has ended.
            self._loop.call_soon_threadsafe(self._task.cancel)
