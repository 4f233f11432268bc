"""The inbox: effect and acknowledgement in one transaction of your own database.

    inbox = hapax.inbox.Inbox("billing")

    @worker.handler("orders")
    def take(message, context):
        with pool.connection() as db:                # psycopg, SQLAlchemy, Django, sqlite3
            return inbox.process(db, message, lambda: charge(db, message))

``process`` begins a transaction, inserts a row for the message, calls your function, stores its
result in the row and commits. A message that is delivered again finds the row: your function is not
called, and the stored result is returned. Create the table once: ``hapax sql inbox --dialect
postgres | psql shop`` (or ``--dialect sqlite``).

Everything else that your function does is repeated with every attempt. Put calls to other services
into steps, before the transaction, and follow-up messages into the outbox, in it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from . import _database as database
from ._async.queue import AsyncQueue
from ._errors import Error, Invalid, NoSuchKey, NoSuchQueue
from ._failure import Dead
from ._model import Blob, Delivery, Done, Key, QueueInfo, Result, to_blob
from ._sync.queue import Queue
from ._time import Duration, seconds

__all__ = ["Entered", "Inbox"]

#: How often a row may disappear between two statements before that is an error. It only does if
#: rows of messages in delivery are deleted.
TRIES = 3
NAME_BYTES_MAX = 80
#: The largest result that a queue takes by default.
RESULT_BYTES_MAX = 1024 * 1024
#: The most rows that are read at once.
PAGE = 1000

WHERE = """consumer = :consumer AND tenant = :tenant AND queue = :queue
  AND message_key = :key AND message_group = :message_group AND generation = :generation"""
ENTER = """INSERT INTO hapax_inbox
    (consumer, tenant, queue, message_key, message_group, generation, fence)
VALUES (:consumer, :tenant, :queue, :key, :message_group, :generation, :fence)
ON CONFLICT DO NOTHING"""
FOUND = f"SELECT result, result_type FROM hapax_inbox WHERE {WHERE}"  # noqa: S608
FINISH = f"""UPDATE hapax_inbox SET result = :result, result_type = :result_type
WHERE {WHERE} AND fence = :fence"""  # noqa: S608
SWEEP = f"DELETE FROM hapax_inbox WHERE {WHERE} AND fence = :fence"  # noqa: S608
OLD = {
    "postgres": """SELECT message_key, message_group, generation, fence,
    CAST(extract(epoch FROM entered_at) * 1000000 AS bigint)
FROM hapax_inbox
WHERE consumer = :consumer AND tenant = :tenant AND queue = :queue
  AND entered_at < now() - CAST(:older_ms AS bigint) * interval '1 millisecond'
  AND (entered_at, message_key, message_group, generation)
    > (timestamptz 'epoch' + CAST(:entered AS bigint) * interval '1 microsecond',
       CAST(:key AS text), CAST(:message_group AS text), CAST(:generation AS integer))
ORDER BY entered_at, message_key, message_group, generation LIMIT :most""",
    "sqlite": """SELECT message_key, message_group, generation, fence, entered_at_ms
FROM hapax_inbox
WHERE consumer = :consumer AND tenant = :tenant AND queue = :queue
  AND entered_at_ms < CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER) - :older_ms
  AND (entered_at_ms, message_key, message_group, generation)
    > (:entered, :key, :message_group, :generation)
