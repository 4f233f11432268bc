"""Errors in words."""

from __future__ import annotations

#: The longest error that the broker stores.
ERROR_BYTES_MAX = 4096


def describe(error: BaseException) -> str:
    """The error and its causes, as one text. Never fails, whatever the error is."""
    parts: list[str] = []
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        text, name = text_of(cause), type(cause).__name__
        parts.append(f"{name}: {text}" if text else name)
        if sum(map(len, parts)) > ERROR_BYTES_MAX:
            break
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return ": caused by ".join(parts)


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as failed:
        return f"(its text cannot be made: {type(failed).__name__})"


def cut(error: str) -> str:
    """An error as the broker stores it: as UTF-8, which not every text of Python is (``\\udcff``
    in the name of a file), and cut to its length at the end of a character."""
    data = error[:ERROR_BYTES_MAX].encode(errors="backslashreplace")
    return data[:ERROR_BYTES_MAX].decode(errors="ignore")
