# Generated from ../_async/client.py by tools/unasync.py. Do not edit.
"""The client: address, credentials and connections."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from .._errors import Error
from .._http import CONNECTIONS_MAX, TIMEOUT_SECONDS, TRY_SECONDS, Settings, parsed
from .._model import QueueInfo, to_json
from .._retry import Retry
from .._time import Duration, seconds
from .._wire import read_queue
from ._io import Transport, sleep
from .queue import Queue

T = TypeVar("T")


class Client:
    """A broker. It connects on first use, and again when a connection breaks.

    ``address`` defaults to ``$HAPAX_SERVER``, then to ``http://127.0.0.1:4747``; ``token`` to
    ``$HAPAX_TOKEN``; ``ca``, the CA certificate of an ``https`` broker (a PEM file or an
    ``ssl.SSLContext``), to ``$HAPAX_CA``, then to those of the machine. ``identity`` is the
    certificate and the key of this client, for brokers that require one. ``timeout`` is how long a
    call may take, including its retries.
    """

    def __init__(
        self,
        address: str | None = None,
        *,
        token: str | None = None,
        timeout: Duration = TIMEOUT_SECONDS,
        ca: str | Path | ssl.SSLContext | None = None,
        identity: tuple[str | Path, str | Path] | None = None,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        settings = Settings.of(address, token, seconds(timeout), ca, identity, connections_max)
        self._transport = Transport(settings)

    @classmethod
    def _of(cls, settings: Settings) -> Client:
        client = cls.__new__(cls)
        client._transport = Transport(settings)
        return client

    @property
    def address(self) -> str:
        return self._transport.settings.address

    @property
    def timeout(self) -> float:
        """How many seconds a call may take."""
        return self._transport.settings.timeout

    def queue(self, name: str) -> Queue:
        """A queue of the broker, whether it exists or not."""
        return Queue(self, name)

    def queues(self) -> list[QueueInfo]:
        """The queues that the token may see."""
        return self._retried("GET", "/v1/queues", _queues)

    def ready(self, timeout: Duration | None = None) -> None:
        """Waits until the broker answers and accepts the token."""
        self._retried("GET", "/v1/queues", _queues, timeout=timeout)

    def close(self) -> None:
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _once(
        self,
        method: str,
        path: str,
        read: Callable[[Any], T],
        *,
        json_body: object = None,
        content: bytes | None = None,
        headers: Mapping[str, str | bytes] | None = None,
        seconds: float,
        waits: bool = False,
    ) -> T:
        """One request, with a body of JSON or of bytes. ``read`` gets the JSON of the answer, and
        fails where that is not the answer to this request."""
        if json_body is not None:
            content = to_json(json_body)
            headers = {"Content-Type": "application/json", **(headers or {})}
        fields = self._transport.call(
            method, path, content=content, headers=headers, seconds=seconds, waits=waits
        )
        return parsed(self.address, read, fields)

    def _retried(
        self,
        method: str,
        path: str,
        read: Callable[[Any], T],
        *,
        timeout: Duration | None = None,
        **request: Any,
    ) -> T:
        """A request that may be repeated, until it is answered or the time is over."""
        most = self.timeout if timeout is None else seconds(timeout)

        def call(left: float) -> T:
            return self._once(method, path, read, seconds=min(left, TRY_SECONDS), **request)

        return self._until(most, call)

    def _until(self, most: float, call: Callable[[float], T]) -> T:
        """Calls until there is an answer or an error that is not retried. ``call`` gets the seconds
        that are left."""
        retry = Retry(most)
        while True:
            try:
                return call(retry.left())
            except Error as error:
                pause = retry.pause_after(error)
                if pause is None:
                    raise
            sleep(pause)


def _queues(fields: Any) -> list[QueueInfo]:
    return [read_queue(it) for it in fields["queues"]]
