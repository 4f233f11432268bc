"""Your database, through the library you use: psycopg 3, SQLAlchemy 2, Django or sqlite3.

None of them is imported unless a connection of it is given. A statement is written once, with
parameters as ``:name``; here it is run the way of each library.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal, Protocol

from ._errors import Invalid

Dialect = Literal["postgres", "sqlite"]
Parameters = Mapping[str, Any]
Rows = list[Any]


class Blocking(Protocol):
    """A connection that blocks."""

    dialect: Dialect

    def execute(self, sql: str, parameters: Parameters) -> int:
        """Runs a statement and returns how many rows it changed."""

    def query(self, sql: str, parameters: Parameters) -> Rows: ...

    def transaction(self) -> contextlib.AbstractContextManager[object]:
        """A new transaction: committed at the end, rolled back by an exception."""

    def check_open(self) -> None:
        """Refuses a connection that would commit the next statement by itself."""


class Awaiting(Protocol):
    """A connection of asyncio."""

    dialect: Dialect

    async def execute(self, sql: str, parameters: Parameters) -> int: ...

    async def query(self, sql: str, parameters: Parameters) -> Rows: ...

    def transaction(self) -> contextlib.AbstractAsyncContextManager[object]: ...

    async def check_open(self) -> None: ...


def blocking(connection: Any) -> Blocking:
    """The adapter of a connection that blocks."""
    kinds = _kinds(connection)
    if "psycopg.Connection" in kinds:
        return _Psycopg(connection)
    if "sqlalchemy.Connection" in kinds or "sqlalchemy.Session" in kinds:
        return _Alchemy(connection)
    if "sqlalchemy.scoped_session" in kinds:
        return _Alchemy(connection())
    if "sqlite3.Connection" in kinds:
        return _Sqlite(connection)
    if hasattr(connection, "vendor") and hasattr(connection, "alias"):
        return _Django(connection)
    raise _unknown(connection, "psycopg, SQLAlchemy, Django or sqlite3")


def awaiting(connection: Any) -> Awaiting:
    """The adapter of a connection of asyncio."""
    kinds = _kinds(connection)
    if "psycopg.AsyncConnection" in kinds:
        return _AsyncPsycopg(connection)
    if "sqlalchemy.AsyncConnection" in kinds or "sqlalchemy.AsyncSession" in kinds:
        return _AsyncAlchemy(connection)
    raise _unknown(connection, "an asynchronous one of psycopg or SQLAlchemy")


def _kinds(connection: object) -> set[str]:
    """The classes of an object, by package and name."""
    return {f"{it.__module__.split('.')[0]}.{it.__name__}" for it in type(connection).__mro__}


def _unknown(connection: object, wanted: str) -> Invalid:
    name = f"{type(connection).__module__}.{type(connection).__name__}"
    return Invalid(f"a {name} is not a connection of {wanted}")


def _dialect(name: str) -> Dialect:
    if name == "postgresql":
        return "postgres"
    if name == "sqlite":
        return "sqlite"
    raise Invalid(f"{name} is not supported: PostgreSQL and SQLite are")


def _busy() -> Invalid:
    return Invalid(
        "the connection is in a transaction already: the inbox begins its own, because a message "
        "must not be settled before its transaction is committed"
    )


def _autocommit() -> Invalid:
    return Invalid(
        "the connection commits every statement by itself: message and effect need one transaction "
        "that is committed at its end"
    )


#: A parameter, and not a cast of PostgreSQL (``::``).
_NAMED = re.compile(r"(?<!:):(\w+)")


def _percent(sql: str) -> str:
    """Parameters as psycopg and Django want them."""
    return _NAMED.sub(r"%(\1)s", sql.replace("%", "%%"))


class _Psycopg:
    dialect: Dialect = "postgres"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Parameters) -> int:
        return int(self._connection.execute(_percent(sql), parameters).rowcount)

    def query(self, sql: str, parameters: Parameters) -> Rows:
        with self._connection.cursor(row_factory=_tuples()) as cursor:
            return list(cursor.execute(_percent(sql), parameters).fetchall())

    def transaction(self) -> contextlib.AbstractContextManager[object]:
        _check_idle(self._connection)
        transaction: contextlib.AbstractContextManager[object] = self._connection.transaction()
        return transaction

    def check_open(self) -> None:
        _check_open(self._connection)


class _AsyncPsycopg:
    dialect: Dialect = "postgres"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def execute(self, sql: str, parameters: Parameters) -> int:
        return int((await self._connection.execute(_percent(sql), parameters)).rowcount)

    async def query(self, sql: str, parameters: Parameters) -> Rows:
        async with self._connection.cursor(row_factory=_tuples()) as cursor:
            await cursor.execute(_percent(sql), parameters)
            return list(await cursor.fetchall())

    def transaction(self) -> contextlib.AbstractAsyncContextManager[object]:
        _check_idle(self._connection)
        transaction: contextlib.AbstractAsyncContextManager[object] = self._connection.transaction()
        return transaction

    async def check_open(self) -> None:
        _check_open(self._connection)


def _tuples() -> Any:
    from psycopg.rows import tuple_row

    return tuple_row


def _check_idle(connection: Any) -> None:
    from psycopg.pq import TransactionStatus

    if connection.info.transaction_status != TransactionStatus.IDLE:
        raise _busy()


def _check_open(connection: Any) -> None:
    from psycopg.pq import TransactionStatus

    if connection.autocommit and connection.info.transaction_status == TransactionStatus.IDLE:
        raise _autocommit()


class _Alchemy:
    """A Connection or a Session."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
        self.dialect = _dialect(bind.dialect.name)

    def execute(self, sql: str, parameters: Parameters) -> int:
        return int(self._connection.execute(_text(sql), parameters).rowcount)

    def query(self, sql: str, parameters: Parameters) -> Rows:
        return [tuple(row) for row in self._connection.execute(_text(sql), parameters)]

    def transaction(self) -> contextlib.AbstractContextManager[object]:
        if self._connection.in_transaction():
            raise _busy()
        transaction: contextlib.AbstractContextManager[object] = self._connection.begin()
        return transaction

    def check_open(self) -> None:
        connection = self._connection
        if hasattr(connection, "get_bind"):
            connection = connection.connection()
        _check_isolation(connection)


