"""The identity of a request: its key, the key of its claim, and its fingerprint.

Claim key and fingerprint are lowercase hex of SHA-256 over a list of texts, each preceded by its
length in bytes as 8 bytes, little endian, so that different lists never have the same bytes:

| digest | of |
|---|---|
| claim key | ``hapax-http-claim-2``, namespace, tenant, method, route, key |
| fingerprint | ``hapax-http-request-2``, method, path, query, headers, body |

The layer for Rust uses BLAKE3 and the number 1, which Python's standard library does not have: a
Rust service and a Python service do not share keys.
"""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Sequence
from datetime import datetime, timezone

from . import _problem as problem
from ._stored import Headers

KEY_BYTES_MAX = 255
#: Headers that identify callers.
CREDENTIALS = (b"authorization", b"cookie", b"x-api-key")
#: Dates in keys are believed from here on.
DATED_FROM_MS = 1_451_606_400_000
DATED_AHEAD_MS = 24 * 60 * 60 * 1000
#: A word of 26 letters that would be a ULID of a time further ahead is none.
ULID_AHEAD_MS = 366 * 24 * 60 * 60 * 1000
CROCKFORD = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
WAIT_SECONDS_MAX = 60


def digest(*parts: str | bytes) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.hexdigest()


def claim_key(namespace: str, tenant: str, method: str, route: str, key: str) -> str:
    return digest("hapax-http-claim-2", namespace, tenant, method, route, key)


def fingerprint(
    method: str,
    path: bytes,
    query: bytes,
    headers: Headers,
    compared: Sequence[bytes],
    body: bytes,
) -> str:
    """What a retry must share with the first request."""
    parts: list[str | bytes] = ["hapax-http-request-2", method, path]
    parts.append(b"?" + query if query else b"")
    for name in compared:
        values = values_of(headers, name)
        parts += [name, str(len(values)), *values]
    return digest(*parts, body)


def values_of(headers: Headers, name: bytes) -> list[bytes]:
    return [value for header, value in headers if header.lower() == name]


def read_key(headers: Headers, name: bytes) -> str | None:
    """The key in a header: a structured-field string (RFC 8941), or the bare value."""
    values = values_of(headers, name)
    if not values:
        return None
    shown = name.decode()
    if len(values) > 1:
        raise problem.malformed_key(f"{shown} is given more than once")
    try:
        text = values[0].decode().strip(" \t")
    except UnicodeDecodeError:
        raise problem.malformed_key(f"{shown} is not UTF-8") from None
    if text.startswith('"'):
        return _unquote(text)
    if re.search(r'[ \t,"]', text):
        detail = 'a key with spaces, commas or quotes must be quoted: "KEY"'
        raise problem.malformed_key(detail)
    return text


def _unquote(text: str) -> str:
    quoted = re.fullmatch(r'"((?:[^"\\]|\\["\\])*)"', text)
    if quoted is None:
        raise problem.malformed_key(
            "the key is not a quoted string: it needs one closing quote at its end, and a "
            'backslash only before " and \\'
        )
    return re.sub(r'\\(["\\])', r"\1", quoted.group(1))


def check_key(key: str) -> None:
    size = len(key.encode())
    if not 1 <= size <= KEY_BYTES_MAX:
        raise problem.malformed_key(f"a key has 1 to {KEY_BYTES_MAX} bytes, this one has {size}")
    if any(ord(it) < 0x20 or ord(it) == 0x7F for it in key):
        raise problem.malformed_key("a key must not have control characters")
    dated = date(key)
    if dated is not None and dated.timestamp() * 1000 > time.time() * 1000 + DATED_AHEAD_MS:
        raise problem.malformed_key(
            "the date of the key is more than a day in the future: check the clock of the client"
        )


def missing(headers: Headers, name: bytes) -> problem.Problem:
    """The error of a missing key, with a hint if the client sent a similar header."""
    shown = name.decode()
    for header, _ in headers:
        plain = re.sub("[^a-z0-9]", "", header.decode("latin-1").lower())
        if "idempoten" in plain or "idempotan" in plain or "idemkey" in plain:
            return problem.missing_key(
                f"this route requires a key: the request has the header {header.decode('latin-1')}"
                f", but the key's header is {shown}"
            )
    return problem.missing_key(f"this route requires a key: send the header {shown}")


def date(key: str) -> datetime | None:
    """The date in a UUIDv7 or a ULID of a plausible time. The broker cannot read it, because it
    gets a digest of the key."""
    now_ms = time.time() * 1000
    made = _uuid_ms(key)
    if made is None or made < DATED_FROM_MS:
        made = _ulid_ms(key)
        if made is None or not DATED_FROM_MS <= made <= now_ms + ULID_AHEAD_MS:
            return None
    try:
        return datetime.fromtimestamp(made / 1000, timezone.utc)
    except (ValueError, OverflowError, OSError):
        return datetime.max.replace(tzinfo=timezone.utc)


def _uuid_ms(key: str) -> int | None:
    if not re.fullmatch(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}", key):
        return None
    value = uuid.UUID(key)
    return value.int >> 80 if value.version == 7 else None


def _ulid_ms(key: str) -> int | None:
    if len(key) != 26:
        return None
    number = 0
    for place, letter in enumerate(key.upper()):
        digit = CROCKFORD.find(letter)
        if digit < 0 or (place == 0 and digit > 7):
            return None
        number = number << 5 | digit
    return number >> 80


def wait(headers: Headers) -> int | None:
    """``Prefer: wait=SECONDS`` (RFC 7240): how long the client wants to wait. A preference is never
    an error; of two the first counts."""
    for value in values_of(headers, b"prefer"):
        for preference in value.decode("latin-1").split(","):
            name, _, number = preference.split(";")[0].partition("=")
            number = number.strip().strip('"')
            if name.strip().lower() == "wait" and re.fullmatch("[0-9]+", number):
                return min(int(number), WAIT_SECONDS_MAX)
    return None
