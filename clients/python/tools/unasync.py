"""Writes ``src/hapax/_sync`` from ``src/hapax/_async``: the same code without asyncio.

    python tools/unasync.py           writes the files
    python tools/unasync.py --check   fails if they are not what would be written

``_io.py`` is not generated: it is where the two differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "hapax"
FILES = ("client.py", "queue.py", "claim.py")
HEAD = "# Generated from ../_async/{name} by tools/unasync.py. Do not edit.\n"
RULES = [
    (r"\basync def\b", "def"),
    (r"\basync (with|for)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bAsync(Client|Queue|Claim)\b", r"\1"),
    (r"\bAsyncIterator\b", "Iterator"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    (r"\bAwaitable, ", ""),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\b_async\b", "_sync"),
]


def blocking(text: str) -> str:
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    names = re.search(r"from collections\.abc import (.*)", text)
    if names:
        ordered = ", ".join(sorted(names.group(1).split(", ")))
        text = text.replace(names.group(0), f"from collections.abc import {ordered}")
    return text


def main() -> int:
    stale = []
    for name in FILES:
        source = (PACKAGE / "_async" / name).read_text()
        wanted = HEAD.format(name=name) + blocking(source)
        target = PACKAGE / "_sync" / name
        if "--check" not in sys.argv:
            target.write_text(wanted)
        elif not target.exists() or target.read_text() != wanted:
            stale.append(name)
    if stale:
        print(f"_sync is stale ({', '.join(stale)}): run python tools/unasync.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
