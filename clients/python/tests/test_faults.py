"""Bad answers, bad handlers and bad moments: what must not end a worker, lose a key, or repeat an
effect."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from fake import ACCEPTED, Fake, delivery, response

import hapax
from hapax._errors import from_problem
from hapax._text import cut, describe
from hapax._time import milliseconds, seconds
from hapax._wire import put_body
from hapax._worker.lane import Lane, Limits
from hapax.testing import Broker

Until = Callable[[Callable[[], bool]], None]
NOT_OURS = {
    "a page": response(b"<html>welcome</html>"),
    "nothing": response(b""),
    "null": response(b"null"),
    "text": response("ok"),
    "an object": response({}),
    "a list": response([]),
    "no answers": response({"answers": []}),
    "empty answers": response({"answers": [{}]}),
    "answers without fields": response({"answers": [{"answer": "accepted"}]}),
    "a bad time": response({"answers": [{**ACCEPTED, "accepted_at": "soon"}]}),
    "not gzip": response(b"plain", content_encoding="gzip"),
    "half a response": b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\n{",
}


@pytest.mark.parametrize("first", NOT_OURS.values(), ids=NOT_OURS.keys())
def test_a_success_that_is_not_the_answer_is_not_believed(first: bytes) -> None:
    """A send is made again under its key, and an administrator's change is not reported as made."""

    def answer(path: str, fields: Any) -> bytes | None:
        if len(fake.asked) == 1:
            return first
        if first.endswith(b"{") and len(fake.asked) == 2:
            return None
        return response({"answers": [ACCEPTED]})

    with Fake(answer) as fake, hapax.Client(fake.address, timeout=20) as client:
        if first.endswith(b"{"):
            with pytest.raises(hapax.TimedOut), hapax.Client(fake.address, timeout=0.5) as hasty:
                hasty.queue("q").send("x", key="k")
            fake.asked.clear()
            return
        assert client.queue("q").send("x").is_new
        keys = [asked["messages"][0]["key"] for _, asked in fake.asked]
        assert len(keys) == 2
        assert keys[0] == keys[1]
    with Fake(lambda *_: first) as fake, hapax.Client(fake.address, timeout=0.3) as client:
        queue = client.queue("q")
        for change in (queue.delete, queue.pause, queue.info, client.ready, client.queues):
            with pytest.raises(hapax.Unavailable):
                change()
        with pytest.raises(hapax.Unavailable):
            queue.forget("k")
        with pytest.raises(hapax.Unavailable) as unknown:
            queue.send("x")
        assert unknown.value.key is not None, "it may have been accepted"


@pytest.mark.parametrize(
    "text", ["²", "-1", "nan", "inf", "1e9", "1.5", "9" * 400, "Wed, 21 Oct 2026 07:28:00 GMT", ""]
)
def test_a_retry_after_that_is_not_a_time_to_wait_is_not_believed(text: str) -> None:
    asked = response({"code": "unavailable", "retryable": True}, "503 Busy", retry_after=text)
    page = response(b"<html>busy</html>", "503 Busy", retry_after=text)
    for busy in (asked, page):
        fake = Fake(lambda *_, busy=busy: busy)
        client = hapax.Client(fake.address, timeout=0.2)
        with fake, client, pytest.raises(hapax.Unavailable) as refused:
            client.queue("q").send("x", key="k")
        assert refused.value.retry_after is None or 0 <= refused.value.retry_after <= 3600


def test_a_pause_in_a_document_is_bounded_too() -> None:
    for asked in (-5, 10**400, True, float("nan"), "7"):
        error = from_problem({"code": "unavailable", "retry_after_ms": asked})
        assert error.retry_after is None or 0 <= error.retry_after <= 3600
    assert from_problem({"code": "unavailable", "retry_after_ms": 1500}).retry_after == 1.5


