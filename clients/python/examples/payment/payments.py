"""The worker: charges an order at the bank, and writes the payment into its own database."""

from __future__ import annotations

import os
import sqlite3

import httpx2

import hapax
from hapax.inbox import Inbox

worker = hapax.Worker(concurrency=4)
inbox = Inbox("payments")
bank = httpx2.Client(base_url=os.environ["SHOP_BANK"], trust_env=False)


@worker.handler("orders")
def pay(message: hapax.Delivery, context: hapax.BlockingContext) -> hapax.Blob | None:
    order = message.json()

    def charge(key: str) -> str:
        # The bank takes a key: the same in every attempt, so it charges once.
        answer = bank.post("/charges", json=order, headers={"Idempotency-Key": key})
        if answer.status_code == 503:
            raise hapax.Fail("the bank did not answer", retry_in=0.1)
        answer.raise_for_status()
        receipt: str = answer.json()["receipt"]
        return receipt

    receipt = context.step("charge", charge)
    db = sqlite3.connect(os.environ["SHOP_DATABASE"], timeout=30)
    try:

        def write() -> str:
            row = (order["number"], receipt)
            db.execute("INSERT INTO payments (number, receipt) VALUES (?, ?)", row)
            return receipt

        # Row and message are one: after the commit a second delivery finds that it was done.
        return inbox.process(db, message, write)
    finally:
        db.close()


if __name__ == "__main__":
    worker.run()