ORDER BY entered_at_ms, message_key, message_group, generation LIMIT :most""",
}
_ID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


@dataclass(frozen=True)
class Entered:
    """Whether a message was processed before, and with which result."""

    is_first: bool
    result: Blob | None = None


class Inbox:
    """The inbox of a consumer: the part of a program whose effects are counted as one. All
    processes of one service are one consumer; two services that both act on a message are two. The
    name must stay the same as long as rows are kept.

    ``result_bytes_max`` is the queue's ``max_body_bytes``: a larger result is rolled back and makes
    the message dead, because it could not be settled.
    """

    def __init__(self, consumer: str, *, result_bytes_max: int = RESULT_BYTES_MAX) -> None:
        if not 1 <= len(consumer.encode()) <= NAME_BYTES_MAX:
            raise Invalid(f"the name of a consumer has 1 to {NAME_BYTES_MAX} bytes: {consumer!r}")
        self.consumer = consumer
        self._result_bytes_max = result_bytes_max

    # ---- The whole

    def process(
        self, connection: Any, message: Delivery, effect: Callable[[], Result]
    ) -> Blob | None:
        """Calls ``effect`` once per message, in a transaction of its own, and returns its result:
        of this call, or of the one that was committed before."""
        db = database.blocking(connection)
        with db.transaction():
            entered = self._enter(db, message)
            if not entered.is_first:
                return entered.result
            result = self._result(effect())
            self._finish(db, message, result)
        return result

    async def process_async(
        self, connection: Any, message: Delivery, effect: Callable[[], Awaitable[Result]]
    ) -> Blob | None:
        """Like ``process``, for asyncio."""
        db = database.awaiting(connection)
        async with db.transaction():
            entered = await self._enter_async(db, message)
            if not entered.is_first:
                return entered.result
            result = self._result(await effect())
            await self._finish_async(db, message, result)
        return result

    # ---- In a transaction of your own

    def enter(self, connection: Any, message: Delivery) -> Entered:
        """The first statement of your transaction, before any write. If the message was processed
        before, roll back and return the stored result."""
        return self._enter(database.blocking(connection), message)

    def finish(self, connection: Any, message: Delivery, result: Result = None) -> Blob | None:
        """The last statement of your transaction: stores the result. It is required, also without
        a result: it fails where a statement has failed and the COMMIT would be a rollback."""
        blob = self._result(result)
        self._finish(database.blocking(connection), message, blob)
        return blob

    async def enter_async(self, connection: Any, message: Delivery) -> Entered:
        """Like ``enter``, for asyncio."""
        return await self._enter_async(database.awaiting(connection), message)

    async def finish_async(
        self, connection: Any, message: Delivery, result: Result = None
    ) -> Blob | None:
        """Like ``finish``, for asyncio."""
        blob = self._result(result)
        await self._finish_async(database.awaiting(connection), message, blob)
        return blob

    def _enter(self, db: database.Blocking, message: Delivery) -> Entered:
        db.check_open()
        row = self._row(message)
        for _ in range(TRIES):
            if db.execute(ENTER, {**row, "fence": message.fence}) == 1:
                return Entered(is_first=True)
            found = db.query(FOUND, row)
            if found:
                return Entered(is_first=False, result=_stored(*found[0]))
        raise _vanished()

    async def _enter_async(self, db: database.Awaiting, message: Delivery) -> Entered:
        await db.check_open()
        row = self._row(message)
        for _ in range(TRIES):
            if await db.execute(ENTER, {**row, "fence": message.fence}) == 1:
                return Entered(is_first=True)
            found = await db.query(FOUND, row)
            if found:
                return Entered(is_first=False, result=_stored(*found[0]))
        raise _vanished()

    def _finish(self, db: database.Blocking, message: Delivery, result: Blob | None) -> None:
        if db.execute(FINISH, self._finished(message, result)) != 1:
            raise _rolled_back()

    async def _finish_async(
        self, db: database.Awaiting, message: Delivery, result: Blob | None
    ) -> None:
        if await db.execute(FINISH, self._finished(message, result)) != 1:
            raise _rolled_back()

    def _row(self, message: Delivery) -> dict[str, Any]:
        return {
            "consumer": self.consumer,
            "tenant": message.tenant,
            "queue": message.queue,
            "key": message.key or message.id,
            "message_group": message.group or "",
            "generation": message.generation,
        }

    def _finished(self, message: Delivery, result: Blob | None) -> dict[str, Any]:
        return {
            **self._row(message),
            "fence": message.fence,
            "result": None if result is None else result.body,
            "result_type": None if result is None else result.content_type,
        }

    def _result(self, result: Result) -> Blob | None:
        if isinstance(result, Done):
            raise TypeError(
                "a handler in a transaction returns a result without follow-ups: those of a worker "
                "that dies between commit and settle would be lost. Put them into the outbox"
            )
        blob = to_blob(result)
        if blob is not None and len(blob.body) > self._result_bytes_max:
            raise Dead(
                f"the result has {len(blob.body)} bytes, at most {self._result_bytes_max} can be "
                "stored; the transaction was rolled back"
            )
        return blob

    # ---- Sweeping

    def sweep(
        self, connection: Any, queue: Queue, tenant: str, *, keep: Duration | None = None
    ) -> int:
        """Deletes the rows that are older than the queue's retention, or ``keep``, and whose
        message has ended; returns how many. Call it from time to time, not in a transaction.

        The age of a row only decides when the broker is asked: a message may wait for any time.
        ``tenant`` is that of the client's token, as deliveries have it.
        """
        db = database.blocking(connection)
        rules = _Rules.of(queue.info(), keep)
        if rules is None:
            return 0
        page, swept = _Page(self, queue.name, tenant, rules), 0
        while True:
            with db.transaction():
                rows = page.take(db.query(OLD[db.dialect], page.parameters))
            ended = []
            for row in rows:
                try:
                    found: Key | Error = queue.key(row["key"], group=row["message_group"] or None)
                except (NoSuchKey, NoSuchQueue) as error:
                    found = error
                if rules.has_ended(row, found):
                    ended.append(row)
            with db.transaction():
                swept += sum(db.execute(SWEEP, row) for row in ended)
            if page.is_last:
                return swept

    async def sweep_async(
        self, connection: Any, queue: AsyncQueue, tenant: str, *, keep: Duration | None = None
    ) -> int:
        """Like ``sweep``, for asyncio."""
        db = database.awaiting(connection)
        rules = _Rules.of(await queue.info(), keep)
        if rules is None:
            return 0
        page, swept = _Page(self, queue.name, tenant, rules), 0
        while True:
            async with db.transaction():
                rows = page.take(await db.query(OLD[db.dialect], page.parameters))
            ended = []
            for row in rows:
                try:
                    group = row["message_group"] or None
                    found: Key | Error = await queue.key(row["key"], group=group)
                except (NoSuchKey, NoSuchQueue) as error:
                    found = error
                if rules.has_ended(row, found):
                    ended.append(row)
            async with db.transaction():
                for row in ended:
                    swept += await db.execute(SWEEP, row)
            if page.is_last:
                return swept


@dataclass(frozen=True)
class _Rules:
    """What matters of a queue's configuration."""

    older_ms: int
    #: Messages may come without a key, and the broker cannot be asked about those.
    allows_no_key: bool
    #: Whether the queue had no message that could still be delivered.
    is_empty: bool

    @classmethod
    def of(cls, info: QueueInfo, keep: Duration | None) -> _Rules | None:
        """``None`` where rows are kept for ever."""
        needed = info.config.get("retention_ms")
        if needed is None:
            return None
        older_ms = needed if keep is None else int(seconds(keep) * 1000)
        if older_ms < needed:
            raise Invalid(
                f"rows would be deleted after {older_ms} ms, but the queue {info.queue} remembers "
                f"keys for {needed} ms: a message could be processed twice"
            )
        counts = (info.stats.get(it, 0) for it in ("ready", "delayed", "leased", "parked", "dead"))
        return cls(older_ms, info.config.get("guarantee") != "exactly-once", not any(counts))

    def has_ended(self, row: dict[str, Any], found: Key | Error) -> bool:
        """Whether the message of a row cannot be delivered again."""
        if isinstance(found, Key):
            is_later = found.generation > row["generation"]
            return found.state in ("done", "discarded") or is_later
        if isinstance(found, NoSuchQueue):
            return True
        may_be_an_id = self.allows_no_key and _ID.fullmatch(row["key"]) is not None
        return not may_be_an_id or self.is_empty