def test_an_answer_that_drips_ends_with_the_timeout() -> None:
    sent = threading.Event()

    def drip(path: str, fields: Any) -> Iterator[bytes]:
        yield b"HTTP/1.1 200 OK\r\ncontent-length: 100000\r\n\r\n"
        for _ in range(1200):
            yield b" "
            time.sleep(0.05)
        sent.set()

    with Fake(drip) as fake, hapax.Client(fake.address, timeout=0.5) as client:
        with pytest.raises(hapax.TimedOut):
            client.queue("q").send("x", key="k")
        assert not sent.is_set()


def test_waits_without_an_end_are_long_ones(hapax_broker: Broker) -> None:
    assert seconds(float("inf")) == timedelta(days=365).total_seconds()
    for bad in (float("inf"), float("nan"), -1):
        with pytest.raises(ValueError):
            milliseconds(bad)
    with hapax.Client(hapax_broker.address, timeout=float("inf")) as client:
        queue = client.queue("patient")
        etag = queue.create().etag
        queue.create({"max_attempts": 2}, if_match=etag)
        queue.send("x", key="a", timeout=float("inf"))
        (message,) = queue.receive()
        queue.done(message, "R")
        assert queue.send_and_wait("x", key="a", wait=float("inf")).answer == "done"
        with queue.claim("c", wait=float("inf")) as claim:
            assert claim.is_fresh
        queue.delete()


@pytest.mark.parametrize(
    "key",
    [".", "..", "a/b", "/", "%2e%2e", "%", '"', "\\", "?", "#", "ключ", "a b", "🍋", "+", ";"],
)
def test_every_key_names_itself_and_nothing_else(hapax_queue: hapax.Queue, key: str) -> None:
    assert hapax_queue.send("x", key=key).is_new
    found = hapax_queue.key(key)
    assert (found.key, found.state) == (key, "ready")
    assert hapax_queue.claim(key, "x").answer == "in_flight"
    hapax_queue.discard(key)
    assert hapax_queue.key(key).state == "discarded"
    hapax_queue.forget(key)
    with pytest.raises(hapax.NoSuchKey):
        hapax_queue.key(key)


def test_queues_of_dots_are_queues(hapax_client: hapax.Client) -> None:
    for name in (".", "..", "a..b"):
        queue = hapax_client.queue(name)
        queue.create()
        assert queue.info().queue == name
        assert queue.send("x", key="k").is_new
        queue.delete()


def test_a_message_that_cannot_be_written_does_not_harm_its_neighbours(
    hapax_queue: hapax.Queue,
) -> None:
    large = "x" * (9 * 1024 * 1024)
    bad = [
        hapax.Message("\udcff", key="body"),
        hapax.Message("x", key="\ud800"),
        hapax.Message("x", key="group", group="\ud800"),
        hapax.Message("x", key="header", headers={"a": "\ud800"}),
        hapax.Message("x", key="delay", delay=-1),
        hapax.Message("x", key="ttl", ttl=float("nan")),
        hapax.Message(7, key="number"),  # type: ignore[arg-type]
        hapax.Message(large, key="lines", headers={"a": "b\nc"}),
        hapax.Message(large, key="spaces", group=" a"),
        hapax.Message(large, key="name", headers={"a:": "b"}),
    ]
    good = [hapax.Message("x", key=f"k{n}") for n in range(1200)]
    answers = hapax_queue.send_all([*good[:1100], *bad, *good[1100:]])
    for answer in answers[1100 : 1100 + len(bad)]:
        assert isinstance(answer, hapax.Invalid), answer
        assert not answer.retryable
    others = answers[:1100] + answers[1100 + len(bad) :]
    assert all(isinstance(it, hapax.Answer) and it.is_new for it in others)
    with pytest.raises(hapax.Invalid):
        hapax_queue.send(bad[0])
    with pytest.raises(ValueError):
        hapax_queue.send(json={"price": float("nan")}, key="nan")


