"""The worker: its handlers, how it is started and stopped, and whether it is well."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import json
import os
import signal
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Any, TypeVar, Union

from .._async.client import AsyncClient
from .._errors import Invalid
from .._http import CONNECTIONS_MAX, TIMEOUT_SECONDS, Settings
from .._log import logger
from .._model import Delivery, Done, Result
from .._sync.client import Client
from .._time import Duration, seconds
from .context import BlockingContext, Context
from .lane import Lane, LaneHealth, Limits, WorkerEvent

Returned = Union[Result, Done]
AsyncHandler = Callable[[Delivery, Context], Awaitable[Returned]]
BlockingHandler = Callable[[Delivery, BlockingContext], Returned]
H = TypeVar("H", bound=Union[AsyncHandler, BlockingHandler])

CONCURRENCY = 16
DRAIN_SECONDS = 25.0
#: Of one queue: a receive, settles, extensions, and one to spare.
CONNECTIONS_PER_QUEUE = 4
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Handler(ABC):
    """A handler as a class. ``handle`` may be a coroutine, or block: then it runs in a thread and
    its context is a ``BlockingContext``."""

    #: The queue that it works on.
    queue: str
    #: Handlers that run at once; ``None`` for the worker's.
    concurrency: int | None = None
    prefetch: int | None = None
    lease: Duration | None = None

    @abstractmethod
    def handle(self, message: Delivery, context: Any) -> Any: ...


@dataclasses.dataclass(frozen=True)
class Health:
    """The state of a worker: ``ok`` while it works and the broker can be reached. One that was
    stopped, or has ended with an error, is not."""

    ok: bool
    is_stopping: bool
    queues: tuple[LaneHealth, ...]


@dataclasses.dataclass(frozen=True)
class _Registered:
    queue: str
    call: Callable[[Delivery, Any], Any]
    is_async: bool
    concurrency: int | None
    prefetch: int | None
    lease: Duration | None


class Worker:
    """Runs handlers for the messages of queues.

    ``client`` is an address, or a client whose settings it takes; by default ``$HAPAX_SERVER``.
    ``concurrency`` handlers of a queue run at once, and ``prefetch`` messages (by default as many)
    wait for a free one. ``lease`` is how long a message stays leased if this process dies, by
    default the queue's; leases are extended while the handlers run. ``name`` is shown in histories.
    ``drain_timeout`` is how long handlers may continue after a stop. ``health``, such as
    ``"0.0.0.0:8080"``, answers every HTTP request with the worker's state: 200 or 503.

    A worker can be started once.
    """

    def __init__(
        self,
        client: AsyncClient | Client | str | None = None,
        *,
        concurrency: int = CONCURRENCY,
        prefetch: int | None = None,
        lease: Duration | None = None,
        name: str | None = None,
        drain_timeout: Duration = DRAIN_SECONDS,
        observe: Callable[[WorkerEvent], None] | None = None,
        health: str | None = None,
    ) -> None:
        if isinstance(client, (AsyncClient, Client)):
            self._settings = client._transport.settings
        else:
            self._settings = Settings.of(client, None, TIMEOUT_SECONDS, None, None, CONNECTIONS_MAX)
        self._concurrency = concurrency
        self._prefetch = prefetch
        self._lease = lease
        self._name = name or _own_name()
        self._drain = seconds(drain_timeout)
        self._observe = observe
        self._health_address = health
        self._handlers: list[_Registered] = []
        self._lanes: list[Lane] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._give_up: asyncio.Event | None = None
        self._stop_asked = False
        self._has_ended = False
        self._thread: threading.Thread | None = None
        self._started = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self._error: BaseException | None = None

    # ---- Handlers

    def handler(
        self,
        queue: str,
        *,
        concurrency: int | None = None,
        prefetch: int | None = None,
        lease: Duration | None = None,
    ) -> Callable[[H], H]:
        """Makes a function the handler of a queue.

        A coroutine function gets a ``Context``. Any other function runs in a thread and gets a
        ``BlockingContext``. What it returns is the result; an exception fails the attempt.
        """

        def register(call: H) -> H:
            self._register(queue, call, concurrency, prefetch, lease)
            return call

        return register

    def add(self, handler: Handler) -> None:
        """Adds a handler that is an object."""
        self._register(
            handler.queue, handler.handle, handler.concurrency, handler.prefetch, handler.lease
        )

    def _register(
        self,
        queue: str,
        call: Callable[[Delivery, Any], Any],
        concurrency: int | None,
        prefetch: int | None,
        lease: Duration | None,
    ) -> None:
        if any(it.queue == queue for it in self._handlers):
            raise Invalid(f"the queue {queue} has a handler already")
        is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
            getattr(call, "__call__", None)  # noqa: B004
        )
        self._handlers.append(_Registered(queue, call, is_async, concurrency, prefetch, lease))

    # ---- Running

    def run(self) -> None:
        """Works until SIGTERM or SIGINT, and then drains. A second signal ends the drain.

        It waits for a broker that cannot be reached. A queue that does not exist, or an invalid
        token, ends it with an error.
        """

        async def main() -> None:
            loop = asyncio.get_running_loop()
            for number in STOP_SIGNALS:
                # Not in the main thread, or not on this platform: the caller has to stop it.
                with contextlib.suppress(ValueError, RuntimeError, NotImplementedError):
                    loop.add_signal_handler(number, self._signalled)
            await self.serve()

        asyncio.run(main())

    async def serve(self) -> None:
        """Works in the running event loop until ``stop`` is called."""
        if not self._handlers:
            raise Invalid("the worker has no handler: add one with @worker.handler(queue)")
        if self._loop is not None:
            raise Invalid("a worker can be started once")
        self._loop = asyncio.get_running_loop()
        self._stop, self._give_up = asyncio.Event(), asyncio.Event()
        if self._stop_asked:
            self._stop.set()
        most = CONNECTIONS_PER_QUEUE * len(self._handlers)
        client = AsyncClient._of(dataclasses.replace(self._settings, connections_max=most))
        self._lanes = [self._lane(client, it) for it in self._handlers]
        server = await self._serve_health()
        self._started.set()
        try:
            await self._run_lanes(self._stop, self._give_up)
        finally:
            self._has_ended = True
            if server is not None:
                server.close()
            await client.close()

    async def _run_lanes(self, stop: asyncio.Event, give_up: asyncio.Event) -> None:
        lanes = [asyncio.ensure_future(lane.run(stop, give_up)) for lane in self._lanes]
        try:
            await asyncio.wait(lanes, return_when=asyncio.FIRST_EXCEPTION)
            stop.set()  # One that fails ends the others, in good order.
            await asyncio.wait(lanes)
        except asyncio.CancelledError:
            # The program ends: what was begun is settled as far as that is possible at once.
            stop.set()
            give_up.set()
            await asyncio.wait(lanes)
            raise
        for lane in lanes:
            lane.result()

    def stop(self, *, give_up: bool = False) -> None:
        """Asks the worker to stop, from any thread: it takes no more messages, gives back those
        that no handler has begun with, and waits for the handlers. With ``give_up`` it does not
        wait for them."""
        self._stop_asked = True
        loop, stop, ends = self._loop, self._stop, self._give_up
        if loop is None or stop is None or ends is None:
            return
        with contextlib.suppress(RuntimeError):  # The loop is closed, and so it has ended.
            loop.call_soon_threadsafe(stop.set)
            if give_up:
                loop.call_soon_threadsafe(ends.set)

    def _signalled(self) -> None:
        if self._stop_asked:
            logger.warning("a second signal: handlers are stopped now")
            self.stop(give_up=True)
        else:
            logger.info("stopping: waiting for handlers, at most %.0f s", self._drain)
            self.stop()

    def start(self) -> None:
        """Works in a thread of its own, until ``join``. Also as ``with worker:``."""

        def main() -> None:
            try:
                asyncio.run(self.serve())
            except BaseException as error:
                self._error = error
            finally:
                self._started.set()

        self._thread = threading.Thread(target=main, name="hapax-worker", daemon=True)
        self._thread.start()
        self._started.wait()

    def join(self) -> None:
        """Stops a worker that was started in a thread, and waits for its end. Raises the error that
        ended it."""
        self.stop()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None:
            raise self._error

    def __enter__(self) -> Worker:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.join()

    async def __aenter__(self) -> Worker:
        self._task = asyncio.ensure_future(self.serve())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        if self._task is not None:
            await self._task

    def _lane(self, client: AsyncClient, it: _Registered) -> Lane:
        concurrency = max(1, it.concurrency or self._concurrency)
        prefetch = it.prefetch if it.prefetch is not None else self._prefetch
        lease = it.lease if it.lease is not None else self._lease
        limits = Limits(
            concurrency=concurrency,
            prefetch=concurrency if prefetch is None else max(0, prefetch),
            lease=None if lease is None else seconds(lease),
            drain=self._drain,
        )
        queue = client.queue(it.queue)
        return Lane(queue, it.call, it.is_async, self._name, limits, self._observe)

    # ---- Health

    def health(self) -> Health:
        lanes = tuple(lane.health() for lane in self._lanes)
        is_running = bool(lanes) and not self._stop_asked and not self._has_ended
        return Health(
            ok=is_running and all(lane.is_connected for lane in lanes),
            is_stopping=self._stop_asked,
            queues=lanes,
        )

    async def _serve_health(self) -> asyncio.AbstractServer | None:
        if self._health_address is None:
            return None
        host, _, port = self._health_address.rpartition(":")
        host = host.strip("[]") or "127.0.0.1"
        return await asyncio.start_server(self._answer_health, host, int(port))

    async def _answer_health(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5.0)
            health = self.health()
            body = json.dumps(dataclasses.asdict(health)).encode()
            status = "200 OK" if health.ok else "503 Service Unavailable"
            head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n"
            head += f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + body)
            await writer.drain()
        writer.close()


def _own_name() -> str:
    """Host and process."""
    return f"{socket.gethostname()[:40]}-{os.getpid()}"
