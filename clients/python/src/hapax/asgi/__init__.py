"""Idempotency keys for HTTP services: an ASGI middleware, for FastAPI, Starlette and others.

    from hapax.asgi import Idempotency, IdempotencyMiddleware

    idempotency = Idempotency(hapax.AsyncClient().queue("charges"), required=["POST /charges"])
    app.add_middleware(IdempotencyMiddleware, idempotency=idempotency)

A client sends an ``Idempotency-Key`` with the request and the same key with every retry, and gets
the response of the first request. The key is claimed at the broker, and the response is stored as
the result of the claim, so any number of processes share the same keys. What a request gets in
which case is in the guide "HTTP with idempotency keys".
"""

from ._middleware import IdempotencyMiddleware
from ._operation import Operation, Remember
from ._route import BadRoute, Route
from ._rules import Idempotency

__all__ = [
    "BadRoute",
    "Idempotency",
    "IdempotencyMiddleware",
    "Operation",
    "Remember",
    "Route",
]
