"""Shared fixtures: a PostgreSQL of the tests' own, and the tables of inbox and outbox."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hapax.testing import binary


class Postgres:
    """A cluster in a temporary directory, behind a socket."""

    def __init__(self, programs: Path) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hapax-pg-", dir=memory()))
        self._programs = programs
        data = self.directory / "data"
        try:
            if os.geteuid() == 0:
                shutil.chown(self.directory, "postgres")
            initdb = [str(programs / "initdb"), "--pgdata", str(data), "--username", "postgres"]
            initdb += ["--auth", "trust", "--no-locale", "--encoding", "UTF8", "--no-sync"]
            subprocess.run(self._as_user(initdb), check=True, capture_output=True, cwd="/")
            settings = "listen_addresses= fsync=off full_page_writes=off shared_buffers=32MB"
            command = [str(programs / "postgres"), "-D", str(data), "-k", str(self.directory)]
            for setting in settings.split():
                command += ["-c", setting]
            with (self.directory / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    self._as_user(command),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd="/",
                )
            self._wait()
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        self._databases = 0

    @staticmethod
    def _as_user(command: list[str]) -> list[str]:
        """PostgreSQL refuses to run as root; Debian's package comes with a user for it."""
        prefix = ["setpriv", "--pdeathsig", "QUIT"]
        if os.geteuid() == 0:
            prefix += ["--reuid", "postgres", "--regid", "postgres", "--init-groups"]
        return [*prefix, "--", *command]

    def _wait(self) -> None:
        until = time.monotonic() + 300
        while self.psql("postgres", "SELECT 1", check=False) != 0:
            assert self._process.poll() is None, (self.directory / "log").read_text()
            assert time.monotonic() < until, (self.directory / "log").read_text()
            time.sleep(0.05)

    def psql(self, name: str, sql: str, *, check: bool = True) -> int:
        command = [str(self._programs / "psql"), "-h", str(self.directory), "-U", "postgres"]
        command += ["-XqtA", "-v", "ON_ERROR_STOP=1", "-d", name]
        done = subprocess.run(command, input=sql.encode(), capture_output=True, check=False)
        assert not check or done.returncode == 0, done.stderr.decode()
        return done.returncode

    def database(self) -> str:
        """A new database, with the tables of inbox and outbox."""
        self._databases += 1
        name = f"test_{self._databases}"
        self.psql("postgres", f"CREATE DATABASE {name}")
        for table in ("inbox", "outbox"):
            self.psql(name, tables(table, "postgres"))
        return name

    def close(self) -> None:
        self._process.send_signal(3)  # SIGQUIT: its immediate shutdown.
        self._process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def memory() -> str | None:
    """Where a directory costs no disk, if there is room: this data is thrown away."""
    place = "/dev/shm"
    has_room = Path(place).is_dir() and shutil.disk_usage(place).free > 512 * 1024 * 1024
    return place if has_room else None


def tables(table: str, dialect: str) -> str:
    """The statements that create a table, as the broker's program prints them."""
    command = [binary(), "sql", "--dialect", dialect, table]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    found = [it.parent for it in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    if not found:
        pytest.skip("PostgreSQL is not here: as root, apt-get install postgresql")
    cluster = Postgres(max(found, key=lambda it: float(it.parent.name)))
    yield cluster
    cluster.close()


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Waits for a condition, generously."""

    def wait(condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 300
        while not condition():
            assert time.monotonic() < end, "it did not happen"
            time.sleep(0.01)

    return wait
