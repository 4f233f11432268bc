"""A worker for tests: writes every message into a ledger, once, by its inbox in SQLite.

python ledger.py BROKER DATABASE QUEUE [blocking]
"""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import sys
import time

import hapax
from hapax.inbox import Inbox

_, address, database, queue, *kind = sys.argv
inbox = Inbox("ledger")
worker = hapax.Worker(address, concurrency=4, drain_timeout=60)


def write(message: hapax.Delivery) -> hapax.Blob | None:
    with contextlib.closing(sqlite3.connect(database, timeout=300)) as db:

        def effect() -> str:
            db.execute("INSERT INTO ledger (message_key) VALUES (?)", (message.key,))
            time.sleep(0.005)
            return f"entered {message.key}"

        return inbox.process(db, message, effect)


if kind:

    @worker.handler(queue)
    def block(message: hapax.Delivery, context: hapax.BlockingContext) -> hapax.Blob | None:
        return write(message)

else:

    @worker.handler(queue)
    async def handle(message: hapax.Delivery, context: hapax.Context) -> hapax.Blob | None:
        return await asyncio.get_running_loop().run_in_executor(None, write, message)


worker.run()
print("drained", flush=True)
