"""A server that answers as the test wants: what proxies, load balancers and crashes make of a
broker's answers."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

#: Gets the path and the JSON of a request. Returns the bytes of a response, ``None`` to close the
#: connection without one, or an iterator of parts that are sent one by one.
Answer = Callable[[str, Any], Any]

ACCEPTED = {
    "answer": "accepted",
    "key": "k",
    "id": "i",
    "state": "ready",
    "accepted_at": "2026-01-01T00:00:00.000Z",
}


def response(body: bytes | object, status: str = "200 OK", **headers: str) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status}", f"content-length: {len(content)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + content


def delivery(key: str = "k", **fields: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "lease": f"lease-{key}",
        "fence": "1",
        "tenant": "default",
        "queue": "q",
        "key": key,
    }
    usual |= {"id": f"id-{key}", "attempt": 1, "generation": 0, "group": None, "body": "x"}
    return {**usual, "lease_ms": 60000, "recovery_points": {}, **fields}


class Fake:
    """Listens on a port of its own, and remembers what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self.asked: list[tuple[str, Any]] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._is_closed = False
        self.address = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Fake:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closed = True
        self._listener.close()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream:
            while True:
                try:
                    first = stream.readline().split()
                    if not first:
                        return
                    headers = dict(self._headers(stream))
                    length = int(headers.get("content-length", "0"))
                    body = stream.read(length)
                    if len(body) < length:
                        return  # The client was stopped while it sent this: it asked nothing.
                    path = first[1].decode()
                    fields = json.loads(body) if body.startswith(b"{") else body
                    self.asked.append((path, fields))
                    answer = self._answer(path, fields)
                    if answer is None:
                        return
                    for part in [answer] if isinstance(answer, bytes) else answer:
                        connection.sendall(part)
                except OSError:
                    return

    @staticmethod
    def _headers(stream: Any) -> Any:
        while (line := stream.readline().strip()) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            yield name.lower(), value.strip()
