"""Keys: new ones, and those that are derived from a message."""

from __future__ import annotations

import hashlib
import os
import time
import uuid


def new_key() -> str:
    """A new key, a UUIDv7: it tells its date, so that the broker can refuse one that it may have
    forgotten.

    Make one key per logical operation, store it with the operation and use it for every retry.
    """
    milliseconds = time.time_ns() // 1_000_000
    random = int.from_bytes(os.urandom(10), "big")
    value = (milliseconds & 0xFFFF_FFFF_FFFF) << 80
    value |= 0x7 << 76 | (random >> 68 & 0xFFF) << 64
    value |= 0b10 << 62 | random & 0x3FFF_FFFF_FFFF_FFFF
    return str(uuid.UUID(int=value))


def derive(queue: str, group: str, key: str, generation: int, name: str) -> str:
    """Derives the key of what follows from a message: the same in every attempt, another one after
    a replay.

    Lowercase hex of the first 16 bytes of SHA-256 over six netstrings (``LENGTH:BYTES,``):
    ``hapax-2``, the queue, the group, the key, the generation as decimal, and the name. The group
    is empty unless the queue deduplicates per group.

    >>> derive("orders", "", "order-42", 0, "receipt")
    'ec2a383ce95827d036ed0a7ed7f64dff'
    """
    digest = hashlib.sha256()
    for part in ("hapax-2", queue, group, key, str(generation), name):
        data = part.encode()
        digest.update(b"%d:%b," % (len(data), data))
    return digest.digest()[:16].hex()