def test_a_group_keeps_its_order_around_a_large_message(hapax_client: hapax.Client) -> None:
    queue = hapax_client.queue("ordered-large")
    queue.create({"order": "group", "max_body_bytes": 16 * 1024 * 1024})
    bodies = [b"first", bytes(range(256)) * 40_000, b"last"]
    messages = [hapax.Message(it, key=f"k{n}", group="g") for n, it in enumerate(bodies)]
    assert all(isinstance(it, hapax.Answer) for it in queue.send_all(messages))
    for body in bodies:
        (message,) = queue.receive(wait=60)
        assert message.body == body
        queue.done(message)


def test_answers_of_a_batch_are_not_lost_with_the_result_of_one() -> None:
    """A result that did not fit into the answer is looked up, and that may fail."""
    done = {**ACCEPTED, "answer": "done", "state": "done", "result_omitted": True}

    def answer(path: str, fields: Any) -> bytes:
        if "/keys/" in path:
            return response({"code": "no_such_key", "detail": "forgotten"}, "404 Not Found")
        return response({"answers": [ACCEPTED, done, ACCEPTED]})

    with Fake(answer) as fake, hapax.Client(fake.address) as client:
        answers = client.queue("q").send_all(["x", "y", "z"])
    assert [isinstance(it, hapax.Answer) for it in answers] == [True, False, True]
    assert isinstance(answers[1], hapax.NoSuchKey)


def test_a_slow_answer_to_a_short_wait_is_no_error() -> None:
    """A look-up that takes longer than the wait does not make a failure of what was accepted."""
    looked = {
        **ACCEPTED,
        "queue": "q",
        "attempts": 0,
        "generation": 0,
        "duplicates": 0,
        "group": None,
    }

    def answer(path: str, fields: Any) -> bytes:
        if "/keys/" not in path:
            return response({"answers": [ACCEPTED]})
        slow.wait(2.5 * wait)
        return response(looked)

    wait, slow = 2.0, threading.Event()
    with Fake(answer) as fake, hapax.Client(fake.address) as client:
        assert client.queue("q").send_and_wait("x", key="k", wait=wait).state == "ready"


def test_a_generated_key_is_told_if_an_earlier_try_may_have_succeeded() -> None:
    def answer(path: str, fields: Any) -> bytes | None:
        if len(fake.asked) == 1:
            return None
        return response({"code": "unauthorized", "detail": "revoked"}, "401 Unauthorized")

    with (
        Fake(answer) as fake,
        hapax.Client(fake.address) as client,
        pytest.raises(hapax.Unauthorized) as refused,
    ):
        client.queue("q").send("x")
    assert refused.value.key is not None


def test_large_bodies_take_the_shorter_of_their_two_forms() -> None:
    for data, name in (
        (b"\x01" * 100_000, "body_base64"),
        (b'"' * 100_000, "body_base64"),
        ("ä\n".encode() * 50_000, "body"),
        (b"x" * 100_000, "body"),
        (b"\x01", "body"),
        (b"\xff", "body_base64"),
    ):
        fields: dict[str, Any] = {}
        put_body(fields, data)
        assert list(fields) == [name]


def test_errors_of_any_kind_have_a_text() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert describe(Silent()) == "Silent: (its text cannot be made: RuntimeError)"
    assert cut("name \udcff") == "name \\udcff"
    assert len(cut("\ud800" * 5000).encode()) <= 4096
    chain: Exception = ValueError("root")
    for number in range(5000):
        outer = ValueError(str(number))
        outer.__cause__, chain = chain, outer
    assert len(cut(describe(chain)).encode()) <= 4096


# ---- Handlers


class Stop(BaseException):
    pass


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


def raises(error: BaseException) -> Callable[[], Any]:
    def bad() -> Any:
        raise error

    return bad


