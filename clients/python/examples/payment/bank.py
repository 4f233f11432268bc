"""The bank: charges once per key, counts, and loses every fifth answer."""

from __future__ import annotations

import itertools
import os

import fastapi
import uvicorn

app = fastapi.FastAPI()
receipts: dict[str, str] = {}
charged: list[str] = []
calls = itertools.count(1)


@app.post("/charges")
def charge(
    number: str = fastapi.Body(),
    cents: int = fastapi.Body(),
    key: str = fastapi.Header(alias="Idempotency-Key"),
) -> dict[str, str]:
    if key not in receipts:
        charged.append(number)
        receipts[key] = f"receipt-{len(charged)}"
    if next(calls) % 5 == 0:
        raise fastapi.HTTPException(503, "the answer was lost")
    return {"receipt": receipts[key]}


@app.get("/charged")
def report() -> list[str]:
    return charged


if __name__ == "__main__":
    uvicorn.run(app, port=int(os.environ["SHOP_PORT"]), log_level="warning")
