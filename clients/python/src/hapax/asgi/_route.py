"""Routes: which requests are protected, and where their key is found.

A pattern is methods and a path: ``POST /charges``, ``PUT,PATCH /orders/{order}``, ``POST
/files/{*path}``. ``{name}`` is one segment, ``{*name}`` the rest, at least one. A path is compared
as most services would read it: percent-encodings decoded, empty segments and dots resolved. A path
that only some of them would read as a protected one is detected, and the request refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Literal
from urllib.parse import unquote

#: Computes the key from the body of a request; ``None`` if there is none. A ``ValueError`` means
#: that the body cannot be read, and refuses the request.
KeyFrom = Callable[[bytes], "str | None"]

SAFE = ("GET", "HEAD", "OPTIONS", "TRACE", "CONNECT")
#: The most rounds of decoding.
DECODED_MAX = 4
Segment = tuple[Literal["literal", "any", "rest"], str]


class BadRoute(ValueError):
    def __init__(self, pattern: str, why: str) -> None:
        super().__init__(
            f"{pattern!r} is not a route: {why}; write it as 'POST /charges' or "
            "'PUT,PATCH /orders/{id}'"
        )


class Route:
    """A pattern of protected requests. The key is in a header, or in the body (``key_from``)."""

    def __init__(
        self,
        pattern: str,
        *,
        required: bool = True,
        key_header: str = "Idempotency-Key",
        key_from: KeyFrom | None = None,
    ) -> None:
        words = pattern.split()
        if len(words) != 2:
            raise BadRoute(pattern, "it is not a method and a path")
        self.methods = tuple(words[0].split(","))
        for method in self.methods:
            if method in SAFE:
                raise BadRoute(pattern, f"{method} is safe to repeat and needs no key")
            if not re.fullmatch("[A-Z]+", method):
                raise BadRoute(pattern, f"{method!r} is not a method in upper case")
        #: Part of a key's scope.
        self.path = words[1]
        self._segments = _segments(pattern, self.path)
        self.is_required = required
        self.key_header = key_header.lower().encode()
        self.key_from = key_from

    def __str__(self) -> str:
        return f"{','.join(self.methods)} {self.path}"

    def matches(self, method: str, path: Sequence[str]) -> bool:
        return method in self.methods and self._fits(path, str)

    def may_match(self, method: str, path: Sequence[str]) -> bool:
        """Whether some service would read the request as one for this route; the path is read
        loosely."""
        return method.upper() in self.methods and self._fits(path, str.lower)

    def _fits(self, path: Sequence[str], folded: Callable[[str], str]) -> bool:
        for index, (kind, literal) in enumerate(self._segments):
            if index >= len(path):
                return False
            if kind == "rest":
                return True
            if kind == "literal" and folded(literal) != path[index]:
                return False
        return len(path) == len(self._segments)


def read_path(path: str) -> list[str]:
    """The segments of a path, as most services read it."""
    return _resolved(unquote(part) for part in path.split("/"))


def read_loosely(path: str) -> list[str]:
    """The segments of a path, as loosely as any service might read it: double encodings are decoded
    before it is split, backslashes are slashes, parameters (``;``) and everything after a zero byte
    are cut off, and case is ignored."""
    text = path
    for _ in range(DECODED_MAX):
        if "%" not in text:
            break
        text = unquote(text)
    return _resolved(re.split("[;\0]", part)[0].lower() for part in re.split(r"[/\\]", text))


def _resolved(parts: Iterable[str]) -> list[str]:
    segments: list[str] = []
    for part in parts:
        if part in ("", "."):
            continue
        if part == "..":
            if segments:
                segments.pop()
            continue
        segments.append(part)
    return segments


def _segments(pattern: str, path: str) -> list[Segment]:
    if not path.startswith("/"):
        raise BadRoute(pattern, f"the path {path!r} does not begin with a slash")
    if "?" in path or "#" in path:
        raise BadRoute(pattern, "a path has no query; queries are compared with the key")
    segments: list[Segment] = []
    for text in path[1:].split("/") if path != "/" else ():
        if segments and segments[-1][0] == "rest":
            raise BadRoute(pattern, "nothing can follow a {*rest}")
        segments.append(_segment(pattern, text))
    return segments


def _segment(pattern: str, text: str) -> Segment:
    named = re.fullmatch(r"\{(\*?)(.*)\}", text)
    if named is not None:
        if not re.fullmatch(r"[A-Za-z0-9_]+", named.group(2)):
            raise BadRoute(pattern, f"{text!r} has no name of letters, digits and _")
        return ("rest" if named.group(1) else "any"), ""
    if re.search(r"[{}*]", text):
        raise BadRoute(pattern, f"{text!r} is not valid: a {{name}} must be a whole segment")
    if text in ("", ".", ".."):
        raise BadRoute(pattern, f"a segment must not be {text!r}")
    return "literal", unquote(text)