#: What handlers do, the state of their message, and a part of its error.
BAD: dict[str, tuple[Callable[[], Any], str, str]] = {
    "surrogates": (raises(RuntimeError("name \udcff")), "dead", "\\udcff"),
    "silent": (raises(Unspeakable()), "dead", "Unspeakable"),
    "silent-fail": (
        raises(type("Odd", (hapax.Fail,), {"__str__": Unspeakable.__str__})()),
        "dead",
        "its text",
    ),
    "fail-surrogates": (raises(hapax.Fail("\ud800")), "dead", "\\ud800"),
    "nan": (raises(hapax.Fail("f", retry_in=float("nan"))), "dead", "f"),
    "negative": (raises(hapax.Fail("f", retry_in=-5)), "dead", "f"),
    "endless": (raises(hapax.Fail("f", retry_in=float("inf"))), "dead", "f"),
    "soon": (raises(hapax.Fail("f", retry_in="soon")), "dead", "f"),  # type: ignore[arg-type]
    "base": (raises(Stop("stop")), "dead", "Stop: stop"),
    "exit": (raises(SystemExit(3)), "dead", "SystemExit"),
    "cancelled": (raises(asyncio.CancelledError()), "dead", ""),
    "iteration": (raises(StopIteration(7)), "dead", ""),
    "object": (lambda: object(), "dead", "a result is None, str"),
    "nan-result": (lambda: {"n": float("nan")}, "dead", "JSON"),
    "inner-object": (lambda: {"n": object()}, "dead", "serializable"),
    "surrogate-result": (lambda: "\ud800", "dead", "surrogates"),
    "surrogate-type": (lambda: hapax.Blob(b"x", "\ud800"), "dead", "surrogates"),
    "surrogate-emit": (lambda: hapax.Done(emit=[hapax.Emit("q", "\ud800")]), "dead", "surrogates"),
    "not-an-emit": (lambda: hapax.Done(emit=["x"]), "dead", ""),  # type: ignore[list-item]
    "emits-to-nowhere": (lambda: hapax.Done(emit=[hapax.Emit("", "n")]), "dead", "refused"),
    "emits-twice": (
        lambda: hapax.Done(emit=[hapax.Emit("bad", "n", "1"), hapax.Emit("bad", "n", "2")]),
        "dead",
        "refused",
    ),
    "coroutine": (lambda: asyncio.sleep(0), "dead", ""),
}


@pytest.mark.parametrize("is_async", [True, False], ids=["asyncio", "threads"])
def test_no_handler_ends_its_worker_or_harms_another(
    hapax_client: hapax.Client, until: Until, is_async: bool
) -> None:
    queue = hapax_client.queue(f"bad-{is_async}")
    # A lost lease would be the only attempt.
    queue.create({"max_attempts": 1, "lease_ms": 300_000})
    worker = hapax.Worker(hapax_client, concurrency=4, prefetch=50)

    if is_async:

        @worker.handler(queue.name)
        async def handle(message: hapax.Delivery, context: hapax.Context) -> Any:
            if message.key == "save":
                await context.save("\ud800", "x")
            return BAD[message.key][0]() if message.key in BAD else message.key

    else:

        @worker.handler(queue.name)
        def block(message: hapax.Delivery, context: hapax.BlockingContext) -> Any:
            if message.key == "save":
                context.save("\ud800", "x")
            return BAD[message.key][0]() if message.key in BAD else message.key

    keys = [it for key in (*BAD, "save") for it in (key, f"good-{key}")]
    with worker:
        queue.send_all([hapax.Message("x", key=key) for key in keys])
        found = {key: queue.key(key, wait=120) for key in keys}
        until(lambda: worker.health().ok)
        until(lambda: worker.health().queues[0].running == 0)
    for key, key_found in found.items():
        if key in BAD:
            _, state, error = BAD[key]
            assert (key_found.state, error in (key_found.error or "")) == (state, True), key_found
        elif key == "save":
            assert key_found.state == "dead"
        else:
            assert key_found.state == "done", key_found
            assert key_found.result == hapax.Blob(key.encode())


