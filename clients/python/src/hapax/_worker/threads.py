"""Threads for handlers that block.

They are daemons, unlike those of ``concurrent.futures``: a handler that does not return must not
keep the process from ending after its drain timeout.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Any


class Threads:
    def __init__(self, most: int, name: str) -> None:
        self._most = most
        self._name = name
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._started = 0
        self._idle = threading.Semaphore(0)

    async def run(self, call: Callable[[], Any]) -> Any:
        """Calls it in a thread. If the caller is cancelled, the call goes on and its outcome is
        dropped."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def deliver(value: Any, error: BaseException | None) -> None:
            if future.cancelled():
                return
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(error)

        def job() -> None:
            value, failure = None, None
            try:
                value = call()
            except BaseException as error:  # Reported by the caller, whatever it is.
                failure = _raisable(error)
            with contextlib.suppress(RuntimeError):  # The worker has ended, and with it its loop.
                loop.call_soon_threadsafe(deliver, value, failure)

        if not self._idle.acquire(blocking=False) and self._started < self._most:
            self._started += 1
            name = f"{self._name}-{self._started}"
            threading.Thread(target=self._work, name=name, daemon=True).start()
        self._jobs.put(job)
        return await future

    def close(self) -> None:
        """Ends the threads that have nothing to do."""
        for _ in range(self._started):
            self._jobs.put(None)

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            job()
            self._idle.release()


def _raisable(error: BaseException) -> BaseException:
    """An error that a future can have: it refuses these."""
    if isinstance(error, (StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError)):
        wrapped = RuntimeError(f"the handler raised {type(error).__name__}")
        wrapped.__cause__ = error
        return wrapped
    return error
