"""The clients, where the conformance suite does not look: errors, limits, settings, retries."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
import time
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import hapax
from hapax._retry import Retry
from hapax._time import milliseconds, parse_time, write_time
from hapax.testing import Broker


def test_a_key_is_a_uuid_of_now_and_never_the_same() -> None:
    keys = {hapax.new_key() for _ in range(1000)}
    assert len(keys) == 1000
    for key in keys:
        assert key[14] == "7"
        assert key[19] in "89ab"
        made = int(key.replace("-", "")[:12], 16) / 1000
        assert abs(made - time.time()) < 60


def test_durations_and_times_are_read_and_written() -> None:
    assert milliseconds(1.5) == 1500
    assert milliseconds(0.0001) == 1, "never shorter than it was asked for"
    assert milliseconds(timedelta(minutes=1)) == 60_000
    with pytest.raises(ValueError):
        milliseconds(-1)
    time = datetime(2026, 3, 1, 12, 0, 0, 5000, timezone.utc)
    assert write_time(time) == "2026-03-01T12:00:00.005Z"
    assert parse_time("2026-03-01T12:00:00.005Z") == time


def test_pauses_double_up_to_a_bound_and_are_never_shorter_than_the_broker_asks_for() -> None:
    retry = Retry(None)
    pauses = [retry.next_pause() for _ in range(12)]
    assert 0.01 <= pauses[0] <= 0.02
    assert all(2.5 <= pause <= 5.0 for pause in pauses[9:])
    assert retry.next_pause(60.0) == 60.0
    retry.reset()
    assert retry.next_pause() <= 0.02
    assert Retry(1.0).pause_after(hapax.Unavailable("no", retry_after=2.0)) is None, "too late"
    assert Retry(9.0).pause_after(hapax.Unavailable("no", retry_after=2.0)) == 2.0
    assert Retry(9.0).pause_after(hapax.Conflict("no")) is None


def test_every_code_of_the_broker_has_its_class(hapax_broker: Broker) -> None:
    import httpx2

    headers = {"Accept": "application/json"}
    reply = httpx2.get(f"{hapax_broker.address}/errors", headers=headers, timeout=60)
    codes = {it["code"]: it["retryable"] for it in reply.json()["errors"]}
    classes = {
        it.code: it("why").retryable
        for it in vars(hapax).values()
        if isinstance(it, type) and issubclass(it, hapax.Error) and it is not hapax.Error
    }
    assert classes == codes


def test_more_messages_than_a_batch_takes_are_answered_in_order(hapax_queue: hapax.Queue) -> None:
    messages = [hapax.Message(f"body {n}", key=f"k{n}") for n in range(1500)]
    messages.append(hapax.Message("other", key="k7"))
    answers = hapax_queue.send_all(messages)
    assert [it.key for it in answers[:1500] if isinstance(it, hapax.Answer)] == [
        f"k{n}" for n in range(1500)
    ]
    assert isinstance(answers[1500], hapax.Conflict)
    assert answers[1500].differs == ("body",)


def test_bodies_that_fit_into_no_batch_are_sent_alone(hapax_queue: hapax.Queue) -> None:
    hapax_queue.create({"max_body_bytes": 16 * 1024 * 1024})
    large = bytes(range(256)) * 40_000
    answers = hapax_queue.send_all(
        [
            hapax.Message("small", key="a"),
            hapax.Message(large, key='lä"rge', headers={"region": "eu"}, content_type="x/y"),
            hapax.Message("\x01" * 3_000_000, key="escaped"),
        ]
    )
    assert [getattr(it, "answer", it) for it in answers] == ["accepted"] * 3
    again = hapax_queue.send(large, key='lä"rge')
    assert again.answer == "in_flight"
    found = {it.key: it for it in hapax_queue.receive(max=1)}
    found |= {it.key: it for it in hapax_queue.receive(max=3)}
    while len(found) < 3:
        found |= {it.key: it for it in hapax_queue.receive(max=3)}
    assert found['lä"rge'].body == large
    assert found['lä"rge'].headers == {"region": "eu"}
    assert found['lä"rge'].content_type == "x/y"
    with pytest.raises(hapax.TooLarge):
        hapax_queue.send(b"x" * (17 * 1024 * 1024), key="too large")


def test_json_is_sent_with_its_content_type(hapax_queue: hapax.Queue) -> None:
    hapax_queue.send(json={"n": "é"}, key="a")
    (message,) = hapax_queue.receive()
    assert message.json() == {"n": "é"}
    assert message.content_type == "application/json"
    with pytest.raises(ValueError, match="not both"):
        hapax_queue.send("text", json={}, key="b")
    with pytest.raises(ValueError, match="not both"):
        hapax_queue.send(hapax.Message("text"), key="b")


def test_messages_are_browsed_and_redriven(hapax_client: hapax.Client) -> None:
    queue = hapax_client.queue("browsed")
    queue.create({"max_attempts": 1})
    queue.send_all([hapax.Message("x", key=f"k{n}") for n in range(120)])
    assert len(list(queue.messages("ready"))) == 120
    for message in queue.receive(max=5):
        queue.fail(message, "no")
    assert {it.key for it in queue.messages("dead")} == {f"k{n}" for n in range(5)}
    assert queue.redrive(all=True, dry_run=True).matched == 5
    moved = queue.redrive(keys=["k0", "k99"], id="r1")
    assert (moved.moved, list(moved.missing)) == (1, ["k99"])
    assert queue.redrive(keys=["k0", "k99"], id="r1").moved == 1, "nothing is moved twice"
    assert queue.redrive_progress("r1").done
    assert queue.redrive(filter={"error_contains": "no"}).moved == 4
    assert {it.queue for it in hapax_client.queues()} >= {"browsed"}
    etag = queue.info().etag
    queue.create({"max_attempts": 2}, if_match=etag)
    with pytest.raises(hapax.InvalidConfig):
        queue.create({"max_attempts": 3}, if_match=etag)


def test_a_claim_as_a_context_settles_what_was_left_open(hapax_client: hapax.Client) -> None:
    queue = hapax_client.queue("contexts")
    queue.create({"on_lost": "park"})
    with queue.claim("done") as claim:
        assert claim.is_fresh
        claim.complete("R")
    assert queue.claim("done").result == hapax.Blob(b"R")
    with queue.claim("left") as claim:
        assert claim.is_fresh
    assert queue.claim("left").is_fresh, "it was freed"
    with pytest.raises(ZeroDivisionError), queue.claim("raised"):
        _ = 1 / 0
    assert queue.claim("raised").is_fresh, "nothing had begun"
    with pytest.raises(ZeroDivisionError), queue.claim("begun") as claim:
        claim.begin()
        _ = 1 / 0
    assert queue.claim("begun").answer == "parked"
    found = queue.key("begun")
    assert found.error == "ZeroDivisionError: division by zero"
    with pytest.raises(hapax.LeaseLost):
        queue.claim("begun").save("p", "x")


def test_a_claim_that_nobody_refers_to_is_freed(hapax_client: hapax.Client) -> None:
    queue = hapax_client.queue("dropped")
    queue.create()
    assert queue.claim("a", lease=0.5).is_fresh
    until = time.monotonic() + 120
    while not queue.claim("a", lease=0.5).is_fresh:
        assert time.monotonic() < until
        time.sleep(0.05)


def test_a_broker_that_is_not_there_is_named_and_a_generated_key_is_told() -> None:
    # Bound for as long as the test takes, so that nobody else listens there.
    with socket.socket() as closed, contextlib.ExitStack() as stack:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        client = stack.enter_context(hapax.Client(address, timeout=0.3))
        with pytest.raises(hapax.Unreachable, match=address) as refused:
            client.queue("q").send("x", key="a")
        assert refused.value.retryable
        assert refused.value.key is None
        with pytest.raises(hapax.Unreachable) as refused:
            client.queue("q").send("x")
        assert refused.value.key is not None
        assert refused.value.key not in str(refused.value), "keys are not for logs"
        answers = client.queue("q").send_all(["x", "y"])
        keys = {it.key for it in answers if isinstance(it, hapax.Unavailable)}
        assert len(keys) == 2
    with pytest.raises(hapax.Invalid, match="use http or https"):
        hapax.Client("ftp://127.0.0.1")


class Script(BaseHTTPRequestHandler):
    """A server that answers with what the test has prepared, and remembers what it was asked."""

    answers: list[tuple[int, dict[str, str], Any]]
    asked: list[tuple[str, Any, float]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.asked.append((self.path, json.loads(body), time.monotonic()))
        status, headers, fields = self.answers.pop(0)
        content = json.dumps(fields).encode()
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


def scripted(answers: list[Any]) -> tuple[ThreadingHTTPServer, type[Script]]:
    script = type("Scripted", (Script,), {"answers": answers, "asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), script)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server, script


ACCEPTED = {
    "answer": "accepted",
    "key": "k",
    "id": "i",
    "state": "ready",
    "accepted_at": "2026-01-01T00:00:00.000Z",
}
BUSY = {"code": "unavailable", "detail": "busy", "retryable": True}


def test_a_retry_has_the_same_key_and_waits_as_long_as_it_is_told() -> None:
    server, script = scripted(
        [
            (503, {"retry-after": "1"}, BUSY),
            (502, {}, "a proxy says something else"),
            (200, {}, {"answers": [{"answer": "error", **BUSY, "retry_after_ms": 10}]}),
            (200, {}, {"answers": [ACCEPTED]}),
        ]
    )
    with server, hapax.Client(f"127.0.0.1:{server.server_port}") as client:
        assert client.queue("q").send("x").is_new
        server.shutdown()
    keys = {asked["messages"][0]["key"] for _, asked, _ in script.asked}
    assert len(script.asked) == 4
    assert len(keys) == 1, "a retry never makes a new key"
    assert script.asked[1][2] - script.asked[0][2] >= 1.0, "Retry-After"


def test_a_batch_that_is_too_large_for_a_proxy_is_sent_in_halves() -> None:
    page, some = "<html>too large</html>", {"answers": [ACCEPTED]}
    server, script = scripted(
        [(413, {}, page), (200, {}, some), (413, {}, page), (200, {}, some), (413, {}, page)]
    )
    with server, hapax.Client(f"127.0.0.1:{server.server_port}") as client:
        messages = [hapax.Message(key, key=key) for key in ("a", "b", "c")]
        answers = client.queue("q").send_all(messages)
        server.shutdown()
    assert [getattr(it, "answer", type(it).__name__) for it in answers] == [
        "accepted",
        "accepted",
        "TooLarge",
    ]
    sent = [[it["key"] for it in asked["messages"]] for _, asked, _ in script.asked]
    assert sent == [["a", "b", "c"], ["a"], ["b", "c"], ["b"], ["c"]]


def test_in_a_batch_only_what_was_refused_is_sent_again() -> None:
    refused = {"answer": "error", **BUSY, "retry_after_ms": 1}
    server, script = scripted(
        [(200, {}, {"answers": [ACCEPTED, refused]}), (200, {}, {"answers": [ACCEPTED]})]
    )
    with server, hapax.Client(f"127.0.0.1:{server.server_port}") as client:
        answers = client.queue("q").send_all(
            [hapax.Message("1", key="a"), hapax.Message("2", key="b")]
        )
        server.shutdown()
    assert [getattr(it, "answer", it) for it in answers] == ["accepted", "accepted"]
    assert [[it["key"] for it in asked["messages"]] for _, asked, _ in script.asked] == [
        ["a", "b"],
        ["b"],
    ]


def test_a_receive_is_repeated_under_its_id() -> None:
    server, script = scripted([(503, {}, BUSY), (200, {}, {"messages": []})])
    with server, hapax.Client(f"127.0.0.1:{server.server_port}") as client:
        assert client.queue("q").receive() == []
        server.shutdown()
    first, second = (asked for _, asked, _ in script.asked)
    assert first["receive_id"] == second["receive_id"]


def test_a_server_that_is_no_broker_is_told_as_such() -> None:
    server, _ = scripted([(404, {}, {}), (200, {}, "text")])
    with server, hapax.Client(f"127.0.0.1:{server.server_port}") as client:
        with pytest.raises(hapax.Invalid, match="no broker answers"):
            client.queue("q").send("x", key="a")
        server.shutdown()


def test_the_settings_may_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, hapax_broker: Broker
) -> None:
    monkeypatch.setenv("HAPAX_SERVER", hapax_broker.address)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    with hapax.Client() as client:
        client.ready(10)
        assert client.address == hapax_broker.address
    with pytest.raises(hapax.NoSuchQueue):
        asyncio.run(look())


async def look() -> None:
    async with hapax.AsyncClient() as client:
        await client.queue("nowhere").info()


def test_a_token_is_sent_and_not_shown() -> None:
    server, script = scripted([(401, {}, {"code": "unauthorized", "detail": "who?"})])
    seen: list[str | None] = []
    answer = script.do_POST

    def do_post(self: Script) -> None:
        seen.append(self.headers["authorization"])
        answer(self)

    script.do_POST = do_post  # type: ignore[method-assign]
    address = f"127.0.0.1:{server.server_port}"
    with server, hapax.Client(address, token="secret\n") as client:
        with pytest.raises(hapax.Unauthorized):
            client.queue("q").send("x", key="a")
        assert "secret" not in repr(client._transport.settings)
        server.shutdown()
    assert seen == ["Bearer secret"]