def test_a_retry_time_in_the_past_is_now(hapax_client: hapax.Client) -> None:
    queue = hapax_client.queue("past")
    queue.create({"backoff_min_ms": 600_000, "backoff_max_ms": 600_000})
    worker = hapax.Worker(hapax_client)

    @worker.handler("past")
    async def handle(message: hapax.Delivery, context: hapax.Context) -> None:
        if message.attempt == 1:
            raise hapax.Fail("late", retry_in=timedelta(seconds=-3))

    with worker:
        assert queue.send_and_wait("x", key="k", wait=120).answer == "done"


def test_large_results_of_many_handlers_are_all_stored(hapax_client: hapax.Client) -> None:
    """Together they are larger than what a request takes, and alone as text some are too."""
    queue = hapax_client.queue("large-results")
    queue.create({"max_body_bytes": 16 * 1024 * 1024, "max_attempts": 1, "lease_ms": 300_000})
    worker = hapax.Worker(hapax_client, concurrency=32)
    texts = {"a": "🍋" * 300_000, "b": '"' * 1_200_000, "c": "\x01" * 1_200_000}
    texts["d"] = "\x02" * 12_000_000

    @worker.handler("large-results")
    async def handle(message: hapax.Delivery, context: hapax.Context) -> str:
        await asyncio.sleep(0.2)  # So that they end together.
        return texts[message.key[0]]

    keys = [f"{letter}{n}" for letter in "abc" for n in range(10)] + ["d"]
    with worker:
        queue.send_all([hapax.Message("x", key=key) for key in keys])
        for key in keys:
            found = queue.key(key, wait=120)
            assert found.state == "done", (key, found.error)
            assert found.result is not None
            assert found.result.body == texts[key[0]].encode()


def test_the_outcome_of_a_step_is_the_same_in_every_attempt(hapax_client: hapax.Client) -> None:
    queue = hapax_client.queue("same-outcome")
    queue.create({"backoff_min_ms": 1, "backoff_max_ms": 1})
    worker = hapax.Worker(hapax_client)
    seen: list[Any] = []

    @worker.handler("same-outcome")
    def handle(message: hapax.Delivery, context: hapax.BlockingContext) -> None:
        seen.append(context.step("look", lambda key: {1: ("a", "b")}))
        if message.attempt == 1:
            raise hapax.Fail("again")

    with worker:
        assert queue.send_and_wait("x", key="k", wait=120).answer == "done"
    assert seen == [{"1": ["a", "b"]}] * 2


def test_a_blocked_event_loop_loses_leases_and_nothing_else(
    hapax_client: hapax.Client, until: Until
) -> None:
    queue = hapax_client.queue("blocked")
    queue.create({"lease_ms": 300, "backoff_min_ms": 1, "backoff_max_ms": 1, "max_attempts": 1000})
    worker = hapax.Worker(hapax_client, concurrency=2, prefetch=6)
    blocked: list[str] = []

    @worker.handler("blocked")
    async def handle(message: hapax.Delivery, context: hapax.Context) -> str:
        if len(blocked) < 3:
            blocked.append(message.key)
            time.sleep(0.7)  # noqa: ASYNC251
        return message.key

    keys = [f"k{n}" for n in range(12)]
    with worker:
        queue.send_all([hapax.Message("x", key=key) for key in keys])
        for key in keys:
            assert queue.key(key, wait=120).state == "done"
        until(lambda: worker.health().queues[0].running == 0)
    assert len(blocked) == 3


def test_a_handler_whose_lease_is_lost_before_it_begins_is_not_called() -> None:
    """And its place is free again."""

    async def main() -> list[str]:
        calls: list[str] = []

        async def handle(message: hapax.Delivery, context: hapax.Context) -> None:
            calls.append(message.key)

        client = hapax.AsyncClient("127.0.0.1:1")
        lane = Lane(client.queue("q"), handle, True, "w", Limits(1, 1, None, 1.0), None)
        lane._take([hapax.Delivery(delivery("lost"))], False)
        (hold,) = lane._running
        lane._lose(hold)
        for _ in range(3):
            await asyncio.sleep(0)
        health = lane.health()
        assert (health.running, health.waiting, health.lost) == (0, 0, 1)
        await client.close()
        return calls

    assert asyncio.run(main()) == []