class _AsyncAlchemy:
    """An AsyncConnection or an AsyncSession."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
        self.dialect = _dialect(bind.dialect.name)

    async def execute(self, sql: str, parameters: Parameters) -> int:
        return int((await self._connection.execute(_text(sql), parameters)).rowcount)

    async def query(self, sql: str, parameters: Parameters) -> Rows:
        return [tuple(row) for row in await self._connection.execute(_text(sql), parameters)]

    def transaction(self) -> contextlib.AbstractAsyncContextManager[object]:
        if self._connection.in_transaction():
            raise _busy()
        transaction: contextlib.AbstractAsyncContextManager[object] = self._connection.begin()
        return transaction

    async def check_open(self) -> None:
        connection = self._connection
        if hasattr(connection, "get_bind"):
            connection = await connection.connection()
        _check_isolation(connection.sync_connection)


def _check_isolation(connection: Any) -> None:
    """With the isolation level AUTOCOMMIT, ``begin`` and ``commit`` do nothing."""
    level = connection.get_execution_options().get("isolation_level")
    if level is None:
        # That of ``create_engine``.
        level = getattr(connection.dialect, "_on_connect_isolation_level", None)
    if level == "AUTOCOMMIT":
        raise _autocommit()


def _text(sql: str) -> Any:
    from sqlalchemy import text

    return text(sql)


class _Django:
    """A connection of ``django.db``."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection
        self.dialect = _dialect(connection.vendor)

    def execute(self, sql: str, parameters: Parameters) -> int:
        with self._connection.cursor() as cursor:
            cursor.execute(_percent(sql), dict(parameters))
            return int(cursor.rowcount)

    def query(self, sql: str, parameters: Parameters) -> Rows:
        with self._connection.cursor() as cursor:
            cursor.execute(_percent(sql), dict(parameters))
            return [tuple(row) for row in cursor.fetchall()]

    def transaction(self) -> contextlib.AbstractContextManager[object]:
        from django.db.transaction import atomic

        if not self._connection.get_autocommit() and not self._connection.in_atomic_block:
            raise _busy()  # Django leaves the commit to the program then.
        # Durable: refuses to be a part of another transaction, which would commit later.
        transaction: contextlib.AbstractContextManager[object] = atomic(
            using=self._connection.alias, durable=True
        )
        return transaction

    def check_open(self) -> None:
        if self._connection.get_autocommit() and not self._connection.in_atomic_block:
            raise _autocommit()


class _Sqlite:
    """A connection of the standard library."""

    dialect: Dialect = "sqlite"

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, parameters: Parameters) -> int:
        return int(self._connection.execute(sql, parameters).rowcount)

    def query(self, sql: str, parameters: Parameters) -> Rows:
        return [tuple(row) for row in self._connection.execute(sql, parameters).fetchall()]

    @contextlib.contextmanager
    def transaction(self) -> Iterator[object]:
        # With autocommit=False (Python 3.12) there is always a transaction.
        is_implicit = getattr(self._connection, "autocommit", None) is False
        if not is_implicit:
            if self._connection.in_transaction:
                raise _busy()
            self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield None
        except BaseException:
            self._end("ROLLBACK", is_implicit)
            raise
        self._end("COMMIT", is_implicit)

    def _end(self, statement: str, is_implicit: bool) -> None:
        # With autocommit=True (Python 3.12) commit() and rollback() do nothing.
        if is_implicit:
            self._connection.commit() if statement == "COMMIT" else self._connection.rollback()
        elif self._connection.in_transaction:
            self._connection.execute(statement)

    def check_open(self) -> None:
        # The next statement begins a transaction, unless the connection leaves that to its user.
        begins = self._connection.isolation_level is not None
        begins = begins and getattr(self._connection, "autocommit", None) is not True
        if not begins and not self._connection.in_transaction:
            raise _autocommit()
