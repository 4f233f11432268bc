"""Messages on their way: which go into one request, which are answered, which are sent again."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import _wire as wire
from ._errors import Error, Invalid, TooLarge, Unavailable
from ._keys import new_key
from ._model import JSON_TYPE, Answer, Message, to_bytes, to_json
from ._retry import Retry

#: The broker's limits for a batch.
MESSAGES_MAX = 1000
BYTES_MAX = 8 * 1024 * 1024
#: What is around the messages, ``{"messages":[…]}``.
FRAME_BYTES = 64


def keyed(message: Message, key: str) -> Message:
    return message if message.key is not None else dataclasses.replace(message, key=key)


def one(answers: Sequence[Answer | Error]) -> Answer:
    """The answer to the only message of a list; raises its refusal."""
    (answer,) = answers
    if isinstance(answer, Error):
        raise answer
    return answer


class Sending:
    """A list of messages and their answers."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = messages
        self.keys = [new_key() if it.key is None else it.key for it in messages]
        self.answers: list[Answer | Error] = [_unsent()] * len(messages)
        #: The places of messages of which it is unknown whether an earlier try was accepted.
        self.unknown: set[int] = set()

    def parts(self) -> Iterator[Part]:
        """The messages by request, in their order. One that cannot be written is refused here, and
        its neighbours are sent all the same."""
        places: list[int] = []
        written: list[bytes] = []
        size = FRAME_BYTES
        for place, message in enumerate(self.messages):
            try:
                data = to_json(wire.write_message(message, self.keys[place]))
                is_large = len(data) + FRAME_BYTES > BYTES_MAX
                large = Large(self, place) if is_large else None
            except (TypeError, ValueError, AttributeError) as error:
                self.answers[place] = _unwritten(error)
                continue
            except Invalid as refused:
                self.answers[place] = refused
                continue
            is_full = len(places) == MESSAGES_MAX or size + len(data) + 1 > BYTES_MAX
            if places and (is_full or large is not None):
                yield from Batch(self, places, written).tries()
                places, written, size = [], [], FRAME_BYTES
            if large is not None:
                yield large
                continue
            places.append(place)
            written.append(data)
            size += len(data) + 1
        if places:
            yield from Batch(self, places, written).tries()

    def finish(self) -> list[Answer | Error]:
        """The answers. An error of a message that was sent without a key has the generated one, if
        it is unknown whether the message was accepted."""
        for place, answer in enumerate(self.answers):
            is_keyless = self.messages[place].key is None
            is_unknown = isinstance(answer, Error) and (answer.retryable or place in self.unknown)
            if isinstance(answer, Error) and is_keyless and is_unknown:
                self.answers[place] = _with_key(answer, self.keys[place])
        return self.answers


class Part:
    """The messages of one request."""

    path: str

    def __init__(self, sending: Sending, places: list[int]) -> None:
        self._sending = sending
        self._places = places
        self._omitted: list[tuple[int, str]] = []
        #: Whether the last try did not reach the broker.
        self.is_broken = False

    @property
    def is_answered(self) -> bool:
        return not self._places

    def content(self) -> bytes:
        raise NotImplementedError

    def headers(self) -> Mapping[str, str | bytes]:
        raise NotImplementedError

    def take(self, fields: Any) -> None:
        """Takes the answers to a try. What was refused and may succeed later stays."""
        answers = self._answers(fields)
        read = [
            wire.read_answer(it, self._sending.keys[place])
            for place, it in zip(self._places, answers, strict=True)
        ]
        again = []
        for index, (place, answer) in enumerate(zip(self._places, read, strict=True)):
            self._sending.answers[place] = answer
            if answers[index].get("result_omitted"):
                self._omitted.append((place, self._sending.keys[place]))
            if isinstance(answer, Error) and answer.retryable:
                again.append(index)
        self._keep(again)
        self.is_broken = False

    def refuse(self, error: Error) -> None:
        """A whole try was refused, or did not reach the broker."""
        for place in self._places:
            self._sending.answers[place] = error
        self.is_broken = isinstance(error, Unavailable)
        if error.retryable:
            self._sending.unknown.update(self._places)
        else:
            self._places = []

    def pause(self, retry: Retry) -> float | None:
        """Seconds to wait before the next try; ``None`` if there is none."""
        errors = [self._sending.answers[place] for place in self._places]
        waits = [it for it in errors if isinstance(it, Error)]
        if not waits:
            return None
        # The longest wait that any of them asks for.
        return retry.pause_after(max(waits, key=lambda error: error.retry_after or 0.0))

    def omitted(self) -> Sequence[tuple[int, str]]:
        """Messages whose results did not fit into the answer: they are looked up."""
        return self._omitted

    def _answers(self, fields: Any) -> list[Any]:
        raise NotImplementedError

    def _keep(self, indexes: list[int]) -> None:
        """Only these are sent again."""
        self._places = [self._places[index] for index in indexes]


class Batch(Part):
    path = "/batch"

    def __init__(self, sending: Sending, places: list[int], written: list[bytes]) -> None:
        super().__init__(sending, places)
        self._written = written
        self._halves: list[Batch] = []

    def tries(self) -> Iterator[Part]:
        """The batch, and its halves if it was refused because of its size."""
        yield self
        for half in self._halves:
            yield from half.tries()

    def refuse(self, error: Error) -> None:
        if not (isinstance(error, TooLarge) and len(self._places) > 1):
            super().refuse(error)
            return
        # A proxy may take smaller requests than the broker does.
        middle = len(self._places) // 2
        for part in (slice(middle), slice(middle, None)):
            self._halves.append(Batch(self._sending, self._places[part], self._written[part]))
        self._places = []

    def content(self) -> bytes:
        return b'{"messages":[%b]}' % b",".join(self._written)

    def headers(self) -> Mapping[str, str | bytes]:
        return {"Content-Type": JSON_TYPE}

    def _answers(self, fields: Any) -> list[Any]:
        answers: list[Any] = fields["answers"]
        return answers

    def _keep(self, indexes: list[int]) -> None:
        super()._keep(indexes)
        self._written = [self._written[index] for index in indexes]


class Large(Part):
    """A message that is too large for a batch: its body is that of the request."""

    path = "/messages"

    def __init__(self, sending: Sending, place: int) -> None:
        super().__init__(sending, [place])
        message = sending.messages[place]
        self._body = to_bytes(message.body)
        fields = wire.write_message(dataclasses.replace(message, body=b""), None)
        optional = {"Content-Type": message.content_type}
        for name in ("group", "delay_ms", "ttl_ms", "fingerprint", "issued_at"):
            if name in fields:
                optional[f"hapax-{name.replace('_', '-')}"] = str(fields[name])
        head = wire.write_head(optional, message.headers)
        self._headers = {"Idempotency-Key": wire.header_string(sending.keys[place]), **head}

    def content(self) -> bytes:
        return self._body

    def headers(self) -> Mapping[str, str | bytes]:
        return self._headers

    def _answers(self, fields: Any) -> list[Any]:
        return [fields]


def _with_key(error: Error, key: str) -> Error:
    """A copy with the generated key: one error may be that of several messages."""
    copy = type(error)(
        error.detail,
        retryable=error.retryable,
        retry_after=error.retry_after,
        request_id=error.request_id,
        key=key,
    )
    copy.__cause__ = error.__cause__
    return copy


def _unsent() -> Error:
    return Unavailable("the message was not sent, because the broker could not be reached before")


def _unwritten(error: Exception) -> Invalid:
    refused = Invalid(f"the message cannot be written: {error}")
    refused.__cause__ = error
    return refused
