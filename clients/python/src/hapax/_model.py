"""What is sent and what comes back: messages, answers, deliveries, results, keys, queues."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypedDict, Union

from ._keys import derive
from ._time import Duration, parse_time

State = Literal["ready", "delayed", "leased", "parked", "dead", "done", "discarded"]
JSON_TYPE = "application/json"


# Without NaN and the infinities, which are not JSON.
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def to_json(value: object) -> bytes:
    return _ENCODER.encode(value).encode()


def get_body(fields: Mapping[str, Any]) -> bytes:
    """The bytes of a body or a result, as text or in base64."""
    encoded = fields.get("body_base64")
    if encoded is not None:
        return base64.b64decode(encoded)
    return (fields.get("body") or "").encode()


def read_points(points: Mapping[str, Any] | None) -> dict[str, bytes]:
    return {name: get_body(point) for name, point in (points or {}).items()}


def to_bytes(body: str | bytes) -> bytes:
    if isinstance(body, str):
        return body.encode()
    if isinstance(body, (bytes, bytearray, memoryview)):
        return bytes(body)
    # Not bytes(7), which is seven zeros.
    raise TypeError(f"a body is str or bytes, not {type(body).__name__}")


@dataclass(frozen=True, slots=True)
class Blob:
    """Bytes with a content type: a result."""

    body: bytes
    content_type: str | None = None

    @classmethod
    def of_json(cls, value: object) -> Blob:
        return cls(to_json(value), JSON_TYPE)

    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True, slots=True)
class Message:
    """A message to send.

    A retry must repeat the key: make the key once per logical operation and store it with the
    operation. A message without a key gets a new UUIDv7 when it is sent, which protects against
    lost answers, but not against your program sending it again.
    """

    body: str | bytes = b""
    key: str | None = None
    content_type: str | None = None
    #: Messages of one group are delivered in order, in queues with ``order = "group"``.
    group: str | None = None
    #: Kept with the message and delivered to its worker.
    headers: Mapping[str, str] = field(default_factory=dict)
    #: Before the first delivery.
    delay: Duration | None = None
    #: The message is dead if it is not done by then.
    ttl: Duration | None = None
    #: What tells a retry from another operation, instead of body and group.
    fingerprint: str | None = None
    #: When the operation was issued, for keys without a date.
    issued_at: datetime | None = None

    @classmethod
    def of_json(cls, value: object, **fields: Any) -> Message:
        """A message with a JSON body and its content type."""
        return cls(to_json(value), content_type=JSON_TYPE, **fields)


@dataclass(frozen=True, slots=True)
class Emit:
    """A follow-up message, sent if and only if its parent is done.

    Without a key its key is derived from the parent's and ``name``, so that it is sent once.
    """

    queue: str
    name: str
    message: Message | str | bytes = b""


#: What a handler may return: nothing, text, bytes, JSON (a dict or a list), a Blob, or a Done.
Result = Union[None, str, bytes, Blob, dict[str, Any], list[Any]]


def to_blob(result: Result) -> Blob | None:
    if result is None or isinstance(result, Blob):
        return result
    if isinstance(result, (str, bytes, bytearray, memoryview)):
        return Blob(to_bytes(result))
    if isinstance(result, (dict, list)):
        return Blob.of_json(result)
    raise TypeError(
        f"a result is None, str, bytes, a dict, a list, a Blob or a Done, not {type(result)}"
    )


@dataclass(frozen=True, slots=True)
class Done:
    """The success of a message: a result, which every later send under the key gets, and
    follow-up messages."""

    result: Result = None
    emit: Sequence[Emit] = ()


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to a send: what the broker knows about the key. Every answer is a success: the
    broker has the message."""

    answer: Literal["accepted", "in_flight", "done", "dead", "parked"]
    key: str
    #: The id of the first message under the key.
    id: str
    state: State
    accepted_at: datetime
    attempts: int = 0
    result: Blob | None = None
    #: The last error of a dead message.
    error: str | None = None
    #: When the lease or the delay ends.
    deadline: datetime | None = None
    finished_at: datetime | None = None
    #: ``None`` while the message has not ended, and if the key is remembered for ever.
    remembered_until: datetime | None = None

    @property
    def is_new(self) -> bool:
        """Whether this send was the first of its key."""
        return self.answer == "accepted"

    @property
    def has_ended(self) -> bool:
        """Whether it is done, dead or parked."""
        return self.answer in ("done", "dead", "parked")

    @property
    def is_discarded(self) -> bool:
        """Whether it was discarded or purged: it is dead, and nothing is left to redrive."""
        return self.state == "discarded"


