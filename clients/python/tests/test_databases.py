"""Inbox and outbox, through every library, on PostgreSQL and SQLite."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import django
import psycopg
import pytest
import sqlalchemy
from conftest import Postgres, tables
from sqlalchemy import orm, text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

import hapax
from hapax import outbox
from hapax.inbox import Entered, Inbox
from hapax.testing import Broker, binary

#: How long SQLite waits for another transaction, whose commit may wait for a disk.
LOCKED_SECONDS = 300.0
INSERT = "INSERT INTO effects VALUES ('{}')"


class Database(Protocol):
    """One library on one database."""

    url: str

    def connect(self) -> contextlib.AbstractContextManager[Any]: ...

    def run(self, connection: Any, sql: str) -> list[Any]: ...


class Sqlite:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite://{path}"
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.executescript(tables("inbox", "sqlite") + tables("outbox", "sqlite"))
            db.execute("CREATE TABLE effects (id TEXT PRIMARY KEY)")
            db.commit()

    def connect(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.closing(sqlite3.connect(self.path, timeout=LOCKED_SECONDS))

    def run(self, connection: Any, sql: str) -> list[Any]:
        return list(connection.execute(sql).fetchall())


class Psycopg:
    def __init__(self, place: Postgres) -> None:
        self.name = place.database()
        self.place = place
        place.psql(self.name, "CREATE TABLE effects (id text PRIMARY KEY)")
        self.url = f"postgres://postgres@{quote(str(place.directory), safe='')}/{self.name}"

    def connect(self) -> contextlib.AbstractContextManager[Any]:
        return psycopg.connect(host=str(self.place.directory), user="postgres", dbname=self.name)

    def run(self, connection: Any, sql: str) -> list[Any]:
        cursor = connection.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []


class Alchemy:
    """A Connection of SQLAlchemy."""

    def __init__(self, below: Sqlite | Psycopg, is_session: bool = False) -> None:
        self.url = below.url
        if isinstance(below, Sqlite):
            self.engine = sqlalchemy.create_engine(
                f"sqlite:///{below.path}", connect_args={"timeout": LOCKED_SECONDS}
            )
        else:
            query = f"host={below.place.directory}&user=postgres"
            self.engine = sqlalchemy.create_engine(f"postgresql+psycopg:///{below.name}?{query}")
        self.is_session = is_session

    def connect(self) -> contextlib.AbstractContextManager[Any]:
        return orm.Session(self.engine) if self.is_session else self.engine.connect()

    def run(self, connection: Any, sql: str) -> list[Any]:
        result = connection.execute(text(sql))
        return [tuple(row) for row in result] if result.returns_rows else []


class Django:
    def __init__(self, alias: str, below: Sqlite | Psycopg) -> None:
        from django.db import connections

        self.url = below.url
        settings: dict[str, Any] = {"ENGINE": "django.db.backends.sqlite3"}
        if isinstance(below, Sqlite):
            settings |= {"NAME": str(below.path), "OPTIONS": {"timeout": LOCKED_SECONDS}}
        else:
            settings = {"ENGINE": "django.db.backends.postgresql", "NAME": below.name}
            settings |= {"HOST": str(below.place.directory), "USER": "postgres"}
        self.alias = alias
        connections.settings[alias] = connections.configure_settings(
            {"default": settings, alias: settings}
        )[alias]

    @contextlib.contextmanager
    def connect(self) -> Iterator[Any]:
        from django.db import connections

        connection = connections[self.alias]
        yield connection
        connection.close()

    def run(self, connection: Any, sql: str) -> list[Any]:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []


def configure_django() -> None:
    from django.conf import settings

    if not settings.configured:
        settings.configure(DATABASES={}, USE_TZ=True)
        django.setup()


KINDS = ["sqlite3", "psycopg"]
KINDS += [f"{kind}-{below}" for kind in ("alchemy", "session", "django") for below in KINDS]


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    kind, _, name = request.param.partition("-")
    is_postgres = "psycopg" in (kind, name)
    below: Sqlite | Psycopg
    if is_postgres:
        below = Psycopg(request.getfixturevalue("postgres"))
    else:
        below = Sqlite(tmp_path / "test.db")
    if kind in ("alchemy", "session"):
        return Alchemy(below, is_session=kind == "session")
    if kind == "django":
        configure_django()
        return Django(f"{name}-{tmp_path.name}", below)
    return below


def delivery(key: str = "k", **fields: Any) -> hapax.Delivery:
    empty: dict[str, Any] = {"lease": "l", "attempt": 1, "group": None, "lease_ms": 30000}
    usual = {
        "tenant": "default",
        "queue": "q",
        "id": f"id-{key}",
        "generation": 0,
        "fence": 1 << 40,
    }
    return hapax.Delivery({**empty, **usual, "key": key, **fields})


def effects(database: Database) -> list[str]:
    with database.connect() as db:
        return sorted(row[0] for row in database.run(db, "SELECT id FROM effects"))


def test_an_effect_happens_once_and_its_result_is_given_again(database: Database) -> None:
    inbox, calls = Inbox("billing"), []

    def process(message: hapax.Delivery, result: Any) -> hapax.Blob | None:
        with database.connect() as db:

            def effect() -> Any:
                calls.append(message.key)
                database.run(db, INSERT.format(f"{message.key}-{message.generation}"))
                return result

            return inbox.process(db, message, effect)

    bytes_result = hapax.Blob(b"\x00\xff", "x/y")
    assert process(delivery("a"), bytes_result) == bytes_result
    assert process(delivery("a", fence=1), "other") == bytes_result, "whatever the fence"
    assert process(delivery("A"), None) is None
    assert process(delivery("A"), "other") is None
    assert process(delivery("a", generation=1), {"n": 1}) == hapax.Blob.of_json({"n": 1})
    assert process(delivery("b", group="g"), "") == hapax.Blob(b"")
    assert calls == ["a", "A", "a", "b"]
    assert effects(database) == ["A-0", "a-0", "a-1", "b-0"]


def test_what_fails_is_rolled_back_and_may_be_done_again(database: Database) -> None:
    inbox = Inbox("billing", result_bytes_max=10)

    def attempt(then: Callable[[Any], Any]) -> hapax.Blob | None:
        with database.connect() as db:

            def effect() -> Any:
                database.run(db, INSERT.format("x"))
                return then(db)

            return inbox.process(db, delivery(), effect)

    with pytest.raises(ZeroDivisionError):
        attempt(lambda _: 1 / 0)
    with pytest.raises(hapax.Dead, match="rolled back"):
        attempt(lambda _: "x" * 11)
    with pytest.raises(TypeError, match="outbox"):
        attempt(lambda _: hapax.Done("x"))
    assert effects(database) == []

    def ignores_an_error(db: Any) -> str:
        with contextlib.suppress(Exception):
            database.run(db, INSERT.format("x"))
        return "done?"

    if "postgres" in database.url:
        # PostgreSQL would answer COMMIT with ROLLBACK, and nobody would notice.
        with pytest.raises(Exception, match=r"(?i)aborted|atomic"):
            attempt(ignores_an_error)
        assert effects(database) == []
    assert attempt(lambda _: "done") == hapax.Blob(b"done")
    assert effects(database) == ["x"]


def test_it_begins_its_own_transaction_and_refuses_to_be_a_part_of_another(
    database: Database,
) -> None:
    with database.connect() as db:
        if isinstance(database, Django):
            from django.db.transaction import atomic

            with atomic(using=database.alias), pytest.raises(RuntimeError, match="durable"):
                Inbox("billing").process(db, delivery(), lambda: None)
        else:
            database.run(db, INSERT.format("before"))
            with pytest.raises(hapax.Invalid, match="transaction already"):
                Inbox("billing").process(db, delivery(), lambda: None)


def test_a_connection_that_commits_by_itself_is_refused_before_a_row_is_written(
    database: Database,
) -> None:
    """Otherwise the row of a message whose effect failed would stay, and end it without effect."""
    inbox = Inbox("billing")

    def fails() -> None:
        raise ZeroDivisionError

    def enter(connection: Any) -> None:
        with pytest.raises(hapax.Invalid, match="by itself"):
            inbox.enter(connection, delivery())

    with database.connect() as db:
        if isinstance(database, Alchemy):
            for engine in (
                database.engine.execution_options(isolation_level="AUTOCOMMIT"),
                sqlalchemy.create_engine(database.engine.url, isolation_level="AUTOCOMMIT"),
            ):
                opened = orm.Session(engine) if database.is_session else engine.connect()
                with opened as own:
                    enter(own)
                    own.rollback()
                    with pytest.raises(hapax.Invalid, match="by itself"):
                        inbox.process(own, delivery(), fails)
                engine.dispose()
        elif isinstance(database, Django):
            enter(db)
            db.set_autocommit(False)
            with pytest.raises(hapax.Invalid, match="transaction already"):
                inbox.process(db, delivery(), fails)
            db.rollback()
            db.set_autocommit(True)
        else:
            if isinstance(database, Psycopg):
                db.autocommit = True
            else:
                db.isolation_level = None
            enter(db)
            # Its own transaction is one all the same.
            with pytest.raises(ZeroDivisionError):
                inbox.process(db, delivery(), fails)
    with database.connect() as db:
        assert database.run(db, "SELECT count(*) FROM hapax_inbox")[0][0] == 0


@pytest.mark.skipif(sys.version_info < (3, 12), reason="autocommit came with Python 3.12")
@pytest.mark.parametrize("autocommit", [True, False])
def test_sqlite_commits_and_rolls_back_in_both_modes_of_autocommit(
    tmp_path: Path, autocommit: bool
) -> None:
    database, inbox = Sqlite(tmp_path / "modes.db"), Inbox("modes")
    connect: Any = sqlite3.connect
    with contextlib.closing(connect(database.path, autocommit=autocommit)) as db:

        def effect() -> str:
            db.execute(INSERT.format("x"))
            return "R"

        def fails() -> None:
            db.execute(INSERT.format("y"))
            raise ZeroDivisionError

        assert inbox.process(db, delivery("a"), effect) == hapax.Blob(b"R")
        with pytest.raises(ZeroDivisionError):
            inbox.process(db, delivery("b"), fails)
    assert effects(database) == ["x"]


def test_two_deliveries_at_once_have_one_effect(database: Database) -> None:
    inbox, inside, results = Inbox("billing"), threading.Barrier(2), []

    def process() -> None:
        with database.connect() as db:

            def effect() -> str:
                database.run(db, INSERT.format("x"))
                return "done"

            inside.wait()
            results.append(inbox.process(db, delivery(), effect))

    threads = [threading.Thread(target=process) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [hapax.Blob(b"done")] * 2
    assert effects(database) == ["x"]


def test_a_loop_of_ones_own_enters_first_and_finishes_last(tmp_path: Path) -> None:
    database, inbox, message = Sqlite(tmp_path / "own.db"), Inbox("own"), delivery()
    with database.connect() as db:
        assert inbox.enter(db, message) == Entered(is_first=True)
        db.execute(INSERT.format("x"))
        assert inbox.finish(db, message, "R") == hapax.Blob(b"R")
        db.commit()
        assert inbox.enter(db, message) == Entered(is_first=False, result=hapax.Blob(b"R"))
        db.rollback()
        with pytest.raises(hapax.Invalid, match="is gone"):
            inbox.finish(db, delivery("never entered"))
    with pytest.raises(hapax.Invalid, match="not a connection"):
        inbox.enter(object(), message)
    with pytest.raises(hapax.Invalid, match="1 to 80 bytes"):
        Inbox("")


def test_rows_go_when_their_message_has_ended_and_not_before(
    database: Database, hapax_broker: Broker, hapax_queue: hapax.Queue
) -> None:
    hapax_queue.create({"retention_ms": 1000, "retry_horizon_ms": 0})
    inbox = Inbox("swept")
    keys = ["waits", "done", "discarded", "unknown"]
    with database.connect() as db:
        for key in keys:
            message = delivery(key, queue=hapax_queue.name)
            inbox.process(db, message, lambda: "R")
        hapax_queue.send_all([hapax.Message("x", key=key) for key in keys[:3]])
        hapax_queue.discard("discarded")
        received: list[hapax.Delivery] = []
        while len(received) < 2:
            received += hapax_queue.receive(max=2, wait=60, lease=600)
        for message in received:
            if message.key == "done":
                hapax_queue.done(message)
        with pytest.raises(hapax.Invalid, match="twice"):
            inbox.sweep(db, hapax_queue, "default", keep=0.5)
        swept = 0
        end = time.monotonic() + 300
        while time.monotonic() < end:
            swept += inbox.sweep(db, hapax_queue, "default")
            if swept == 3:
                break
            threading.Event().wait(0.05)
        assert swept == 3, "three that can never come again"
        assert inbox.sweep(db, hapax_queue, "another tenant") == 0
        found = database.run(db, "SELECT message_key FROM hapax_inbox")
    assert [row[0] for row in found] == ["waits"]


def test_a_message_is_sent_if_and_only_if_its_transaction_commits(
    database: Database, hapax_broker: Broker, hapax_client: hapax.Client, hapax_queue: hapax.Queue
) -> None:
    issued = datetime.now(timezone.utc)
    with database.connect() as db:
        with transaction(database, db):
            database.run(db, INSERT.format("x"))
            key = outbox.send(
                db,
                hapax_queue.name,
                b"\x00\xff",
                key="ä-1",
                content_type="x/y",
                group="g",
                headers={"Region": 'e"u'},
                fingerprint="f",
                issued_at=issued,
            )
            assert key == "ä-1"
            generated = outbox.send(db, hapax_queue.name, json={"n": 1})
        with contextlib.suppress(ZeroDivisionError), transaction(database, db):
            outbox.send(db, hapax_queue.name, "never", key="rolled back")
            _ = 1 / 0
        for bad in ({"key": ""}, {"key": "a\nb"}, {"key": "x" * 256}, {"group": ""}):
            with pytest.raises((hapax.MalformedKey, hapax.Invalid)):
                outbox.send(db, hapax_queue.name, "x", **bad)  # type: ignore[arg-type]
    with relay(hapax_broker, database.url):
        found = {it.key: it for it in hapax_queue.receive(max=1, wait=60)}
        found |= {it.key: it for it in hapax_queue.receive(max=1, wait=60)}
    assert set(found) == {"ä-1", generated}
    assert found["ä-1"].body == b"\x00\xff"
    assert found["ä-1"].content_type == "x/y"
    assert found["ä-1"].headers == {"Region": 'e"u'}
    assert found["ä-1"].group == "g"
    assert found[generated].json() == {"n": 1}
    with pytest.raises(hapax.NoSuchKey):
        hapax_queue.key("rolled back")


@contextlib.contextmanager
def transaction(database: Database, connection: Any) -> Iterator[None]:
    """A transaction as users of the library write it."""
    if isinstance(database, Psycopg):
        with connection.transaction():
            yield
    elif isinstance(database, Alchemy):
        with connection.begin():
            yield
    elif isinstance(database, Django):
        from django.db.transaction import atomic

        with atomic(using=database.alias):
            yield
    else:
        with connection:
            yield


@contextlib.contextmanager
def relay(broker: Broker, url: str) -> Iterator[None]:
    environment = {key: it for key, it in os.environ.items() if not key.startswith("HAPAX_")}
    command = [binary(), "relay", "--database", url, "--server", broker.address, "--poll", "100ms"]
    process = subprocess.Popen(
        command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("kind", ["psycopg", "connection", "session"])
def test_inbox_and_outbox_under_asyncio(
    kind: str, postgres: Postgres, hapax_broker: Broker, hapax_queue: hapax.Queue
) -> None:
    place = Psycopg(postgres)

    @contextlib.asynccontextmanager
    async def connect() -> Any:
        host, name = str(postgres.directory), place.name
        if kind == "psycopg":
            async with await psycopg.AsyncConnection.connect(
                host=host, user="postgres", dbname=name
            ) as connection:
                yield connection
            return
        url = f"postgresql+psycopg:///{name}?host={host}&user=postgres"
        engine = create_async_engine(url)
        async with AsyncSession(engine) if kind == "session" else engine.connect() as connection:
            yield connection
        await engine.dispose()

    async def main() -> None:
        inbox, calls = Inbox("async"), 0
        message = delivery("a", queue=hapax_queue.name)
        for _ in range(2):
            async with connect() as db:

                async def effect(db: Any = db) -> str:
                    nonlocal calls
                    calls += 1
                    await outbox.send_async(
                        db, hapax_queue.name, "next", key=message.derive("next")
                    )
                    return "R"

                assert await inbox.process_async(db, message, effect) == hapax.Blob(b"R")
        assert calls == 1
        async with connect() as db, hapax_broker.async_client() as client:
            queue = client.queue(hapax_queue.name)
            assert await inbox.sweep_async(db, queue, "default") == 0
            with pytest.raises(hapax.Invalid, match="asynchronous"):
                await inbox.enter_async(object(), message)

    asyncio.run(main())
    with relay(hapax_broker, place.url):
        (followed,) = hapax_queue.receive(wait=60)
    assert followed.key == hapax.derive(hapax_queue.name, "", "a", 0, "next")
