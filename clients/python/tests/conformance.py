"""Runs a case of ``clients/conformance/cases.json`` with the client of this package.

One runner serves the asynchronous and the blocking client: ``await`` is applied to what a call
returns where that is needed.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import hapax
from hapax.testing import Broker

CASES = Path(__file__).parents[2] / "conformance" / "cases.json"
STEP_FIELDS = {"op", "expect", "keep", "within_ms", "background", "timeout_ms"}


def cases() -> list[dict[str, Any]]:
    document = json.loads(CASES.read_text(encoding="utf-8"))
    assert document["version"] == 1, "a version that this runner does not know"
    listed: list[dict[str, Any]] = document["cases"]
    return listed


class Mismatch(AssertionError):
    pass


def check(expected: Any, found: Any, path: str = "result") -> None:
    """Raises where the result is not as expected: see the README of the suite."""
    if isinstance(expected, dict):
        if len(expected) == 1 and next(iter(expected)).startswith("$"):
            check_test(*next(iter(expected.items())), found, path)
            return
        if not isinstance(found, dict):
            raise Mismatch(f"{path}: {found!r} is not an object like {expected!r}")
        for name, value in expected.items():
            check(value, found.get(name), f"{path}.{name}")
        return
    if isinstance(expected, list):
        if not isinstance(found, list) or len(expected) != len(found):
            raise Mismatch(f"{path}: expected {expected!r}, found {found!r}")
        for index, value in enumerate(expected):
            check(value, found[index], f"{path}[{index}]")
        return
    if expected != found or isinstance(expected, bool) != isinstance(found, bool):
        raise Mismatch(f"{path}: expected {expected!r}, found {found!r}")


def check_test(name: str, value: Any, found: Any, path: str) -> None:
    if name == "$any":
        matches = found is not None
    elif name == "$in":
        matches = any(is_match(it, found) for it in value)
    elif name == "$contains":
        matches = isinstance(found, str) and value in found
    elif name == "$newer":
        matches = int(found) > int(value)
    elif name == "$not":
        matches = not is_match(value, found)
    else:
        raise AssertionError(f"unknown test {name}")
    if not matches:
        raise Mismatch(f"{path}: {found!r} is not {name} {value!r}")


def is_match(expected: Any, found: Any) -> bool:
    try:
        check(expected, found)
    except Mismatch:
        return False
    return True


def blob(fields: Mapping[str, Any] | None) -> hapax.Blob | None:
    if fields is None:
        return None
    return hapax.Blob(body(fields), fields.get("content_type"))


def body(fields: Mapping[str, Any]) -> bytes:
    if "body_base64" in fields:
        return base64.b64decode(fields["body_base64"])
    return str(fields.get("body", "")).encode()


def told(data: bytes | None, content_type: str | None = None) -> dict[str, Any] | None:
    if data is None:
        return None
    try:
        fields: dict[str, Any] = {"body": data.decode()}
    except UnicodeDecodeError:
        fields = {"body_base64": base64.b64encode(data).decode()}
    return {**fields, "content_type": content_type}


def told_blob(it: hapax.Blob | None) -> dict[str, Any] | None:
    return None if it is None else told(it.body, it.content_type)


def told_points(points: Mapping[str, bytes]) -> dict[str, Any]:
    return {name: told(data) for name, data in points.items()}


def told_answer(it: hapax.Answer | hapax.Error) -> dict[str, Any]:
    if isinstance(it, hapax.Error):
        differs = list(it.differs) if isinstance(it, hapax.Conflict) else None
        return {
            "answer": "error",
            "code": it.code,
            "retryable": it.retryable,
            "detail": it.detail,
            "differs": differs,
        }
    return {
        "answer": it.answer,
        "id": it.id,
        "state": it.state,
        "attempts": it.attempts,
        "result": told_blob(it.result),
        "error": it.error,
    }


def told_settled(it: hapax.Settled) -> dict[str, Any]:
    return {"answer": it.answer, "state": it.state, "result": told_blob(it.result)}


def told_delivery(it: hapax.Delivery) -> dict[str, Any]:
    return {
        **(told(it.body, it.content_type) or {}),
        "lease": it.lease,
        "fence": str(it.fence),
        "tenant": it.tenant,
        "queue": it.queue,
        "key": it.key,
        "id": it.id,
        "attempt": it.attempt,
        "generation": it.generation,
        "group": it.group,
        "headers": dict(it.headers),
        "lease_ms": round(it.lease_seconds * 1000),
        "recovery_points": told_points(it.recovery_points),
    }


def message(fields: Mapping[str, Any]) -> hapax.Message:
    issued_at = fields.get("issued_at")
    return hapax.Message(
        body(fields),
        key=fields.get("key"),
        content_type=fields.get("content_type"),
        group=fields.get("group"),
        headers=fields.get("headers") or {},
        delay=seconds(fields, "delay_ms"),
        ttl=seconds(fields, "ttl_ms"),
        fingerprint=fields.get("fingerprint"),
        issued_at=datetime.fromisoformat(issued_at.replace("Z", "+00:00")) if issued_at else None,
    )


def emits(fields: Mapping[str, Any]) -> list[hapax.Emit]:
    return [hapax.Emit(it["queue"], it["name"], message(it)) for it in fields.get("emit", [])]


def seconds(fields: Mapping[str, Any], name: str) -> float | None:
    return fields[name] / 1000 if name in fields else None


class Workers:
    """The workers of a case, each in a thread, with handlers that execute actions."""

    def __init__(self, address: str, is_async: bool) -> None:
        self._address = address
        self._is_async = is_async
        self._lock = threading.Lock()
        self._running: dict[str, hapax.Worker] = {}
        self.logs: dict[str, list[dict[str, Any]]] = {}
        self.calls: dict[str, list[str]] = {}

    def start(self, step: Mapping[str, Any]) -> None:
        name, script = step["name"], step["handler"]
        log = self.logs.setdefault(name, [])
        worker = hapax.Worker(
            self._address,
            concurrency=step.get("concurrency", 4),
            lease=seconds(step, "lease_ms"),
            drain_timeout=10,
        )

        def entry(it: hapax.Delivery) -> tuple[list[Any], dict[str, Any]]:
            attempt = {"key": it.key, "attempt": it.attempt, "steps": {}, "lost": False}
            with self._lock:
                log.append(attempt)
            return script[min(it.attempt, len(script)) - 1], attempt

        async def handle(it: hapax.Delivery, context: hapax.Context) -> Any:
            actions, attempt = entry(it)
            for action in actions:
                returned = await self._act(action, context, attempt)
                if returned is not None:
                    return returned
            return None

        def block(it: hapax.Delivery, context: hapax.BlockingContext) -> Any:
            actions, attempt = entry(it)
            for action in actions:
                returned = self._block(action, context, attempt)
                if returned is not None:
                    return returned
            return None

        worker.handler(step["queue"])(handle if self._is_async else block)
        worker.start()
        self._running[name] = worker

    def _called(self, action: Mapping[str, Any], attempt: dict[str, Any], key: str) -> Any:
        with self._lock:
            self.calls.setdefault(action["step"], []).append(key)
        attempt["steps"][action["step"]] = {"key": key, "called": True}
        if "error" in action:
            raise hapax.Fail(action["error"])
        return action["outcome"]

    async def _act(
        self, action: Mapping[str, Any], context: hapax.Context, attempt: dict[str, Any]
    ) -> Any:
        if "step" in action:

            async def call(key: str) -> Any:
                return self._called(action, attempt, key)

            attempt["steps"].setdefault(action["step"], {"called": False})
            await context.step(action["step"], call)
        elif "save" in action:
            await context.save(action["save"], body(action))
        elif "begin" in action:
            await context.begin()
        elif "extend_ms" in action:
            await context.extend(action["extend_ms"] / 1000)
        elif action.get("until") == "lost":
            try:
                await context.lost()
            except asyncio.CancelledError:
                assert context.is_lost
            attempt["lost"] = True
        elif action.get("until") == "stopping":
            await context.stopping()
        elif "sleep_ms" in action:
            await asyncio.sleep(action["sleep_ms"] / 1000)
        else:
            return self._end(action)
        return None

    def _block(
        self, action: Mapping[str, Any], context: hapax.BlockingContext, attempt: dict[str, Any]
    ) -> Any:
        if "step" in action:
            attempt["steps"].setdefault(action["step"], {"called": False})
            context.step(action["step"], lambda key: self._called(action, attempt, key))
        elif "save" in action:
            context.save(action["save"], body(action))
        elif "begin" in action:
            context.begin()
        elif "extend_ms" in action:
            context.extend(action["extend_ms"] / 1000)
        elif action.get("until") == "lost":
            context.lost.wait()
            attempt["lost"] = True
        elif action.get("until") == "stopping":
            context.stopping.wait()
        elif "sleep_ms" in action:
            context.lost.wait(action["sleep_ms"] / 1000)
        else:
            return self._end(action)
        return None

    @staticmethod
    def _end(action: Mapping[str, Any]) -> hapax.Done:
        if "return" in action:
            outcome = action["return"]
            return hapax.Done(blob(outcome.get("result")), emits(outcome))
        if "panic" in action:
            raise ZeroDivisionError(action["panic"])
        assert "fail" in action, f"unknown action {action}"
        kind = hapax.InDoubt if action.get("in_doubt") else hapax.Fail
        raise kind(
            action["fail"],
            retry_in=seconds(action, "retry_in_ms"),
            dead=action.get("dead", False),
        )

    def stop(self, name: str, drain_ms: int | None) -> None:
        worker = self._running.pop(name)
        if drain_ms is not None:
            worker.stop()
            time.sleep(drain_ms / 1000)
            worker.stop(give_up=True)
        worker.join()

    def close(self) -> None:
        for worker in self._running.values():
            worker.stop(give_up=True)
        for name in list(self._running):
            self._running.pop(name).join()


class Runner:
    """Runs one case."""

    def __init__(self, broker: Broker, is_async: bool) -> None:
        self._broker = broker
        self._is_async = is_async
        self._loop = asyncio.new_event_loop()
        self._loop_thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._loop_thread.start()
        self._pool = ThreadPoolExecutor(max_workers=16)
        self._clients: dict[float, Any] = {}
        self._variables: dict[str, Any] = {}
        self._background: dict[str, Any] = {}
        self._claims: dict[str, Any] = {}
        self._workers = Workers(broker.address, is_async)

    def run(self, case: Mapping[str, Any]) -> None:
        assert set(case) <= {"name", "queues", "steps"}, f"unknown fields of {case['name']}"
        try:
            for name, config in case["queues"].items():
                self._wait(self._client(30).queue(name).create(config))
            for number, step in enumerate(case["steps"]):
                self._step(number, step)
        finally:
            self.close()

    def close(self) -> None:
        self._workers.close()
        for claim in self._claims.values():
            claim.drop()
        for client in self._clients.values():
            self._wait(client.close())
        self._pool.shutdown(wait=False)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._loop_thread.join()
        self._loop.close()

    def _step(self, number: int, step: Mapping[str, Any]) -> None:
        arguments = self._resolve({k: v for k, v in step.items() if k not in STEP_FIELDS})
        arguments["timeout"] = step.get("timeout_ms", 30000) / 1000
        op: Callable[..., Any] = getattr(self, f"op_{step['op']}")
        if "background" in step:
            assert "expect" not in step, "what is in the background is expected where it is joined"
            self._background[step["background"]] = self._pool.submit(self._try, op, arguments)
            return
        until = time.monotonic() + step.get("within_ms", 0) / 1000
        while True:
            result = self._try(op, arguments)
            try:
                check(self._resolve(step.get("expect", {})), result)
                break
            except Mismatch as mismatch:
                if time.monotonic() > until:
                    raise AssertionError(
                        f"step {number}, {json.dumps(step)}:\n{mismatch}\nin {result}"
                    ) from None
            time.sleep(0.05)
        if "expect" not in step and result.get("answer") == "error":
            raise AssertionError(f"step {number}, {json.dumps(step)}:\n{result}")
        for name, path in step.get("keep", {}).items():
            found: Any = result
            for part in path.split("."):
                found = found[int(part)] if isinstance(found, list) else found[part]
            self._variables[name] = found

    def _try(self, op: Callable[..., Any], arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            result: dict[str, Any] = op(**arguments) or {}
        except hapax.Error as error:
            return told_answer(error)
        return result

    def _resolve(self, value: Any) -> Any:
        if isinstance(value, str) and value.startswith("$"):
            return self._variables[value[1:]]
        if isinstance(value, list):
            return [self._resolve(it) for it in value]
        if isinstance(value, dict):
            return {name: self._resolve(it) for name, it in value.items()}
        return value

    def _client(self, timeout: float) -> Any:
        if timeout not in self._clients:
            kind = hapax.AsyncClient if self._is_async else hapax.Client
            self._clients[timeout] = kind(self._broker.address, timeout=timeout)
        return self._clients[timeout]

    def _queue(self, name: str, timeout: float = 30) -> Any:
        return self._client(timeout).queue(name)

    def _wait(self, value: Any) -> Any:
        """The outcome of a call of either client."""
        if not inspect.isawaitable(value):
            return value

        async def waited() -> Any:
            return await value

        return asyncio.run_coroutine_threadsafe(waited(), self._loop).result()

    # ---- Operations

    def op_send(
        self, queue: str, timeout: float, wait_ms: int | None = None, **fields: Any
    ) -> dict[str, Any]:
        it = self._queue(queue, timeout)
        if wait_ms is not None:
            return told_answer(self._wait(it.send_and_wait(message(fields), wait=wait_ms / 1000)))
        return told_answer(self._wait(it.send(message(fields))))

    def op_send_all(self, queue: str, timeout: float, messages: list[Any]) -> dict[str, Any]:
        listed = [message(it) for it in messages]
        answers = self._wait(self._queue(queue, timeout).send_all(listed))
        return {"answers": [told_answer(it) for it in answers]}

    def op_send_many(self, queue: str, timeout: float, prefix: str, count: int) -> dict[str, Any]:
        it = self._queue(queue, timeout)

        def send(number: int) -> bool:
            name = f"{prefix}{number}"
            try:
                self._wait(it.send(name, key=name))
            except hapax.Error:
                return False
            return True

        with ThreadPoolExecutor(max_workers=8) as pool:
            answered = sum(pool.map(send, range(count)))
        return {"answered": answered, "refused": count - answered}

    def op_receive(
        self,
        queue: str,
        timeout: float,
        max: int = 1,
        wait_ms: int = 0,
        lease_ms: int | None = None,
        worker: str | None = None,
        receive_id: str | None = None,
    ) -> dict[str, Any]:
        messages = self._wait(
            self._queue(queue, timeout).receive(
                max=max,
                wait=wait_ms / 1000,
                lease=None if lease_ms is None else lease_ms / 1000,
                worker=worker,
                receive_id=receive_id,
            )
        )
        return {"messages": [told_delivery(it) for it in messages]}

    def op_drain(self, queue: str, timeout: float) -> dict[str, Any]:
        it = self._queue(queue, timeout)
        keys: list[str] = []
        while True:
            messages = self._wait(it.receive(max=100, wait=0.3))
            if not messages:
                return {"messages": len(keys), "distinct": len(set(keys))}
            for delivery in messages:
                keys.append(delivery.key)
                assert not self._wait(it.done(delivery)).is_lost

    def op_done(self, timeout: float, **fields: Any) -> dict[str, Any]:
        done = hapax.Done(blob(fields.get("result")), emits(fields))
        if "claim" in fields:
            return told_settled(self._wait(self._claims[fields["claim"]].complete(done)))
        return self._settle(timeout, "done", fields, done)

    def op_fail(self, timeout: float, **fields: Any) -> dict[str, Any]:
        retry_in, dead = seconds(fields, "delay_ms"), fields.get("dead", False)
        return self._settle(timeout, "fail", fields, fields["error"], retry_in=retry_in, dead=dead)

    def op_park(self, timeout: float, **fields: Any) -> dict[str, Any]:
        retry_in, dead = seconds(fields, "delay_ms"), fields.get("dead", False)
        return self._settle(timeout, "park", fields, fields["error"], retry_in=retry_in, dead=dead)

    def op_release(self, timeout: float, **fields: Any) -> dict[str, Any]:
        return self._settle(timeout, "release", fields)

    def op_begin(self, timeout: float, **fields: Any) -> dict[str, Any]:
        return self._settle(timeout, "begin", fields)

    def op_extend(self, timeout: float, **fields: Any) -> dict[str, Any]:
        return self._settle(timeout, "extend", fields, seconds(fields, "lease_ms"))

    def op_save(self, timeout: float, **fields: Any) -> dict[str, Any]:
        return self._settle(timeout, "save", fields, fields["name"], body(fields))

    def _settle(
        self, timeout: float, verb: str, fields: Mapping[str, Any], *arguments: Any, **more: Any
    ) -> dict[str, Any]:
        if "claim" in fields:
            claim = self._claims[fields["claim"]]
            try:
                settled = self._wait(getattr(claim, verb)(*arguments))
            except hapax.LeaseLost:
                return {"answer": "lease_lost"}
            return {"answer": "ok"} if settled is None else told_settled(settled)
        queue = self._queue(fields["queue"], timeout)
        return told_settled(self._wait(getattr(queue, verb)(fields["lease"], *arguments, **more)))

    def op_claim(
        self,
        queue: str,
        timeout: float,
        key: str,
        lease_ms: int = 30000,
        wait_ms: int = 0,
        **fields: Any,
    ) -> dict[str, Any]:
        name = fields.pop("as", None)
        assert set(fields) <= {"body", "body_base64", "fingerprint"}, f"unknown fields: {fields}"
        claim = self._wait(
            self._queue(queue, timeout).claim(
                key,
                body(fields),
                lease=lease_ms / 1000,
                wait=wait_ms / 1000,
                fingerprint=fields.get("fingerprint"),
            )
        )
        if name is not None:
            self._claims[name] = claim
        elif claim.is_fresh:
            self._claims[f"unnamed {id(claim)}"] = claim
        return {
            "answer": claim.answer,
            "fence": str(claim.fence),
            "tenant": claim.tenant,
            "recovery_points": told_points(claim.recovery_points),
            "result": told_blob(claim.result),
        }

    def op_drop_claim(self, timeout: float, claim: str) -> None:
        self._claims[claim].drop()

    def op_is_lost(self, timeout: float, claim: str) -> dict[str, Any]:
        return {"lost": self._claims[claim].is_lost}

    def op_look(
        self, queue: str, timeout: float, key: str, group: str | None = None, wait_ms: int = 0
    ) -> dict[str, Any]:
        it = self._wait(self._queue(queue, timeout).key(key, group=group, wait=wait_ms / 1000))
        return {
            "state": it.state,
            "id": it.id,
            "attempts": it.attempts,
            "generation": it.generation,
            "duplicates": it.duplicates,
            "group": it.group,
            "result": told_blob(it.result),
            "error": it.error,
            "recovery_points": told_points(it.recovery_points),
        }

    def op_forget(self, queue: str, timeout: float, **where: Any) -> dict[str, Any]:
        self._wait(self._queue(queue, timeout).forget(**where))
        return {"answer": "ok"}

    def op_redrive(self, queue: str, timeout: float, **where: Any) -> dict[str, Any]:
        self._wait(self._queue(queue, timeout).redrive_key(**where))
        return {"answer": "ok"}

    def op_discard(self, queue: str, timeout: float, **where: Any) -> dict[str, Any]:
        self._wait(self._queue(queue, timeout).discard(**where))
        return {"answer": "ok"}

    def op_replay(self, queue: str, timeout: float, key: str, **fields: Any) -> dict[str, Any]:
        self._wait(self._queue(queue, timeout).replay(key, message(fields)))
        return {"answer": "ok"}

    def op_resolve(
        self, queue: str, timeout: float, key: str, do: str, result: Any = None
    ) -> dict[str, Any]:
        self._wait(self._queue(queue, timeout).resolve(key, do, blob(result)))
        return {"answer": "ok"}

    def op_create_queue(self, queue: str, timeout: float, config: Any) -> dict[str, Any]:
        return self._told_queue(self._wait(self._queue(queue, timeout).create(config)))

    def op_queue(self, queue: str, timeout: float) -> dict[str, Any]:
        return self._told_queue(self._wait(self._queue(queue, timeout).info()))

    @staticmethod
    def _told_queue(it: hapax.QueueInfo) -> dict[str, Any]:
        return {
            "queue": it.queue,
            "config": dict(it.config),
            "stats": dict(it.stats),
            "paused": it.paused,
        }

    def op_delete_queue(self, queue: str, timeout: float) -> dict[str, Any]:
        self._wait(self._queue(queue, timeout).delete())
        return {"answer": "ok"}

    def op_pause(self, queue: str, timeout: float) -> dict[str, Any]:
        self._wait(self._queue(queue, timeout).pause())
        return {"answer": "ok"}

    def op_resume(self, queue: str, timeout: float) -> dict[str, Any]:
        self._wait(self._queue(queue, timeout).resume())
        return {"answer": "ok"}

    def op_purge(self, queue: str, timeout: float) -> dict[str, Any]:
        self._wait(self._queue(queue, timeout).purge())
        return {"answer": "ok"}

    def op_derive(self, timeout: float, **parts: Any) -> dict[str, Any]:
        return {"key": hapax.derive(**parts)}

    def op_new_key(self, timeout: float) -> dict[str, Any]:
        return {"key": hapax.new_key()}

    def op_kill_broker(self, timeout: float) -> None:
        self._broker.kill()

    def op_start_broker(self, timeout: float) -> None:
        self._broker.start()

    def op_wait(self, timeout: float, ms: int) -> None:
        time.sleep(ms / 1000)

    def op_join(self, timeout: float, name: str) -> dict[str, Any]:
        result: dict[str, Any] = self._background.pop(name).result()
        return result

    def op_start_worker(self, timeout: float, **step: Any) -> None:
        self._workers.start(step)

    def op_stop_worker(self, timeout: float, name: str, drain_ms: int | None = None) -> None:
        self._workers.stop(name, drain_ms)

    def op_worker_log(self, timeout: float, name: str) -> dict[str, Any]:
        return {"attempts": list(self._workers.logs[name])}

    def op_calls(self, timeout: float, name: str) -> dict[str, Any]:
        return {"calls": list(self._workers.calls.get(name, []))}
