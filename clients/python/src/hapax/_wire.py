"""JSON of the HTTP API: how messages are written, and answers are read."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from json.encoder import encode_basestring
from typing import Any
from urllib.parse import quote

from ._errors import Error, Invalid, from_problem
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
    QueueInfo,
    Redrive,
    Result,
    Settled,
    get_body,
    read_points,
    to_blob,
    to_bytes,
    to_json,
)
from ._text import cut
from ._time import Duration, milliseconds, parse_time, write_time

#: Smaller bodies are text wherever they can be.
TEXT_BYTES = 64 * 1024
#: What JSON writes in two characters, and in six.
_TWO = b'"\\\b\f\n\r\t'
_SIX = bytes(it for it in range(0x20) if it not in _TWO)


def put_body(fields: dict[str, Any], body: str | bytes) -> None:
    """As text, or in base64: where it is not UTF-8, and where text would take more room."""
    data = to_bytes(body)
    if len(data) > TEXT_BYTES:
        two, six = (len(data) - len(data.translate(None, delete=it)) for it in (_TWO, _SIX))
        if two + 5 * six > len(data) // 3:
            fields["body_base64"] = base64.b64encode(data).decode()
            return
    try:
        fields["body"] = data.decode()
    except UnicodeDecodeError:
        fields["body_base64"] = base64.b64encode(data).decode()


def segment(text: str) -> str:
    """A key or a name as one segment of a path. Dots alone would be resolved like those of a
    directory, and name something else."""
    return text.replace(".", "%2E") if text in (".", "..") else quote(text, safe="")


def write_message(message: Message, key: str | None) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if key is not None:
        fields["key"] = key
    put_body(fields, message.body)
    if message.content_type is not None:
        fields["content_type"] = message.content_type
    if message.group is not None:
        fields["group"] = message.group
    if message.headers:
        fields["headers"] = dict(message.headers)
    if message.delay is not None:
        fields["delay_ms"] = milliseconds(message.delay)
    if message.ttl is not None:
        fields["ttl_ms"] = milliseconds(message.ttl)
    if message.fingerprint is not None:
        fields["fingerprint"] = message.fingerprint
    if message.issued_at is not None:
        fields["issued_at"] = write_time(message.issued_at)
    return fields


def write_emit(emit: Emit) -> dict[str, Any]:
    message = emit.message if isinstance(emit.message, Message) else Message(emit.message)
    fields = write_message(message, message.key)
    # Its date is the time at which its parent is done.
    fields.pop("issued_at", None)
    return {"queue": emit.queue, "name": emit.name, **fields}


def write_blob(blob: Blob) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    put_body(fields, blob.body)
    if blob.content_type is not None:
        fields["content_type"] = blob.content_type
    return fields


def done_item(lease: str, done: Done) -> dict[str, Any]:
    item: dict[str, Any] = {"lease": lease, "do": "done"}
    blob = to_blob(done.result)
    if blob is not None:
        item["result"] = write_blob(blob)
    if done.emit:
        item["emit"] = [write_emit(emit) for emit in done.emit]
    return item


def write_item(item: Mapping[str, Any]) -> bytes:
    return to_json(item)


def done_without_result(lease: str) -> bytes:
    """The most frequent settle."""
    return b'{"lease":%b,"do":"done"}' % encode_basestring(lease).encode()


def fail_item(
    lease: str,
    error: str,
    delay: Duration | None = None,
    dead: bool = False,
    in_doubt: bool = False,
) -> dict[str, Any]:
    item: dict[str, Any] = {
        "lease": lease,
        "do": "park" if in_doubt else "fail",
        "error": cut(error),
    }
    if delay is not None:
        item["delay_ms"] = milliseconds(delay)
    if dead:
        item["dead"] = True
    return item


def extend_item(lease: str, length: Duration | None) -> dict[str, Any]:
    item: dict[str, Any] = {"lease": lease, "do": "extend"}
    if length is not None:
        item["lease_ms"] = milliseconds(length)
    return item


def save_item(lease: str, name: str, data: str | bytes) -> dict[str, Any]:
    item: dict[str, Any] = {"lease": lease, "do": "save", "name": name}
    put_body(item, to_bytes(data))
    return item


def as_done(result: Result | Done) -> Done:
    return result if isinstance(result, Done) else Done(result)


def read_blob(fields: Mapping[str, Any] | None) -> Blob | None:
    return None if fields is None else Blob(get_body(fields), fields.get("content_type"))


def read_answer(fields: Mapping[str, Any], key: str) -> Answer | Error:
    """The answer to one message of a batch, or the refusal in its place."""
    if fields["answer"] == "error":
        return from_problem(fields)
    return Answer(
        answer=fields["answer"],
        key=fields.get("key") or key,
        id=fields["id"],
        state=fields["state"],
        accepted_at=parse_time(fields["accepted_at"]),
        attempts=fields.get("attempts") or 0,
        result=read_blob(fields.get("result")),
        error=fields.get("error"),
        deadline=optional_time(fields, "deadline"),
        finished_at=optional_time(fields, "finished_at"),
        remembered_until=optional_time(fields, "remembered_until"),
    )


def answer_of_key(found: Key) -> Answer:
    """What a send under the key would be answered now."""
    answer: Any = found.state
    if found.state in ("ready", "delayed", "leased"):
        answer = "in_flight"
    elif found.state == "discarded":
        answer = "dead"
    return Answer(
        answer=answer,
        key=found.key,
        id=found.id,
        state=found.state,
        accepted_at=found.accepted_at,
        attempts=found.attempts,
        result=found.result,
        error=found.error if answer == "dead" else None,
        deadline=found.deadline,
        finished_at=found.finished_at,
        remembered_until=found.remembered_until,
    )


#: The answer to most settles.
OK = Settled("ok")
_OK = {"answer": "ok"}


def read_settled(fields: Mapping[str, Any]) -> Settled | Error:
    if fields == _OK:
        return OK
    if fields["answer"] == "error":
        return from_problem(fields)
    return Settled(
        answer=fields["answer"],
        state=fields.get("state"),
        deadline=optional_time(fields, "deadline"),
        result=read_blob(fields.get("result")),
    )


def read_key(fields: Mapping[str, Any]) -> Key:
    has_body = "body" in fields or "body_base64" in fields
    return Key(
        key=fields["key"],
        id=fields["id"],
        state=fields["state"],
        attempts=fields["attempts"],
        generation=fields["generation"],
        group=fields["group"],
        accepted_at=parse_time(fields["accepted_at"]),
        finished_at=optional_time(fields, "finished_at"),
        remembered_until=optional_time(fields, "remembered_until"),
        deadline=optional_time(fields, "deadline"),
        worker=fields.get("worker"),
        duplicates=fields["duplicates"],
        result=read_blob(fields.get("result")),
        error=fields.get("error"),
        recovery_points=read_points(fields.get("recovery_points")),
        history=tuple(
            Event(parse_time(it["at"]), it["event"], it["worker"], it["detail"])
            for it in fields.get("history") or ()
        ),
        body=get_body(fields) if has_body else None,
        content_type=fields.get("content_type"),
        headers=fields.get("headers") or {},
    )


def read_queue(fields: Mapping[str, Any]) -> QueueInfo:
    return QueueInfo(
        queue=fields["queue"],
        config=fields["config"],
        stats=fields["stats"],
        paused=fields["paused"],
        created_at=parse_time(fields["created_at"]),
        etag=fields["etag"],
    )


def read_page(fields: Mapping[str, Any]) -> Page:
    return Page(tuple(read_key(it) for it in fields["messages"]), fields.get("next"))


def read_redrive(fields: Mapping[str, Any]) -> Redrive:
    names = ("id", "matched", "moved", "total", "missing", "done", "cancelled", "dry_run")
    return Redrive(**{name: fields[name] for name in names if name in fields})


def read_deliveries(fields: Mapping[str, Any]) -> list[Delivery]:
    return [Delivery(it) for it in fields["messages"]]


def read_changed(fields: Mapping[str, Any]) -> None:
    """The answer to an operator's change of a key."""
    if not isinstance(fields["key"], str):
        raise TypeError("no key")


