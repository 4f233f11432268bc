"""The outbox: state and send in one transaction of your own database.

    with pool.connection() as db:
        db.execute("INSERT INTO orders …")
        hapax.outbox.send(db, "orders", "three lemons", key="order-42")

A message is a row that is written in your own transaction, so it is sent if and only if the
transaction commits. ``hapax relay --database postgres://…`` (or ``sqlite://PATH``) sends the rows
to the broker under their keys, and deletes them when they are confirmed. Create the table once:
``hapax sql outbox --dialect postgres | psql shop``.

``send`` takes connections of psycopg 3, SQLAlchemy 2 (also sessions), Django and sqlite3;
``send_async`` those of psycopg and SQLAlchemy for asyncio. It begins and commits nothing.
"""

from __future__ import annotations

import json as json_module
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from . import _database as database
from ._async.queue import _message
from ._errors import Invalid, MalformedKey
from ._keys import new_key
from ._model import Message, to_bytes
from ._time import Duration, milliseconds

__all__ = ["send", "send_async"]

KEY_BYTES_MAX = 255
COLUMNS = """INSERT INTO hapax_outbox (queue, message_key, message_group, body, content_type,
    headers, delay_ms, ttl_ms, fingerprint, {issued_at})
VALUES (:queue, :key, :message_group, :body, :content_type, {headers}, :delay_ms, :ttl_ms,
    :fingerprint, {date})"""
SEND = {
    "postgres": COLUMNS.format(
        issued_at="issued_at",
        headers="CAST(CAST(:headers AS text) AS jsonb)",
        date="to_timestamp(CAST(:issued_at_ms AS bigint) / CAST(1000.0 AS double precision))",
    ),
    "sqlite": COLUMNS.format(issued_at="issued_at_ms", headers=":headers", date=":issued_at_ms"),
}


def send(
    connection: Any,
    queue: str,
    body: str | bytes | Message = b"",
    *,
    key: str | None = None,
    json: object = None,
    content_type: str | None = None,
    group: str | None = None,
    headers: Mapping[str, str] | None = None,
    delay: Duration | None = None,
    ttl: Duration | None = None,
    fingerprint: str | None = None,
    issued_at: datetime | None = None,
) -> str:
    """Writes a message for a queue into the outbox, in the transaction of the connection. Returns
    its key, which is generated if there is none."""
    message = _message(
        body, json, key, content_type, group, headers, delay, ttl, fingerprint, issued_at
    )
    db = database.blocking(connection)
    row = _row(queue, message)
    db.execute(SEND[db.dialect], row)
    return str(row["key"])


async def send_async(
    connection: Any,
    queue: str,
    body: str | bytes | Message = b"",
    *,
    key: str | None = None,
    json: object = None,
    content_type: str | None = None,
    group: str | None = None,
    headers: Mapping[str, str] | None = None,
    delay: Duration | None = None,
    ttl: Duration | None = None,
    fingerprint: str | None = None,
    issued_at: datetime | None = None,
) -> str:
    """Like ``send``, for asyncio."""
    message = _message(
        body, json, key, content_type, group, headers, delay, ttl, fingerprint, issued_at
    )
    db = database.awaiting(connection)
    row = _row(queue, message)
    await db.execute(SEND[db.dialect], row)
    return str(row["key"])


def _row(queue: str, message: Message) -> dict[str, Any]:
    """The columns of a message. Refuses what every broker would refuse, while the transaction can
    still be rolled back."""
    key = new_key() if message.key is None else message.key
    if not queue:
        raise Invalid("the queue is empty")
    if not 1 <= len(key.encode()) <= KEY_BYTES_MAX:
        raise MalformedKey(
            f"a key has 1 to {KEY_BYTES_MAX} bytes, this one has {len(key.encode())}"
        )
    if any(ord(it) < 0x20 or ord(it) == 0x7F for it in key):
        raise MalformedKey("a key must not have control characters")
    if message.group == "":
        raise Invalid("the group is empty")
    issued_at = message.issued_at
    return {
        "queue": queue,
        "key": key,
        "message_group": message.group or "",
        "body": to_bytes(message.body),
        "content_type": message.content_type or "",
        "headers": json_module.dumps(dict(message.headers), ensure_ascii=False),
        "delay_ms": None if message.delay is None else milliseconds(message.delay),
        "ttl_ms": None if message.ttl is None else milliseconds(message.ttl),
        "fingerprint": message.fingerprint,
        "issued_at_ms": None if issued_at is None else int(issued_at.timestamp() * 1000),
    }
