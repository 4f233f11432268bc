"""Workers: forms of handlers, signals, health, and what is left when a process is killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from conftest import tables

import hapax
from hapax._worker.leases import Leases
from hapax._worker.steps import (
    NAME_BYTES_MAX,
    POINTS_BYTES_MAX,
    POINTS_MAX,
    ROOM_BYTES,
    Ledger,
    intent,
    outcome,
)
from hapax.testing import Broker

Until = Callable[[Callable[[], bool]], None]


def test_a_worker_serves_functions_and_objects_in_coroutines_and_threads(
    hapax_client: hapax.Client,
) -> None:
    names = ["forms-async", "forms-blocking", "forms-class", "forms-class-blocking"]
    for name in names:
        hapax_client.queue(name).create()
    events: list[hapax.WorkerEvent] = []
    worker = hapax.Worker(hapax_client, concurrency=2, observe=events.append, name="w-1")

    @worker.handler(names[0])
    async def handle(message: hapax.Delivery, context: hapax.Context) -> dict[str, str]:
        await asyncio.sleep(0)
        return {"text": message.text()}

    @worker.handler(names[1], concurrency=3)
    def block(message: hapax.Delivery, context: hapax.BlockingContext) -> str:
        assert threading.current_thread().name.startswith("hapax-forms-blocking")
        context.save("p", "saved")
        return message.text().upper()

    class Awaits(hapax.Handler):
        queue = names[2]

        async def handle(self, message: hapax.Delivery, context: hapax.Context) -> bytes:
            return message.body[::-1]

    class Blocks(hapax.Handler):
        queue = names[3]
        concurrency = 1

        def handle(self, message: hapax.Delivery, context: hapax.BlockingContext) -> hapax.Done:
            return hapax.Done(emit=[hapax.Emit(names[2], "next", "emitted")])

    worker.add(Awaits())
    worker.add(Blocks())
    with pytest.raises(hapax.Invalid, match="already"):
        worker.handler(names[0])(handle)
    with worker:
        results = [
            hapax_client.queue(name).send_and_wait("abc", key="k", wait=120).result
            for name in names
        ]
        emitted = hapax.derive(names[3], "", "k", 0, "next")
        followed = hapax_client.queue(names[2]).key(emitted, wait=120)
        health = worker.health()
        assert health.ok
        assert [it.queue for it in health.queues] == names
    assert results == [
        hapax.Blob(b'{"text":"abc"}', "application/json"),
        hapax.Blob(b"ABC"),
        hapax.Blob(b"cba"),
        None,
    ]
    assert followed.result == hapax.Blob(b"dettime")
    assert hapax_client.queue(names[1]).key("k").worker == "w-1"
    assert {(it.kind, it.queue) for it in events} == {("done", name) for name in names}
    assert not worker.health().ok, "it has ended"
    with pytest.raises(hapax.Invalid, match="once"):
        asyncio.run(worker.serve())


def test_a_worker_lives_in_the_event_loop_of_its_program(hapax_broker: Broker) -> None:
    async def main() -> tuple[int, list[str]]:
        async with hapax_broker.async_client() as client:
            queue = client.queue("in-loop")
            await queue.create()
            seen: list[str] = []
            worker = hapax.Worker(client)

            @worker.handler("in-loop")
            async def handle(message: hapax.Delivery, context: hapax.Context) -> None:
                seen.append(message.key)

            async with worker:
                answers = await queue.send_all([hapax.Message("x", key=f"k{n}") for n in range(50)])
                for number in range(50):
                    await queue.key(f"k{number}", wait=120)
            return len(answers), sorted(seen)

    count, seen = asyncio.run(main())
    assert (count, seen) == (50, sorted(f"k{n}" for n in range(50)))


def test_a_worker_ends_with_the_error_that_no_retry_helps(hapax_client: hapax.Client) -> None:
    worker = hapax.Worker(hapax_client)
    with pytest.raises(hapax.Invalid, match="no handler"):
        worker.run()
    hapax_client.queue("there").create()

    @worker.handler("there")
    async def fine(message: hapax.Delivery, context: hapax.Context) -> None: ...

    @worker.handler("not-there")
    async def handle(message: hapax.Delivery, context: hapax.Context) -> None: ...

    with pytest.raises(hapax.NoSuchQueue):
        worker.run()


def test_errors_are_told_whole_and_cut_and_nothing_secret_is_logged(
    hapax_client: hapax.Client, caplog: pytest.LogCaptureFixture
) -> None:
    queue = hapax_client.queue("told")
    queue.create({"max_attempts": 1})
    worker = hapax.Worker(hapax_client)

    @worker.handler("told")
    def handle(message: hapax.Delivery, context: hapax.BlockingContext) -> str:
        if message.key == "typed":
            return 7  # type: ignore[return-value]
        if message.key == "exits":
            sys.exit(3)
        try:
            _ = 1 / 0
        except ZeroDivisionError as error:
            raise RuntimeError("ö" * 5000 if message.key == "long" else "the printer") from error
        return "never"

    caplog.set_level(logging.DEBUG, logger="hapax")
    with worker:
        for key in ("chained", "long", "typed", "exits"):
            queue.send_and_wait("secret body", key=key, wait=120)
    error = queue.key("chained").error
    assert error == "RuntimeError: the printer: caused by ZeroDivisionError: division by zero"
    long = queue.key("long").error or ""
    assert len(long.encode()) in (4095, 4096)
    assert "a result is None, str, bytes" in (queue.key("typed").error or "")
    assert "SystemExit" in (queue.key("exits").error or "")
    assert "failed unexpectedly" in caplog.text
    assert "secret body" not in caplog.text
    assert "chained" not in caplog.text.replace("chained_", "")


def test_steps_run_in_threads_too(hapax_client: hapax.Client) -> None:
    queue = hapax_client.queue("thread-steps")
    queue.create({"backoff_min_ms": 1, "backoff_max_ms": 10})
    calls: list[str] = []
    worker = hapax.Worker(hapax_client)

    def charge(key: str) -> dict[str, int]:
        calls.append(key)
        return {"receipt": len(calls)}

    @worker.handler("thread-steps")
    def handle(message: hapax.Delivery, context: hapax.BlockingContext) -> dict[str, int]:
        receipt = context.step("charge", charge)
        context.extend(60)
        if message.attempt == 1:
            raise hapax.Fail("later", retry_in=0.001)
        return receipt

    with worker:
        answer = queue.send_and_wait("x", key="k", wait=120)
    assert answer.result is not None
    assert answer.result.json() == {"receipt": 1}
    assert calls == [hapax.derive("thread-steps", "", "k", 0, "charge")]


def test_health_is_served_over_http(hapax_client: hapax.Client, until: Until) -> None:
    import socket

    hapax_client.queue("healthy").create()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    worker = hapax.Worker(hapax_client, health=address)

    @worker.handler("healthy")
    async def handle(message: hapax.Delivery, context: hapax.Context) -> None: ...

    with worker:
        hapax_client.queue("healthy").send_and_wait("x", key="a", wait=120)
        until(lambda: httpx2.get(f"http://{address}/readyz", timeout=60).status_code == 200)

        def lane() -> dict[str, Any]:
            listed: list[dict[str, Any]] = httpx2.get(f"http://{address}/", timeout=60).json()[
                "queues"
            ]
            return listed[0]

        assert lane()["queue"] == "healthy"
        # The sender may have its answer before the worker has the answer to its settle.
        until(lambda: lane()["done"] == 1)


def test_a_thread_that_does_not_end_does_not_keep_its_worker(hapax_client: hapax.Client) -> None:
    queue = hapax_client.queue("stuck")
    queue.create({"backoff_min_ms": 1, "backoff_max_ms": 1})
    worker = hapax.Worker(hapax_client, drain_timeout=0.2)
    began, free, late = threading.Event(), threading.Event(), threading.Event()

    @worker.handler("stuck")
    def handle(message: hapax.Delivery, context: hapax.BlockingContext) -> None:
        began.set()
        free.wait(60)
        with pytest.raises(hapax.LeaseLost):
            context.save("p", "too late")
        late.set()

    with worker:
        queue.send("x", key="a")
        assert began.wait(120)
    # If the broker did not hear of it in time, its lease ends after 30 s.
    (again,) = queue.receive(wait=60)
    assert again.attempt == 2
    assert again.recovery_points == {}
    free.set()
    assert late.wait(120), "it noticed that the message is not its own any more"


# ---- Processes that are killed


def start(broker: Broker, database: Path, queue: str, *kind: str) -> subprocess.Popen[str]:
    program = Path(__file__).parent / "programs" / "ledger.py"
    command = [sys.executable, str(program), broker.address, str(database), queue, *kind]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def entries(database: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(database, timeout=300)) as db:
        return [row[0] for row in db.execute("SELECT message_key FROM ledger")]


def test_workers_and_broker_are_killed_and_every_effect_happens_once(
    tmp_path: Path, until: Until
) -> None:
    database, count, dice = tmp_path / "ledger.db", 250, random.Random(7)
    with contextlib.closing(sqlite3.connect(database)) as db:
        db.executescript(tables("inbox", "sqlite"))
        db.execute("CREATE TABLE ledger (message_key TEXT)")  # No unique key: twice would be seen.
        db.commit()
    with Broker() as broker, broker.client() as client:
        queue = client.queue("ledger")
        # A machine that stalls loses leases of a second, and each of them is an attempt.
        queue.create(
            {"lease_ms": 1000, "backoff_min_ms": 1, "backoff_max_ms": 20, "max_attempts": 1000}
        )
        queue.send_all([hapax.Message("x", key=f"k{n}") for n in range(count)])
        workers = [start(broker, database, "ledger"), start(broker, database, "ledger", "blocking")]
        try:
            for kill in range(1, 7):
                before = len(entries(database))
                wanted = min(count - 20, before + 20)
                until(lambda wanted=wanted: len(entries(database)) >= wanted)  # type: ignore[misc]
                if kill == 3:
                    broker.kill()
                    broker.start()
                place = dice.randrange(2)
                workers[place].kill()
                workers[place].wait()
                workers[place] = start(broker, database, "ledger", *(["blocking"] * place))
            for number in range(count):
                found = queue.key(f"k{number}", wait=60)
                assert found.state == "done", found
                assert found.result == hapax.Blob(f"entered k{number}".encode())
            workers[1].kill()
            queue.send("x", key="last")  # Done by the other, which is up then and hears signals.
            assert queue.key("last", wait=60).state == "done"
            workers[0].send_signal(signal.SIGTERM)
            output, _ = workers[0].communicate(timeout=300)
            assert output == "drained\n", "SIGTERM ends a worker in good order"
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
    written = entries(database)
    assert sorted(written) == sorted([*(f"k{n}" for n in range(count)), "last"])


# ---- Parts that need no broker


def delivery(lease: str = "l", seconds: float = 10.0) -> hapax.Delivery:
    fields: dict[str, Any] = dict.fromkeys(("tenant", "queue", "key", "id", "attempt", "group"))
    fields |= {"lease": lease, "lease_ms": seconds * 1000, "fence": "1", "generation": 0}
    return hapax.Delivery(fields)


def test_a_lease_is_extended_in_time_and_again() -> None:
    leases = Leases()
    hold = leases.take(delivery(), 100.0)
    assert leases.next_due() == 104.0
    assert leases.due(103.0) == ([], [])
    extensions, lost = leases.due(104.0)
    assert ([it.length for it in extensions], lost) == ([10.0], [])
    leases.extended(hold, 114.0)
    assert leases.due(107.0) == ([], [])
    assert len(leases.due(108.0)[0]) == 1
    leases.drop(hold)
    assert (len(leases), leases.next_due()) == (0, None)


def test_a_lease_that_nobody_extends_is_lost_when_its_time_is_over() -> None:
    leases = Leases()
    hold = leases.take(delivery(), 100.0)
    assert len(leases.due(105.0)[0]) == 1
    assert leases.due(109.0) == ([], []), "asked, and not answered"
    assert leases.next_due() == 110.0
    assert leases.due(110.0) == ([], [hold])
    assert hold.lose()
    assert not hold.lose(), "it is news once"
    assert leases.next_due() is None, "and it is not extended any more"


def test_a_refused_extension_is_tried_again_and_never_asks_for_less_than_the_handler() -> None:
    leases = Leases()
    hold = leases.take(delivery(), 100.0)
    leases.due(104.0)
    leases.not_extended(hold)
    hold.wanted = 160.0
    (extension,), _ = leases.due(108.0)
    assert extension.length == 52.0


def test_what_is_no_outcome_of_a_step_is_not_taken_for_one() -> None:
    assert Ledger({}).found("charge", "k") is None
    done = Ledger({"step:charge": outcome("charge", "k", ["receipt", 7])}).found("charge", "k")
    assert done is not None
    assert (done.is_done, done.outcome) == (True, ["receipt", 7])
    begun = Ledger({"step:charge": intent("older")}).found("charge", "k")
    assert begun is not None
    assert (begun.is_done, begun.key) == (False, "older")
    for data in (b"17 euro", b"[]", b'{"step":"other","key":"k"}', b'{"step":"done"}'):
        with pytest.raises(hapax.Fail, match="not written by a step"):
            Ledger({"step:charge": data}).found("charge", "k")
    with pytest.raises(hapax.Fail, match="another message"):
        Ledger({"step:charge": outcome("charge", "foreign", 1)}).found("charge", "k")
    with pytest.raises(hapax.Dead, match="JSON"):
        outcome("charge", "k", object())


def test_a_step_begins_only_where_its_outcome_has_room() -> None:
    room = POINTS_BYTES_MAX - len("step:a") - ROOM_BYTES - 1
    Ledger({"x": bytes(room)}).reserve("a")
    with pytest.raises(hapax.Dead, match="not begun"):
        Ledger({"x": bytes(room + 1)}).reserve("a")
    many = Ledger({f"p{n}": b"x" for n in range(POINTS_MAX - 1)})
    many.reserve("a")
    with pytest.raises(hapax.Dead, match="not begun"):
        many.reserve("b")
    names = Ledger({})
    names.take("x" * NAME_BYTES_MAX)
    for name in ("", "x" * (NAME_BYTES_MAX + 1), "x" * NAME_BYTES_MAX):
        with pytest.raises(hapax.Dead):
            names.take(name)


def test_an_outcome_that_cannot_be_stored_makes_the_message_dead(
    hapax_client: hapax.Client,
) -> None:
    queue = hapax_client.queue("large-steps")
    queue.create()
    worker = hapax.Worker(hapax_client)

    @worker.handler("large-steps")
    async def handle(message: hapax.Delivery, context: hapax.Context) -> None:
        async def call(key: str) -> str:
            return "x" * 70_000

        await context.step("charge", call)

    with worker:
        answer = queue.send_and_wait("x", key="k", wait=120)
    assert answer.answer == "dead"
    assert "cannot be stored" in (answer.error or "")
    assert b"too_large" in queue.key("k").recovery_points["step:charge"]