def read_nothing(fields: object) -> None:
    """An answer without a body."""
    if fields is not None:
        raise TypeError("a body")


def optional_time(fields: Mapping[str, Any], name: str) -> Any:
    text = fields.get(name)
    return None if text is None else parse_time(text)


def header_string(text: str) -> bytes:
    """A structured-field string (RFC 8941), in UTF-8, which the broker accepts in headers."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return header_value("the key", f'"{escaped}"')


def header_value(what: str, text: str) -> bytes:
    """The text of a header, in UTF-8. HTTP would drop spaces around it."""
    if re.search(r"[\x00-\x08\x0a-\x1f\x7f]|^[ \t]|[ \t]$", text):
        raise Invalid(f"{what} has control characters, or spaces around it")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{what} is not valid Unicode: {error}") from error


def write_head(
    fields: Mapping[str, str | None], kept: Mapping[str, str] | None
) -> dict[str, str | bytes]:
    """The fields of a message that travel as headers, and the headers that are kept with it."""
    head: dict[str, str | bytes] = {
        name: header_value(name, value) for name, value in fields.items() if value is not None
    }
    for name, value in (kept or {}).items():
        if not re.fullmatch("[!#$%&'*+.^_`|~0-9A-Za-z-]+", name):
            raise Invalid(f"the name of the header {name!r} has characters that HTTP does not take")
        head[f"hapax-header-{name}"] = header_value(f"the header {name}", value)
    return head
