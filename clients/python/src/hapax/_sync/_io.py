"""What is different without asyncio: connections, sleeping, signals and background work."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx2

from .. import _http
from .._http import Requests, Settings

sleep = time.sleep


class Transport:
    """The connections to a broker."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._requests = Requests(settings)
        self._http = httpx2.HTTPTransport(**settings.transport_arguments(waits=False))
        self._waiting_http = httpx2.HTTPTransport(**settings.transport_arguments(waits=True))

    def call(
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
            response = http.handle_request(request)
            for part in response.iter_bytes():
                parts.append(part)
                # The timeout of a socket begins anew with every byte.
                if time.monotonic() > until:
                    response.close()
                    raise _http.timed_out(self.settings.address, seconds)
        except httpx2.RequestError as error:
            raise _http.failed(self.settings.address, error, seconds) from error
        return _http.read(self.settings.address, response, b"".join(parts))

    def close(self) -> None:
        self._http.close()
        self._waiting_http.close()


class Signal:
    """Something that happens once."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float | None = None) -> bool:
        """Waits for it; returns whether it has happened."""
        return self._event.wait(seconds)


class Background:
    """Something that goes on beside its caller."""

    def __init__(self, run: Callable[[], None]) -> None:
        threading.Thread(target=run, name="hapax-claim", daemon=True).start()

    def stop(self) -> None:
        """Its own signal ends it."""
