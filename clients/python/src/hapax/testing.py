"""A broker for tests: a process with a directory of its own, on a free port of this machine.

    from hapax.testing import Broker

    with Broker() as broker, broker.client() as client:
        client.queue("orders").create()

With pytest there are fixtures: see ``hapax.pytest_plugin``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from ._async.client import AsyncClient
from ._http import TIMEOUT_SECONDS
from ._sync.client import Client

START_SECONDS = 60.0


class NoBroker(RuntimeError):
    """There is no broker to start, or it did not start."""


def binary() -> str:
    """The program: ``$HAPAX_BIN``, or ``hapax`` on the path."""
    named = os.environ.get("HAPAX_BIN")
    if named:
        if not Path(named).is_file():
            raise NoBroker(f"HAPAX_BIN names {named}, which is not a file")
        return named
    found = shutil.which("hapax")
    if found is None:
        raise NoBroker("there is no hapax on the path: install it, or set HAPAX_BIN")
    return found


class Broker:
    """A broker that can be killed and started again, on the same port and data. Its data ends with
    it."""

    def __init__(self, *arguments: str) -> None:
        """``arguments`` are further ones of ``hapax dev``."""
        self._arguments = arguments
        self._directory = Path(tempfile.mkdtemp(prefix="hapax-test-"))
        self._address = "127.0.0.1:0"
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"http://{self._address}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the broker does not run"
        return self._process.pid

    def client(self, *, timeout: float = TIMEOUT_SECONDS) -> Client:
        return Client(self.address, timeout=timeout)

    def async_client(self, *, timeout: float = TIMEOUT_SECONDS) -> AsyncClient:
        return AsyncClient(self.address, timeout=timeout)

    def start(self) -> None:
        """Starts it, and returns when it answers."""
        assert self._process is None, "the broker runs already"
        port_file = self._directory / "address"
        port_file.unlink(missing_ok=True)
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("HAPAX_")
        }
        command = [binary(), "dev", "--listen", self._address, "--port-file", str(port_file)]
        command += ["--data", str(self._directory / "data"), *self._arguments]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment
            )
        until = time.monotonic() + START_SECONDS
        while not (port_file.exists() and port_file.read_text().strip()):
            if self._process.poll() is not None or time.monotonic() > until:
                raise NoBroker(f"the broker did not start:\n{self.log()}")
            time.sleep(0.01)
        self._address = port_file.read_text().strip()
        with self.client(timeout=START_SECONDS) as client:
            client.ready()

    def kill(self) -> None:
        """Ends it as a crash would (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def stop(self) -> None:
        """Ends it in good order."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def log(self) -> str:
        """What it has logged so far."""
        return (self._directory / "log").read_text(errors="replace")

    def close(self) -> None:
        """Ends it and removes its data."""
        self.kill()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Broker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
