"""A queue of a broker: sends, receives, settles, claims, keys and its configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote, urlencode

from .. import _batch as batch
from .. import _wire as wire
from .._errors import Error
from .._http import TRY_SECONDS
from .._keys import new_key
from .._model import (
    JSON_TYPE,
    Answer,
    Delivery,
    Done,
    Emit,
    Key,
    Message,
    Page,
    QueueConfig,
    QueueInfo,
    Redrive,
    Result,
    Settled,
    State,
    to_blob,
    to_bytes,
    to_json,
)
from .._retry import Retry
from .._time import Duration, milliseconds, seconds, write_time
from ._io import sleep
from .claim import AsyncClaim

if TYPE_CHECKING:
    from .client import AsyncClient

#: The longest wait of one call; longer ones take several.
WAIT_SECONDS_MAX = 20.0


class AsyncQueue:
    """A queue. Made by ``client.queue(name)``, whether or not it exists at the broker."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self.client = client
        self.name = name
        self._path = f"/v1/queues/{wire.segment(name)}"

    # ---- Sending

    async def send(
        self,
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
        timeout: Duration | None = None,
    ) -> Answer:
        """Sends a message and returns when it is durable.

        It is repeated under its key while the broker cannot be reached or answers with a retryable
        error, for at most the timeout (the client's by default). A known key is a success too: the
        answer tells what became of the first message. Another operation under a known key raises
        ``Conflict``.

        A message without a key gets one. If it is unknown whether the message was accepted, the
        error has that key.
        """
        message = _message(
            body, json, key, content_type, group, headers, delay, ttl, fingerprint, issued_at
        )
        return batch.one(await self._send([message], timeout))

    async def send_and_wait(
        self,
        body: str | bytes | Message = b"",
        *,
        wait: Duration,
        key: str | None = None,
        json: object = None,
        content_type: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        delay: Duration | None = None,
        ttl: Duration | None = None,
        fingerprint: str | None = None,
        issued_at: datetime | None = None,
    ) -> Answer:
        """Sends a message and waits until it is done, dead or parked, for at most ``wait``.

        If the time ends first, the answer is ``accepted`` or ``in_flight``: calling again with the
        same key continues to wait. Only the send has to be answered within ``wait``.
        """
        message = _message(
            body, json, key, content_type, group, headers, delay, ttl, fingerprint, issued_at
        )
        sent_key = new_key() if message.key is None else message.key
        retry = Retry(seconds(wait))
        try:
            keyed = batch.keyed(message, sent_key)
            answer = batch.one(await self._send([keyed], retry.left()))
            while not answer.has_ended and retry.left() > 0:
                waits = retry.left(WAIT_SECONDS_MAX)
                found = await self.key(sent_key, group=message.group, wait=waits)
                answer = wire.answer_of_key(found)
        except Error as error:
            if message.key is None and error.retryable:
                error.key = sent_key
            raise
        return answer

    async def send_all(
        self, messages: Iterable[Message | str | bytes], *, timeout: Duration | None = None
    ) -> list[Answer | Error]:
        """Sends many messages and returns their answers in order. An error in the list is the
        refusal of that message, and does not affect the others.

        Messages of one group keep their order unless one of them has to be retried. The timeout
        counts for each thousand messages.
        """
        listed = [it if isinstance(it, Message) else Message(it) for it in messages]
        return await self._send(listed, timeout)

    async def _send(
        self, messages: Sequence[Message], timeout: Duration | None
    ) -> list[Answer | Error]:
        sending = batch.Sending(messages)
        for part in sending.parts():
            retry = Retry(self.client.timeout if timeout is None else seconds(timeout))
            while not part.is_answered:
                try:
                    await self.client._once(
                        "POST",
                        self._path + part.path,
                        part.take,
                        content=part.content(),
                        headers=part.headers(),
                        seconds=retry.left(TRY_SECONDS),
                    )
                except Error as error:
                    part.refuse(error)
                pause = part.pause(retry)
                if pause is None:
                    break
                await sleep(pause)
            for place, key in part.omitted():
                try:
                    found = await self.key(key, group=messages[place].group, timeout=timeout)
                    sending.answers[place] = wire.answer_of_key(found)
                except Error as error:
                    sending.answers[place] = error
            if part.is_broken:
                break
        return sending.finish()

    # ---- Working

    async def receive(
        self,
        *,
        max: int = 10,
        wait: Duration = 0,
        lease: Duration | None = None,
        worker: str | None = None,
        receive_id: str | None = None,
        several_per_group: bool = False,
        timeout: Duration | None = None,
    ) -> list[Delivery]:
        """Leases up to ``max`` messages, waiting for the first for up to ``wait`` (at most a
        minute). The list is empty when the wait is over.

        All tries of a call have one receive id, so that a lost answer leaves nothing leased in
        vain. Leases are not extended here: see ``Worker``.
        """
        request: dict[str, Any] = {
            "max": max,
            "wait_ms": milliseconds(wait),
            "receive_id": receive_id or new_key(),
        }
        if lease is not None:
            request["lease_ms"] = milliseconds(lease)
        if worker is not None:
            request["worker"] = worker
        if several_per_group:
            request["several_per_group"] = True
        waits = seconds(wait)
        most = waits + (self.client.timeout if timeout is None else seconds(timeout))
        path, content = f"{self._path}/receive", to_json(request)

        async def call(left: float) -> list[Delivery]:
            headers = {"Content-Type": JSON_TYPE}
            return await self.client._once(
                "POST",
                path,
                wire.read_deliveries,
                content=content,
                headers=headers,
                seconds=min(left, waits + TRY_SECONDS),
                waits=waits > 0,
            )

        return await self.client._until(most, call)

    async def done(
        self, lease: Delivery | str, result: Result | Done = None, *, emit: Sequence[Emit] = ()
    ) -> Settled:
        """Finishes the message: stores the result and sends the follow-ups, atomically."""
        done = wire.as_done(result)
        if emit:
            done = Done(done.result, (*done.emit, *emit))
        return await self._settle_one(wire.done_item(_lease(lease), done))

    async def fail(
        self,
        lease: Delivery | str,
        error: str,
        *,
        retry_in: Duration | None = None,
        dead: bool = False,
    ) -> Settled:
        """The attempt failed and had no effect: the message is delivered again, or dead."""
        return await self._settle_one(wire.fail_item(_lease(lease), error, retry_in, dead))

    async def park(
        self,
        lease: Delivery | str,
        error: str,
        *,
        retry_in: Duration | None = None,
        dead: bool = False,
    ) -> Settled:
        """It is unknown whether the effect happened: a begun message of a queue with ``on_lost =
        "park"`` is parked. Otherwise this is ``fail``."""
        return await self._settle_one(wire.fail_item(_lease(lease), error, retry_in, dead, True))

    async def release(self, lease: Delivery | str) -> Settled:
        """Gives the message back without counting an attempt."""
        return await self._settle_one({"lease": _lease(lease), "do": "release"})

    async def extend(self, lease: Delivery | str, length: Duration | None = None) -> Settled:
        """Extends the lease, by default by the queue's lease."""
        return await self._settle_one(wire.extend_item(_lease(lease), length))

    async def begin(self, lease: Delivery | str) -> Settled:
        """Marks durably that an effect that cannot be repeated starts now."""
        return await self._settle_one({"lease": _lease(lease), "do": "begin"})

    async def save(self, lease: Delivery | str, name: str, data: str | bytes) -> Settled:
        """Stores a recovery point: the next attempt finds it in its delivery."""
        return await self._settle_one(wire.save_item(_lease(lease), name, data))

    async def _settle_one(
        self, item: Mapping[str, Any], timeout: Duration | None = None
    ) -> Settled:
        """Settles one lease; repeats it while the broker cannot be reached. The same settle again
        gets the same answer."""
        most = self.client.timeout if timeout is None else seconds(timeout)
        items = [wire.write_item(item)]

        async def call(left: float) -> Settled:
            (settled,) = await self._settle(items, min(left, TRY_SECONDS))
            if isinstance(settled, Error):
                raise settled
            return settled

        return await self.client._until(most, call)

    async def _settle(self, items: Sequence[bytes], most: float) -> list[Settled | Error]:
        """One try of settles, which are written already."""

        def read(fields: Any) -> list[Settled | Error]:
            answers = [wire.read_settled(it) for it in fields["answers"]]
            if len(answers) != len(items):
                raise ValueError(f"{len(items)} settles got {len(answers)} answers")
            return answers

        return await self.client._once(
            "POST",
            f"{self._path}/settle",
            read,
            content=b'{"items":[%b]}' % b",".join(items),
            headers={"Content-Type": JSON_TYPE},
            seconds=most,
        )

    # ---- Claims

    async def claim(
        self,
        key: str,
        body: str | bytes = b"",
        *,
        lease: Duration = 30,
        wait: Duration = 0,
        fingerprint: str | None = None,
        group: str | None = None,
        headers: Mapping[str, str] | None = None,
        worker: str | None = None,
        issued_at: datetime | None = None,
        timeout: Duration | None = None,
    ) -> AsyncClaim:
        """Claims a key, to do the work in this process: no message is delivered to a worker.

        ``body`` is for the fingerprint and is not stored. The claim is extended while it is held;
        ``lease`` is how long the key stays claimed if this process dies. ``wait`` is how long to
        wait for a caller that holds the key. All tries of a call have one claim id: if the answer
        to the first was lost, the next gets the same lease.
        """
        head: dict[str, str | bytes] = {
            "Idempotency-Key": wire.header_string(key),
            "hapax-lease-ms": str(milliseconds(lease)),
            "hapax-claim-id": new_key(),
        }
        optional = {"hapax-fingerprint": fingerprint, "hapax-group": group, "hapax-worker": worker}
        if issued_at is not None:
            optional["hapax-issued-at"] = write_time(issued_at)
        head |= wire.write_head(optional, headers)
        most = self.client.timeout if timeout is None else seconds(timeout)
        return await AsyncClaim._take(
            self, head, to_bytes(body), key, seconds(wait), most, seconds(lease)
        )

    # ---- Keys

    async def key(
        self,
        key: str,
        *,
        group: str | None = None,
        wait: Duration = 0,
        timeout: Duration | None = None,
    ) -> Key:
        """Everything about a key. With ``wait`` it returns when the message is done, dead or
        parked, or at the end of the wait (at most a minute). An unknown key raises ``NoSuchKey``.

        ``group`` is needed where keys belong to groups (``dedup_scope = "group"``).
        """
        retry = Retry(seconds(wait))
        most = seconds(wait) + (self.client.timeout if timeout is None else seconds(timeout))

        async def call(left: float) -> Key:
            waits = retry.left()
            query = {"wait_ms": milliseconds(waits)} if waits else None
            path = self._key_path(key, group, query)
            seconds = min(left, waits + TRY_SECONDS)
            return await self.client._once(
                "GET", path, wire.read_key, seconds=seconds, waits=waits > 0
            )

        return await self.client._until(most, call)

    async def forget(self, key: str, *, group: str | None = None) -> None:
        """Makes a finished key unknown again."""
        await self._on_key(key, group, "forget")

    async def replay(
        self, key: str, message: Message | str | bytes | None = None, *, group: str | None = None
    ) -> None:
        """Runs a finished message again, as its next generation. Unless the queue keeps bodies, the
        same message must be given again."""
        if message is None:
            await self._on_key(key, group, "replay")
            return
        message = message if isinstance(message, Message) else Message(message)
        optional = {
            "Content-Type": message.content_type,
            "hapax-group": message.group,
            "hapax-fingerprint": message.fingerprint,
        }
        head = wire.write_head(optional, message.headers)
        await self._on_key(key, group, "replay", content=to_bytes(message.body), headers=head)

    async def redrive_key(self, key: str, *, group: str | None = None) -> None:
        """Makes a dead message ready again."""
        await self._on_key(key, group, "redrive")

    async def discard(self, key: str, *, group: str | None = None) -> None:
        """Discards a message that is dead, parked or waiting. Its key stays remembered."""
        await self._on_key(key, group, "discard")

    async def resolve(
        self,
        key: str,
        do: Literal["done", "retry"],
        result: Result = None,
        *,
        group: str | None = None,
    ) -> None:
        """Resolves a parked message: its effect happened, or it is delivered again."""
        request: dict[str, Any] = {"do": do}
        blob = to_blob(result)
        if blob is not None:
            request["result"] = wire.write_blob(blob)
        await self._on_key(key, group, "resolve", json_body=request)

    async def _on_key(self, key: str, group: str | None, verb: str, **request: Any) -> None:
        """An operator's change, made once: repeated after a lost answer it may be refused, so look
        at the key before you try again."""
        path = self._key_path(key, group, verb=verb)
        seconds = self.client.timeout
        await self.client._once("POST", path, wire.read_changed, seconds=seconds, **request)

    def _key_path(
        self,
        key: str,
        group: str | None,
        query: Mapping[str, object] | None = None,
        verb: str | None = None,
    ) -> str:
        more = {**(query or {})}
        if group is not None:
            more["group"] = group
        path = f"{self._path}/keys/{wire.segment(key)}"
        if verb is not None:
            path += f"/{verb}"
        return f"{path}?{urlencode(more, quote_via=quote)}" if more else path

    # ---- The queue

    async def create(
        self, config: QueueConfig | None = None, *, if_match: str | None = None
    ) -> QueueInfo:
        """Creates the queue, or changes its configuration to this: a field that is left out has its
        default. With an etag it is refused if the queue has changed since."""
        headers = {"If-Match": if_match} if if_match is not None else None
        put = self.client._once if if_match is not None else self.client._retried
        more: dict[str, Any] = {"seconds": self.client.timeout} if if_match is not None else {}
        return await put(
            "PUT", self._path, wire.read_queue, json_body=config or {}, headers=headers, **more
        )

    async def info(self) -> QueueInfo:
        """The configuration and the counts of the queue."""
        return await self.client._retried("GET", self._path, wire.read_queue)

    async def delete(self) -> None:
        """Deletes the queue with its messages and keys."""
        seconds = self.client.timeout
        await self.client._once("DELETE", self._path, wire.read_nothing, seconds=seconds)

    async def pause(self) -> QueueInfo:
        """Delivers no more messages until ``resume``."""
        return await self.client._retried("POST", f"{self._path}/pause", wire.read_queue)

    async def resume(self) -> QueueInfo:
        return await self.client._retried("POST", f"{self._path}/resume", wire.read_queue)

    async def purge(self, *, keys: bool = False) -> QueueInfo:
        """Drops all messages. Keys stay remembered unless ``keys``."""
        request = {"keys": True} if keys else {}
        path = f"{self._path}/purge"
        return await self.client._retried("POST", path, wire.read_queue, json_body=request)

    async def browse(
        self, state: State = "ready", *, limit: int = 100, cursor: str | None = None
    ) -> Page:
        """A page of the messages in a state, the oldest first, without leasing them."""
        query: dict[str, object] = {"state": state, "limit": limit}
        if cursor is not None:
            query["cursor"] = cursor
        path = f"{self._path}/messages?{urlencode(query)}"
        return await self.client._retried("GET", path, wire.read_page)

    async def messages(self, state: State = "ready") -> AsyncIterator[Key]:
        """All messages in a state, page by page."""
        page = await self.browse(state)
        while True:
            for message in page.messages:
                yield message
            if page.next is None:
                return
            page = await self.browse(state, cursor=page.next)

    async def redrive(
        self,
        *,
        keys: Sequence[str] | None = None,
        group: str | None = None,
        filter: Mapping[str, str] | None = None,
        all: bool = False,
        dry_run: bool = False,
        per_s: int | None = None,
        id: str | None = None,
    ) -> Redrive:
        """Makes dead messages ready again: exactly one of ``keys``, ``filter`` and ``all``.

        All tries of a call have one id, so that none is moved twice.
        """
        request: dict[str, Any] = {"id": id or new_key(), "dry_run": dry_run}
        chosen: dict[str, object] = {"group": group, "filter": filter, "per_s": per_s}
        chosen |= {"keys": None if keys is None else list(keys), "all": all or None}
        request |= {name: value for name, value in chosen.items() if value is not None}
        path = f"{self._path}/redrive"
        return await self.client._retried("POST", path, wire.read_redrive, json_body=request)

    async def redrive_progress(self, id: str) -> Redrive:
        path = f"{self._path}/redrive/{wire.segment(id)}"
        return await self.client._retried("GET", path, wire.read_redrive)

    async def cancel_redrive(self, id: str) -> None:
        """Stops a redrive. What it has moved stays moved."""
        path, seconds = f"{self._path}/redrive/{wire.segment(id)}", self.client.timeout
        await self.client._once("DELETE", path, wire.read_redrive, seconds=seconds)


def _lease(lease: Delivery | str) -> str:
    return lease if isinstance(lease, str) else lease.lease


def _message(
    body: str | bytes | Message,
    json: object,
    key: str | None,
    content_type: str | None,
    group: str | None,
    headers: Mapping[str, str] | None,
    delay: Duration | None,
    ttl: Duration | None,
    fingerprint: str | None,
    issued_at: datetime | None,
) -> Message:
    """The message of a call: given whole, as a body, or as JSON."""
    rest = (key, content_type, group, headers, delay, ttl, fingerprint, issued_at)
    if isinstance(body, Message):
        if json is not None or any(it is not None for it in rest):
            raise ValueError("give a Message, or its fields, not both")
        return body
    if json is not None:
        if body:
            raise ValueError("give a body or json, not both")
        body, content_type = to_json(json), content_type or JSON_TYPE
    return Message(
        body,
        key=key,
        content_type=content_type,
        group=group,
        headers=headers or {},
        delay=delay,
        ttl=ttl,
        fingerprint=fingerprint,
        issued_at=issued_at,
    )
