"""The format of a stored response, the bytes of a claim's result: the same in all languages.

| bytes | what |
|---|---|
| 1 | version: 1 |
| 1 | flags: 1 = the body was too large to be kept, and is absent |
| 2 | status, big endian |
| varint | how many headers follow |
| each | varint length, name in lowercase; varint length, value |
| the rest | body |
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

Headers = list[tuple[bytes, bytes]]

CONTENT_TYPE = "application/vnd.hapax.http-response"
VERSION = 1
NOT_KEPT = 1
#: Names and values of the headers of a stored response, with their lengths.
HEADERS_BYTES_MAX = 32 * 1024
#: Never stored: valid for one connection, one response or one caller only.
NEVER = frozenset(
    b"set-cookie date connection content-length transfer-encoding te trailer upgrade age "
    b"proxy-authenticate proxy-authorization keep-alive proxy-connection set-cookie2 "
    b"server-timing clear-site-data preference-applied idempotency-replayed".split()
)


@dataclass
class Response:
    """A whole response."""

    status: int
    headers: Headers
    #: ``None`` if it was too large to be stored.
    body: bytes | None


class Malformed(ValueError):
    """A result that is not a stored response of this release."""


def chosen(headers: Headers, only: Collection[bytes] | None) -> Headers:
    """The headers that are stored."""
    named = {
        name.strip().lower()
        for header, value in headers
        if header.lower() == b"connection"
        for name in value.split(b",")
    }
    return [
        (name.lower(), value)
        for name, value in headers
        if name.lower() not in NEVER
        and name.lower() not in named
        and (only is None or name.lower() in only)
    ]


def encode(response: Response) -> bytes:
    size = sum(len(name) + len(value) + 6 for name, value in response.headers)
    is_kept = response.body is not None and size <= HEADERS_BYTES_MAX
    data = bytearray([VERSION, 0 if is_kept else NOT_KEPT])
    data += response.status.to_bytes(2, "big")
    headers = response.headers if is_kept else []
    data += _varint(len(headers))
    for name, value in headers:
        data += _varint(len(name)) + name + _varint(len(value)) + value
    if is_kept and response.body is not None:
        data += response.body
    return bytes(data)


def decode(data: bytes) -> Response:
    if len(data) < 4:
        raise Malformed("it ends too early")
    if data[0] != VERSION:
        raise Malformed(f"it has version {data[0]}, which this release does not know")
    if data[1] & ~NOT_KEPT:
        raise Malformed(f"it has flags that this release does not know: {data[1]:#04x}")
    status, place = int.from_bytes(data[2:4], "big"), 4
    if not 100 <= status <= 999:
        raise Malformed(f"its status is {status}")
    count, place = _read_varint(data, place)
    headers: Headers = []
    for _ in range(count):
        name, place = _read_part(data, place)
        value, place = _read_part(data, place)
        if not re.fullmatch(b"[!#$%&'*+.^_`|~0-9a-z-]+", name) or not is_header_value(value):
            raise Malformed("it has an invalid header")
        headers.append((name, value))
    return Response(status, headers, None if data[1] & NOT_KEPT else data[place:])


def is_header_value(value: bytes) -> bool:
    return not re.search(rb"[\x00-\x08\x0a-\x1f\x7f]", value)


def _varint(number: int) -> bytes:
    data = bytearray()
    while number >= 0x80:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _read_varint(data: bytes, place: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if place >= len(data) or shift > 56:
            raise Malformed("it ends too early")
        byte = data[place]
        number |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return number, place


def _read_part(data: bytes, place: int) -> tuple[bytes, int]:
    length, place = _read_varint(data, place)
    if place + length > len(data):
        raise Malformed("it ends too early")
    return data[place : place + length], place + length