# ---- The way to the broker


def test_a_page_of_a_proxy_is_no_refusal_of_a_result(until: Until) -> None:
    """The effect has happened: the settle is repeated, and the message is not made dead."""
    pages = [
        response(b"<html>welcome</html>"),
        response(b"<html>no such backend</html>", "404 Not Found"),
        response(b"", "302 Found", location="/login"),
        response(b"<html>bad gateway</html>", "502 Bad Gateway"),
        response({"answers": []}),
        response({"answers": [{"answer": "ok"}, {"answer": "ok"}]}),
    ]
    received = threading.Event()

    def answer(path: str, fields: Any) -> bytes:
        if path.endswith("/receive"):
            messages = [] if received.is_set() else [delivery()]
            received.set()
            return response({"messages": messages})
        return pages.pop(0) if pages else response({"answers": [{"answer": "ok"}]})

    events: list[str] = []
    with Fake(answer) as fake:
        worker = hapax.Worker(fake.address, observe=lambda it: events.append(it.kind))

        @worker.handler("q")
        async def handle(message: hapax.Delivery, context: hapax.Context) -> str:
            return "charged"

        with worker:
            until(lambda: "done" in events)
    settles = [asked["items"] for path, asked in fake.asked if path.endswith("/settle")]
    assert [[it["do"] for it in items] for items in settles] == [["done"]] * 7
    assert "refused" not in events


@pytest.mark.parametrize("is_proxy", [False, True])
def test_one_settle_that_is_refused_does_not_harm_its_neighbours(
    until: Until, is_proxy: bool
) -> None:
    received = threading.Event()

    def answer(path: str, fields: Any) -> bytes:
        if path.endswith("/receive"):
            messages = [] if received.is_set() else [delivery(f"k{n}") for n in range(8)]
            received.set()
            return response({"messages": messages})
        items = fields["items"]
        is_bad = any(it["lease"] == "lease-k3" and it["do"] == "done" for it in items)
        if is_bad and is_proxy:
            return response(b"<html>too large</html>", "413 Content Too Large")
        if is_bad:
            return response({"code": "invalid", "detail": "no"}, "400 Bad Request")
        return response({"answers": [{"answer": "ok"} for _ in items]})

    events: list[tuple[str, str]] = []

    def observe(it: hapax.WorkerEvent) -> None:
        if it.message is not None:
            events.append((it.kind, it.message.key))

    with Fake(answer) as fake:
        worker = hapax.Worker(fake.address, observe=observe)

        @worker.handler("q")
        async def handle(message: hapax.Delivery, context: hapax.Context) -> str:
            return "charged"

        with worker:
            until(lambda: len(events) == 8)
    assert sorted(events) == [
        *[("done", f"k{n}") for n in range(8) if n != 3],
        ("refused", "k3"),
    ]


def test_messages_of_a_receive_that_was_repeated_are_extended_at_once(until: Until) -> None:
    """The broker may have leased them long ago, when the answer was lost."""

    def answer(path: str, fields: Any) -> bytes | None:
        if path.endswith("/receive"):
            count = sum(path.endswith("/receive") for path, _ in fake.asked)
            if count == 1:
                return None
            return response({"messages": [delivery(lease_ms=600_000)] if count == 2 else []})
        return response({"answers": [{"answer": "ok"} for _ in fields["items"]]})

    with Fake(answer) as fake:
        worker = hapax.Worker(fake.address)
        free = threading.Event()

        @worker.handler("q")
        def handle(message: hapax.Delivery, context: hapax.BlockingContext) -> None:
            free.wait(60)

        def settles() -> list[str]:
            listed = [asked["items"] for path, asked in fake.asked if path.endswith("/settle")]
            return [it["do"] for items in listed for it in items]

        with worker:
            until(lambda: "extend" in settles())
            free.set()
            until(lambda: "done" in settles())
    receives = [asked["receive_id"] for path, asked in fake.asked if path.endswith("/receive")]
    assert receives[0] == receives[1]


