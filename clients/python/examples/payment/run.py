"""Starts all parts, sends every order twice, kills them meanwhile, and counts."""

from __future__ import annotations

import argparse
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2

import hapax
from hapax.testing import Broker, binary

HERE = Path(__file__).parent
PATIENCE_SECONDS = 600


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


class Town:
    """The processes and the database."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self.database = directory / "shop.db"
        self.api, self.bank = free_port(), free_port()
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        with sqlite3.connect(self.database) as db:
            for table in ("inbox", "outbox"):
                command = [binary(), "sql", "--dialect", "sqlite", table]
                db.executescript(subprocess.check_output(command, text=True, env={}))
            db.execute("CREATE TABLE orders (number TEXT PRIMARY KEY, cents INTEGER)")
            db.execute("CREATE TABLE payments (number TEXT, receipt TEXT)")  # Not unique: we count.

    def start(self, name: str) -> None:
        environment = {
            **{key: it for key, it in os.environ.items() if not key.startswith("HAPAX_")},
            "HAPAX_SERVER": self.broker.address,
            "SHOP_DATABASE": str(self.database),
            "SHOP_BANK": f"http://127.0.0.1:{self.bank}",
            "SHOP_PORT": str(self.bank if name == "bank" else self.api),
        }
        command = [sys.executable, str(HERE / f"{name}.py")]
        if name == "relay":
            command = [binary(), "relay", "--database", f"sqlite://{self.database}"]
            command += ["--server", self.broker.address, "--log", "error"]
        self._running[name] = subprocess.Popen(command, env=environment)

    def kill(self, name: str) -> None:
        self._running[name].kill()
        self._running[name].wait()
        self.start(name)

    def stop(self) -> None:
        for process in self._running.values():
            process.kill()
            process.wait()

    def count(self, table: str) -> int:
        with sqlite3.connect(self.database, timeout=30) as db:
            return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


def order(town: Town, number: int) -> str:
    """A customer: sends under one key until there is an answer."""
    key, until = f"cart-{number}", time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            answer = httpx2.post(
                f"http://127.0.0.1:{town.api}/orders",
                json={"cents": 100 + number},
                headers={"Idempotency-Key": key},
                timeout=10,
                trust_env=False,
            )
            if answer.status_code == 201:
                return str(answer.json()["order"])
        except httpx2.TransportError:
            pass
        assert time.monotonic() < until, "no answer"
        time.sleep(0.1)


def wait_for(town: Town, table: str, count: int) -> None:
    until = time.monotonic() + PATIENCE_SECONDS
    while town.count(table) < count:
        assert time.monotonic() < until, f"{town.count(table)} of {count} {table}"
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--orders", type=int, default=40)
    count = parser.parse_args().orders
    with tempfile.TemporaryDirectory() as directory, Broker() as broker:
        with broker.client() as client:
            client.queue("http").create()
            rules: hapax.QueueConfig = {"lease_ms": 2000}
            client.queue("orders").create({**rules, "backoff_min_ms": 10, "backoff_max_ms": 100})
        town = Town(broker, Path(directory))
        try:
            for name in ("bank", "api", "relay", "payments"):
                town.start(name)
            with ThreadPoolExecutor(max_workers=8) as pool:
                first = [pool.submit(order, town, n) for n in range(count)]
                again = [pool.submit(order, town, n) for n in range(count)]
                wait_for(town, "orders", count // 4)
                town.kill("api")
                wait_for(town, "payments", count // 4)
                town.kill("payments")
                broker.kill()
                broker.start()
                wait_for(town, "payments", count // 2)
                town.kill("payments")
                same = all(
                    one.result() == two.result() for one, two in zip(first, again, strict=True)
                )
            wait_for(town, "payments", count)
            url = f"http://127.0.0.1:{town.bank}/charged"
            charged = Counter(httpx2.get(url, trust_env=False).json())
            twice = sum(number > 1 for number in charged.values())
            print(f"{town.count('orders')} orders, {len(charged)} charged, {twice} charged twice")
            print(f"{town.count('payments')} payments written")
            ok = same and twice == 0 and len(charged) == count == town.count("payments")
            sys.exit(0 if ok and town.count("orders") == count else 1)
        finally:
            town.stop()


if __name__ == "__main__":
    main()