class _Page:
    """The place of a sweep among the old rows, oldest first."""

    def __init__(self, inbox: Inbox, queue: str, tenant: str, rules: _Rules) -> None:
        self._names = {"consumer": inbox.consumer, "tenant": tenant, "queue": queue}
        self.is_last = False
        self.parameters: dict[str, Any] = {
            **self._names,
            "older_ms": rules.older_ms,
            "entered": 0,
            "key": "",
            "message_group": "",
            "generation": 0,
            "most": PAGE,
        }

    def take(self, rows: list[Any]) -> list[dict[str, Any]]:
        self.is_last = len(rows) < PAGE
        names = ("key", "message_group", "generation", "fence")
        read = [{**self._names, **dict(zip(names, row[:4], strict=True))} for row in rows]
        if rows:
            key, group, generation, _, entered = rows[-1]
            self.parameters |= {"key": key, "message_group": group}
            self.parameters |= {"generation": generation, "entered": entered}
        return read


def _stored(result: bytes | str | None, result_type: str | None) -> Blob | None:
    if result is None:
        return None
    # SQLite stores any type: a result may have been stored as text by another program.
    data = result.encode() if isinstance(result, str) else bytes(result)
    return Blob(data, result_type or None)


def _vanished() -> Invalid:
    return Invalid("the row of the message disappears as often as it is looked for")


def _rolled_back() -> Invalid:
    return Invalid(
        "the row of the message is gone: a statement has rolled the transaction back, so nothing "
        "was committed"
    )