def test_a_worker_is_well_before_its_first_message(until: Until) -> None:
    """A receive that waits is not answered here: it is known before that the broker is there."""
    end = threading.Event()

    def answer(path: str, fields: Any) -> bytes:
        if fields["wait_ms"] > 0:
            end.wait()
        return response({"messages": []})

    with Fake(answer) as fake:
        worker = hapax.Worker(fake.address)

        @worker.handler("idle")
        async def handle(message: hapax.Delivery, context: hapax.Context) -> None: ...

        with worker:
            until(lambda: worker.health().ok)
            end.set()


def test_a_worker_is_not_well_after_its_end(hapax_client: hapax.Client, until: Until) -> None:
    queue = hapax_client.queue("idle")
    queue.create()
    worker = hapax.Worker(hapax_client)

    @worker.handler("idle")
    async def handle(message: hapax.Delivery, context: hapax.Context) -> None: ...

    worker.start()
    until(lambda: worker.health().ok)
    queue.delete()
    until(lambda: not worker.health().ok)
    with pytest.raises(hapax.NoSuchQueue):
        worker.join()
    assert not worker.health().is_stopping or not worker.health().ok


def test_waiting_callers_leave_connections_to_the_one_they_wait_for(hapax_broker: Broker) -> None:
    async def main() -> None:
        async with hapax.AsyncClient(hapax_broker.address, connections_max=2) as client:
            queue = client.queue("crowded")
            await queue.create()
            claim = await queue.claim("k")
            waiters = [asyncio.create_task(queue.claim("k", wait=60)) for _ in range(12)]
            await asyncio.sleep(0.5)
            settled = await asyncio.wait_for(claim.complete("R"), 60)
            assert settled.answer == "ok"
            for waiter in waiters:
                assert (await waiter).result == hapax.Blob(b"R")

    asyncio.run(main())


def test_a_claim_whose_extensions_are_answered_by_a_proxy_is_lost(until: Until) -> None:
    fresh = {"answer": "fresh", "lease": "l", "fence": "7", "lease_ms": 300}

    def answer(path: str, fields: Any) -> bytes:
        return response(fresh if path.endswith("/claims") else {"answers": "ok"})

    with Fake(answer) as fake, hapax.Client(fake.address) as client:
        claim = client.queue("q").claim("k", lease=0.3)
        assert claim.is_fresh
        assert claim.lost(60)
        claim.drop()


def test_an_interrupt_settles_and_is_passed_on(hapax_client: hapax.Client) -> None:
    queue = hapax_client.queue("interrupted")
    queue.create({"backoff_min_ms": 1, "backoff_max_ms": 1})
    worker = hapax.Worker(hapax_client)

    @worker.handler("interrupted")
    async def handle(message: hapax.Delivery, context: hapax.Context) -> None:
        raise KeyboardInterrupt

    queue.send("x", key="k")
    with pytest.raises(KeyboardInterrupt):
        worker.run()


def test_a_handler_can_clean_up_when_the_drain_is_over(hapax_client: hapax.Client) -> None:
    queue = hapax_client.queue("cleaned")
    queue.create({"backoff_min_ms": 1, "backoff_max_ms": 1})
    worker = hapax.Worker(hapax_client, drain_timeout=0.1)
    began, cleaned = threading.Event(), threading.Event()

    @worker.handler("cleaned")
    async def handle(message: hapax.Delivery, context: hapax.Context) -> None:
        began.set()
        try:
            await asyncio.sleep(600)
        finally:
            with contextlib.suppress(hapax.Error):
                await context.save("cleaned", "up")
            cleaned.set()

    with worker:
        queue.send("x", key="k")
        assert began.wait(120)
    assert cleaned.is_set()
    # If the broker did not hear of its end in time, its lease ends after 30 s.
    (again,) = queue.receive(wait=60)
    assert (again.attempt, again.recovery_points) == (2, {"cleaned": b"up"})
