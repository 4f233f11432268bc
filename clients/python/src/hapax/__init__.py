"""Hapax, a durable message queue in which every message has an idempotency key.

    import hapax

    with hapax.Client() as client:
        answer = client.queue("orders").send("three lemons", key="order-42")

``AsyncClient`` is the same for asyncio, ``Worker`` runs handlers. ``hapax.inbox`` and
``hapax.outbox`` join messages and your own database, ``hapax.asgi`` protects HTTP services by
idempotency keys, ``hapax.testing`` starts a broker for tests.
"""

from . import asgi, inbox, outbox, testing
from ._async.claim import AsyncClaim
from ._async.client import AsyncClient
from ._async.queue import AsyncQueue
from ._errors import (
    Conflict,
    Error,
    Forbidden,
    InFlight,
    Internal,
    Invalid,
    InvalidConfig,
    LeaseLost,
    MalformedKey,
    MissingKey,
    NoSuchKey,
    NoSuchQueue,
    OverQuota,
    RateLimited,
    StoreFull,
    TimedOut,
    TooLarge,
    TooOld,
    Unauthorized,
    Unavailable,
    UndatedKey,
    Unreachable,
)
from ._failure import Dead, Fail, InDoubt
from ._keys import derive, new_key
from ._model import (
    Answer,
    Blob,
    Delivery,
    Done,
    Emit,
    Event,
    Key,
    Message,
    Page,
    QueueConfig,
    QueueInfo,
    Redrive,
    Result,
    Settled,
    State,
)
from ._sync.claim import Claim
from ._sync.client import Client
from ._sync.queue import Queue
from ._time import Duration
from ._worker.context import BlockingContext, Context
from ._worker.lane import LaneHealth, WorkerEvent
from ._worker.worker import Handler, Health, Worker

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "AsyncClaim",
    "AsyncClient",
    "AsyncQueue",
    "Blob",
    "BlockingContext",
    "Claim",
    "Client",
    "Conflict",
    "Context",
    "Dead",
    "Delivery",
    "Done",
    "Duration",
    "Emit",
    "Error",
    "Event",
    "Fail",
    "Forbidden",
    "Handler",
    "Health",
    "InDoubt",
    "InFlight",
    "Internal",
    "Invalid",
    "InvalidConfig",
    "Key",
    "LaneHealth",
    "LeaseLost",
    "MalformedKey",
    "Message",
    "MissingKey",
    "NoSuchKey",
    "NoSuchQueue",
    "OverQuota",
    "Page",
    "Queue",
    "QueueConfig",
    "QueueInfo",
    "RateLimited",
    "Redrive",
    "Result",
    "Settled",
    "State",
    "StoreFull",
    "TimedOut",
    "TooLarge",
    "TooOld",
    "Unauthorized",
    "Unavailable",
    "UndatedKey",
    "Unreachable",
    "Worker",
    "WorkerEvent",
    "asgi",
    "derive",
    "inbox",
    "new_key",
    "outbox",
    "testing",
]