class Delivery:
    """A message, leased to a worker. It is read from the fields of the HTTP API when it is looked
    at: most handlers need few of them."""

    __slots__ = ("_fields", "lease", "lease_seconds")

    def __init__(self, fields: Mapping[str, Any]) -> None:
        self._fields = fields
        self.lease: str = fields["lease"]
        #: The length of the lease in seconds, counted from its receipt or its last extension.
        self.lease_seconds: float = fields["lease_ms"] / 1000

    def __repr__(self) -> str:
        return f"Delivery(queue={self.queue!r}, id={self.id!r}, attempt={self.attempt})"

    @property
    def fence(self) -> int:
        """Grows with every lease of the key: of two attempts the larger is the newer."""
        return int(self._fields["fence"])

    @property
    def tenant(self) -> str:
        return str(self._fields["tenant"])

    @property
    def queue(self) -> str:
        return str(self._fields["queue"])

    @property
    def key(self) -> str:
        return str(self._fields["key"])

    @property
    def id(self) -> str:
        return str(self._fields["id"])

    @property
    def attempt(self) -> int:
        """From 1 on."""
        return int(self._fields["attempt"])

    @property
    def generation(self) -> int:
        """The number of replays."""
        return int(self._fields["generation"])

    @property
    def group(self) -> str | None:
        group: str | None = self._fields["group"]
        return group

    @property
    def body(self) -> bytes:
        return get_body(self._fields)

    @property
    def content_type(self) -> str | None:
        return self._fields.get("content_type")

    @property
    def headers(self) -> Mapping[str, str]:
        return self._fields.get("headers") or {}

    @property
    def accepted_at(self) -> datetime:
        return parse_time(self._fields["accepted_at"])

    @property
    def deadline(self) -> datetime:
        """By the broker's clock: use ``lease_seconds`` and your own."""
        return parse_time(self._fields["deadline"])

    @property
    def recovery_points(self) -> Mapping[str, bytes]:
        """What earlier attempts saved."""
        return read_points(self._fields.get("recovery_points"))

    @property
    def keys_per_group(self) -> bool:
        """Whether the queue deduplicates per group."""
        return bool(self._fields.get("keys_per_group"))

    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)

    def derive(self, name: str) -> str:
        """The key of what follows from this message: use it as the idempotency key of calls to
        other services."""
        group = (self.group or "") if self.keys_per_group else ""
        return derive(self.queue, group, self.key, self.generation, name)


@dataclass(frozen=True, slots=True)
class Settled:
    """The answer to a settle."""

    answer: Literal["ok", "lease_lost"]
    #: Of the message, where it is told: after ``fail`` and ``park``, and if the lease was lost.
    state: State | None = None
    #: The new deadline of an extended lease, or the due time of a failed message.
    deadline: datetime | None = None
    #: The result of the winner, if the lease was lost and there is one.
    result: Blob | None = None

    @property
    def is_lost(self) -> bool:
        """Another worker has the message, or it is finished."""
        return self.answer == "lease_lost"


@dataclass(frozen=True, slots=True)
class Event:
    """One event in the history of a key."""

    at: datetime
    event: str
    worker: str | None
    #: The error of a failure, the name of a recovery point, the count of duplicates.
    detail: str | None


@dataclass(frozen=True, slots=True)
class Key:
    """Everything about a key."""

    key: str
    id: str
    state: State
    attempts: int
    generation: int
    group: str | None
    accepted_at: datetime
    finished_at: datetime | None
    remembered_until: datetime | None
    deadline: datetime | None
    #: The last worker.
    worker: str | None
    duplicates: int
    result: Blob | None
    #: The error of the last failure.
    error: str | None
    recovery_points: Mapping[str, bytes]
    history: Sequence[Event]
    #: The message, while it has not ended.
    body: bytes | None = None
    content_type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class QueueConfig(TypedDict, total=False):
    """The configuration of a queue, as in the HTTP API. A field that is left out has its default.

    ``None`` means no limit, and for ``retention_ms`` for ever.
    """

    guarantee: Literal["exactly-once", "at-least-once", "at-most-once"]
    order: Literal["none", "group"]
    dedup_scope: Literal["queue", "group"]
    retention_ms: int | None
    retry_horizon_ms: int
    undated_keys: Literal["accept", "refuse"]
    keep_bodies: bool
    lease_ms: int
    max_attempts: int
    backoff_min_ms: int
    backoff_max_ms: int
    delay_ms: int
    ttl_ms: int | None
    on_dead: Literal["pin", "rerun", "release"]
    on_group_dead: Literal["continue", "park"]
    on_lost: Literal["redeliver", "park"]
    max_body_bytes: int
    max_messages: int | None
    max_bytes: int | None
    sends_per_s: int | None


@dataclass(frozen=True, slots=True)
class QueueInfo:
    queue: str
    config: QueueConfig
    #: Counts, as in the HTTP API: ``ready``, ``delayed``, ``leased``, ``parked``, ``dead`` …
    stats: Mapping[str, int]
    paused: bool
    created_at: datetime
    #: For ``if_match``: with its quotes, as the broker sends it.
    etag: str


@dataclass(frozen=True, slots=True)
class Page:
    """Messages of one state. ``next`` is the cursor of the next page, ``None`` on the last."""

    messages: Sequence[Key]
    next: str | None


@dataclass(frozen=True, slots=True)
class Redrive:
    """The progress of a redrive."""

    id: str
    matched: int
    moved: int
    #: The dead messages, or keys, to look at.
    total: int
    #: Keys that were not dead.
    missing: Sequence[str]
    done: bool
    cancelled: bool = False
    dry_run: bool = False
