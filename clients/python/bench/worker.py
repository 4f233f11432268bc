"""How many messages a second one Python worker finishes, beside a bare loop and Celery.

    HAPAX_BIN=target/release/hapax python bench/worker.py --celery

All of it runs in one process and takes turns, on a broker (and a Redis) started for it; medians of
the rounds count. Handlers do nothing. Every message is durable before it is confirmed: the broker
syncs, Redis runs with ``appendfsync always``, Celery acknowledges after the task (``acks_late``).

- worker: ``hapax.Worker`` with so many handlers at once, and as many messages waiting;
- bare: two loops that receive so many messages, run a handler for each in a task (so that as many
  are in flight), and settle them, over the same HTTP client: the same requests without leases,
  retries or types;
- empty: the same without handlers;
- celery: a worker with so many threads, on Redis (``pip install celery[redis]``; redis-server on
  the path, or ``--redis-server``).

CPU is that of this interpreter (``getrusage``: user and system, all threads), in microseconds per
message. On a busy machine it says more than messages per second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from statistics import median
from typing import Any, NamedTuple

import httpx2

import hapax
from hapax.testing import Broker


async def fill(queue: hapax.AsyncQueue, count: int, number: int) -> None:
    body = "x" * 100
    await queue.create({"lease_ms": 60000})
    for start in range(0, count, 1000):
        keys = range(start, min(start + 1000, count))
        answers = await queue.send_all([hapax.Message(body, key=f"{number}-{n}") for n in keys])
        assert all(isinstance(it, hapax.Answer) for it in answers)


class Rate(NamedTuple):
    """Messages a second, and microseconds of CPU that this process spent on each."""

    per_second: float
    cpu: float


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Clock:
    """Measures from its making on."""

    def __init__(self) -> None:
        self._start, self._cpu = time.perf_counter(), cpu_seconds()

    def rate(self, count: int) -> Rate:
        seconds, cpu = time.perf_counter() - self._start, cpu_seconds() - self._cpu
        return Rate(count / seconds, cpu / count * 1e6)


async def worker_rate(client: hapax.AsyncClient, count: int, in_flight: int, number: int) -> Rate:
    queue = client.queue(f"worker-{number}")
    await fill(queue, count, number)
    worker = hapax.Worker(client, concurrency=in_flight)

    @worker.handler(queue.name)
    async def handle(message: hapax.Delivery, context: hapax.Context) -> None: ...

    clock = Clock()
    async with worker:
        while sum(it.done for it in worker.health().queues) < count:
            await asyncio.sleep(0.002)
        rate = clock.rate(count)
    await queue.delete()
    return rate


async def nothing(message: dict[str, Any]) -> None: ...


async def bare_rate(
    client: hapax.AsyncClient, count: int, in_flight: int, number: int, *, handles: bool = True
) -> Rate:
    queue = client.queue(f"bare-{handles}-{number}")
    await fill(queue, count, number)
    path = f"/v1/queues/{queue.name}"
    headers = {"content-type": "application/json"}
    settled = 0
    async with httpx2.AsyncClient(base_url=client.address, trust_env=False) as http:

        async def loop() -> None:
            nonlocal settled
            while settled < count:
                request = json.dumps({"max": in_flight, "wait_ms": 100, "worker": "bare"})
                reply = await http.post(f"{path}/receive", content=request, headers=headers)
                messages = json.loads(reply.content)["messages"]
                if not messages:
                    continue
                if handles:
                    await asyncio.gather(*[nothing(it) for it in messages])
                done = [{"lease": it["lease"], "do": "done"} for it in messages]
                items = json.dumps({"items": done})
                reply = await http.post(f"{path}/settle", content=items, headers=headers)
                answers = json.loads(reply.content)["answers"]
                settled += sum(it["answer"] == "ok" for it in answers)

        clock = Clock()
        await asyncio.gather(loop(), loop())
        rate = clock.rate(count)
    await queue.delete()
    return rate


class Redis:
    """A Redis that syncs before it answers."""

    def __init__(self, program: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        self.directory = tempfile.mkdtemp(prefix="hapax-bench-")
        settings = f"--port {self.port} --bind 127.0.0.1 --appendonly yes --appendfsync always"
        command = [program, *settings.split(), "--dir", self.directory, "--save", ""]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        until = time.monotonic() + 30
        while time.monotonic() < until:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError("Redis did not start")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


class Celery:
    """A Celery application on Redis, whose worker runs in threads of this process."""

    def __init__(self, redis: Redis) -> None:
        import celery

        url = f"redis://127.0.0.1:{redis.port}/0"
        self.app = celery.Celery("bench", broker=url)
        self.app.conf.update(
            task_acks_late=True,
            task_ignore_result=True,
            worker_prefetch_multiplier=2,
            worker_hijack_root_logger=False,
            broker_connection_retry_on_startup=True,
        )
        self.count = 0
        self.wanted = 0
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.clock = Clock()
        self.rated = Rate(0.0, 0.0)

        def work(body: str) -> None:
            with self.lock:
                self.count += 1
                if self.count == 1:
                    self.clock = Clock()  # Its start is not counted.
                if self.count == self.wanted:
                    self.rated = self.clock.rate(self.wanted)
                    self.done.set()

        self.task: Any = self.app.task(name="bench.work")(work)

    def rate(self, count: int, in_flight: int) -> Rate:
        from celery.contrib.testing.worker import start_worker

        body = "x" * 100
        for _ in range(count):
            self.task.apply_async((body,))
        self.count, self.wanted = 0, count
        self.done.clear()
        with start_worker(
            self.app, pool="threads", concurrency=in_flight, perform_ping_check=False
        ):
            self.done.wait()
        return self.rated


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=20_000)
    parser.add_argument("--celery-messages", type=int, default=5_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[16, 128])
    parser.add_argument("--celery", action="store_true")
    parser.add_argument("--redis-server", default=shutil.which("redis-server"))
    options = parser.parse_args()
    if options.celery and not options.redis_server:
        sys.exit("redis-server is missing: as root, apt-get install redis-server")
    logging.getLogger("celery").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # Ends what was started, too.
    redis = Redis(options.redis_server) if options.celery else None
    celery = Celery(redis) if redis is not None else None
    columns = ["worker", "bare loop", "empty loop", *(["celery"] if celery else [])]
    columns += ["worker's CPU over bare", "over empty"]
    print(f"| in flight | {' | '.join(columns)} |")
    print(f"|---{'|---' * len(columns)}|")
    try:
        with Broker() as broker:
            for in_flight in options.in_flight:
                row = measure(broker, celery, options, in_flight)
                print(row, flush=True)
    finally:
        if redis is not None:
            redis.close()


def measure(
    broker: Broker, celery: Celery | None, options: argparse.Namespace, in_flight: int
) -> str:
    """Takes turns, in another order each time. A cell has messages per second and CPU."""
    rounds: list[dict[str, Rate]] = []
    for number in range(options.rounds):

        async def turn(name: str, place: int = number) -> Rate:
            async with broker.async_client() as client:
                count, queue = options.messages, in_flight * 1000 + place
                if name == "worker":
                    return await worker_rate(client, count, in_flight, queue)
                return await bare_rate(client, count, in_flight, queue, handles=name == "bare")

        names = ["worker", "bare", "empty"]
        names = names[number % 3 :] + names[: number % 3]
        rates = {name: asyncio.run(turn(name)) for name in names}
        if celery is not None:
            rates["celery"] = celery.rate(options.celery_messages, in_flight)
        rounds.append(rates)
    cells = []
    for name in ("worker", "bare", "empty", *(["celery"] if celery else [])):
        per_second = median(it[name].per_second for it in rounds)
        cpu = median(it[name].cpu for it in rounds)
        cells.append(f"{per_second:,.0f}/s, {cpu:.0f} µs")
    for name in ("bare", "empty"):
        ratio = median(it["worker"].cpu / it[name].cpu for it in rounds)
        cells.append(f"{(ratio - 1) * 100:+.0f} %")
    return f"| {in_flight} | {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
