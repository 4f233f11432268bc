"""The API: takes orders. An order and the message about it are one transaction."""

from __future__ import annotations

import os
import sqlite3

import fastapi
import uvicorn

import hapax
from hapax import outbox
from hapax.asgi import Idempotency, IdempotencyMiddleware, Operation

app = fastapi.FastAPI()
# A retry of a customer gets the first answer. The queue only remembers answers.
# If this process dies, its keys are free again after the lease.
answers = hapax.AsyncClient().queue("http")
idempotency = Idempotency(answers, required=["POST /orders"], lease=2)
app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)


@app.post("/orders", status_code=201)
def order(request: fastapi.Request, cents: int = fastapi.Body(embed=True)) -> dict[str, str]:
    operation = Operation.of(request)
    assert operation is not None, "the route requires a key"
    # The same in every attempt: one that dies between its commit and its answer is repeated.
    number = operation.derive("order")
    with sqlite3.connect(os.environ["SHOP_DATABASE"], timeout=30) as db:
        insert = "INSERT INTO orders (number, cents) VALUES (?, ?) ON CONFLICT DO NOTHING"
        if db.execute(insert, (number, cents)).rowcount == 1:
            outbox.send(db, "orders", json={"number": number, "cents": cents}, key=number)
    return {"order": number}


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["SHOP_PORT"]), log_level="warning")
