"""The middleware, under a bare ASGI application, Starlette and FastAPI."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import fastapi
import httpx2
import pytest
from fake import Fake, response
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route as StarletteRoute

import hapax
from hapax.asgi import BadRoute, Idempotency, IdempotencyMiddleware, Operation, Route
from hapax.asgi import _identity as identity
from hapax.asgi import _stored as stored
from hapax.asgi._problem import Problem
from hapax.asgi._route import read_loosely, read_path
from hapax.testing import Broker

Endpoint = Callable[[Request], Awaitable[Response]]
#: Longer than any stall of a busy machine.
STALL_SECONDS = 60.0


class Shop:
    """A service with one protected route, whose handler the test gives."""

    def __init__(self, broker: Broker, queue: str, handler: Endpoint, **rules: Any) -> None:
        self.calls = 0
        self.client = broker.async_client()
        rules.setdefault("required", ["POST /charges"])
        rules.setdefault("optional", ["PUT /orders/{order}"])
        # A machine that stalls for seconds is not a broker that is away.
        rules.setdefault("broker_timeout", STALL_SECONDS)
        rules.setdefault("lease", 2 * STALL_SECONDS)
        rules.setdefault("wait_max", STALL_SECONDS)
        self.idempotency = Idempotency(self.client.queue(queue), **rules)

        async def counted(request: Request) -> Response:
            self.calls += 1
            return await handler(request)

        routes = [
            StarletteRoute("/charges", counted, methods=["POST", "GET"]),
            StarletteRoute("/orders/{order}", counted, methods=["PUT"]),
            StarletteRoute("/{rest:path}", counted, methods=["POST", "post"]),
        ]
        app = Starlette(routes=routes)
        app.add_middleware(IdempotencyMiddleware, idempotency=self.idempotency)
        transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
        self.http = httpx2.AsyncClient(transport=transport, base_url="http://shop")

    async def charge(
        self, key: str | None = "k", body: str = "17 euro", **headers: str
    ) -> httpx2.Response:
        sent = {"content-type": "text/plain", **headers}
        if key is not None:
            sent["idempotency-key"] = key
        return await self.http.post("/charges", content=body, headers=sent)


@contextlib.asynccontextmanager
async def shop(
    broker: Broker, queue: hapax.Queue, handler: Endpoint, **rules: Any
) -> AsyncIterator[Shop]:
    it = Shop(broker, queue.name, handler, **rules)
    try:
        yield it
        assert await it.idempotency.drained(STALL_SECONDS)
    finally:
        await it.http.aclose()
        await it.client.close()


async def receipt(request: Request) -> Response:
    body = await request.body()
    return JSONResponse({"charged": body.decode()}, status_code=201, headers={"x-receipt": "7"})


def code(response: httpx2.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json"
    document = response.json()
    assert document["status"] == response.status_code
    assert document["retryable"] == ("retry-after" in response.headers)
    return response.status_code, document["code"]


def test_a_retry_gets_the_response_of_the_first_request(
    hapax_broker: Broker, hapax_queue: hapax.Queue
) -> None:
    async def main() -> None:
        async with shop(hapax_broker, hapax_queue, receipt) as it:
            assert await it.idempotency.check_queue() == []
            first = await it.charge()
            again = await it.charge('"k"')
            assert (first.status_code, first.json()) == (201, {"charged": "17 euro"})
            assert "idempotency-replayed" not in first.headers
            assert again.headers["idempotency-replayed"] == "true"
            assert (again.status_code, again.content) == (201, first.content)
            assert again.headers["x-receipt"] == "7"
            assert again.headers["content-type"] == first.headers["content-type"]
            assert code(await it.charge(body="18 euro")) == (422, "conflict")
            assert code(await it.charge(authorization="other")) == (422, "conflict")
            assert code(await it.charge(None)) == (400, "missing_key")
            assert code(await it.charge(None, **{"x-idempotency-key": "k"}))[1] == "missing_key"
            assert code(await it.charge("a,b")) == (400, "malformed_key")
            assert code(await it.charge("x" * 256)) == (400, "malformed_key")
            old = "0170a5a1-0000-7000-8000-000000000001"
            assert code(await it.charge(old)) == (410, "too_old")
            assert code(await it.charge("big", "x" * (1024 * 1024 + 1))) == (413, "too_large")
            assert it.calls == 1
            for path in ("//charges", "/x/../charges", "/%63harges"):
                response = await it.http.post(f"http://shop{path}", content="17 euro")
                assert code(response) == (400, "missing_key"), path
            for path in ("/CHARGES", "/charges;a=b", "/charges%2f", "/%2563harges"):
                response = await it.http.post(f"http://shop{path}", content="17 euro")
                assert code(response) == (400, "invalid"), path
            assert code(await it.charge("h", connection="close, Idempotency-Key"))[1] == "invalid"
            assert it.calls == 1
            assert (await it.http.put("/orders/7", content="a")).status_code == 201
            assert (await it.http.get("/charges")).status_code == 201
            assert it.calls == 3, "without a key these are not protected"
            for _ in range(2):
                headers = {"idempotency-key": "o"}
                response = await it.http.put("/orders/7", content="a", headers=headers)
                assert response.status_code == 201
            assert it.calls == 4

    asyncio.run(main())


def test_of_many_requests_at_once_one_runs(hapax_broker: Broker, hapax_queue: hapax.Queue) -> None:
    async def main() -> None:
        free = asyncio.Event()

        async def slow(request: Request) -> Response:
            await free.wait()
            return await receipt(request)

        async with shop(hapax_broker, hapax_queue, slow) as it:
            waits = asyncio.create_task(it.charge(prefer="wait=60"))
            others = []
            while it.calls == 0:
                await asyncio.sleep(0.01)
            waits_too = asyncio.create_task(it.charge(prefer="wait=60"))
            others = [code(await it.charge()) for _ in range(3)]
            assert others == [(409, "in_flight")] * 3
            free.set()
            responses = [await waits, await waits_too]
            assert [it.status_code for it in responses] == [201, 201]
            assert responses[1].headers["preference-applied"] == "wait=60"
            assert responses[1].headers["idempotency-replayed"] == "true"
            assert it.calls == 1

    asyncio.run(main())


def test_what_is_stored_follows_the_policy_and_the_handler(
    hapax_broker: Broker, hapax_client: hapax.Client
) -> None:
    queue = hapax_client.queue("policy")
    queue.create({"on_lost": "park"})

    async def by_key(request: Request) -> Response:
        operation = Operation.of(request)
        assert operation is not None
        assert operation.fence > 0
        kind = operation.key
        if kind == "raises":
            raise RuntimeError("in the middle")
        if kind == "doubtful":
            operation.remember = "in_doubt"
        if kind == "moved":
            operation.remember = "keep"
        statuses = {"busy": 503, "limited": 429, "moved": 503, "doubtful": 502, "refused": 402}
        return PlainTextResponse("x", statuses.get(kind, 200), {"set-cookie": "a=b", "date": "now"})

    async def main() -> None:
        async with shop(hapax_broker, queue, by_key) as it:
            for key, status, calls in [
                ("busy", 503, 2),
                ("limited", 429, 2),
                ("moved", 503, 1),
                ("refused", 402, 1),
            ]:
                before = it.calls
                assert (await it.charge(key)).status_code == status
                assert (await it.charge(key)).status_code == status
                assert it.calls - before == calls, key
            for key, status in (("raises", 500), ("doubtful", 502)):
                assert (await it.charge(key)).status_code == status
                before = it.calls
                response = await it.charge(key)
                assert code(response) == (409, "in_doubt")
                assert it.calls == before
                claim_key = response.json()["claim_key"]
                assert "POST /charges" in (queue.key(claim_key).error or "")
                queue.resolve(claim_key, "done", hapax.Blob(b"it was", "text/plain"))
                resolved = await it.charge(key)
                assert (resolved.status_code, resolved.text) == (200, "it was")
            replayed = await it.charge("refused")
            assert "set-cookie" not in replayed.headers
            assert "date" not in replayed.headers

    asyncio.run(main())


def test_large_and_streamed_responses(hapax_broker: Broker, hapax_queue: hapax.Queue) -> None:
    background: list[str] = []

    async def stream(request: Request) -> Response:
        count = int(request.headers["x-count"])

        async def parts() -> AsyncIterator[bytes]:
            for _ in range(count):
                yield b"x" * 1000

        task = BackgroundTask(background.append, "ran")
        return StreamingResponse(parts(), media_type="text/plain", background=task)

    async def main() -> None:
        async with shop(hapax_broker, hapax_queue, stream, response_bytes_max=5000) as it:
            for count, status in ((3, 200), (20, 410)):
                headers = {"x-count": str(count)}
                first = await it.charge(f"k{count}", **headers)
                assert (first.status_code, len(first.content)) == (200, count * 1000)
                again = await it.charge(f"k{count}", **headers)
                assert again.status_code == status
                if status == 200:
                    assert again.content == first.content
                else:
                    assert again.json()["original_status"] == 200
            assert it.calls == 2
        assert background == ["ran", "ran"]

    asyncio.run(main())


def test_tenants_have_their_own_keys(hapax_broker: Broker, hapax_queue: hapax.Queue) -> None:
    def account(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"x-account", b"").decode() or None

    async def main() -> None:
        async with shop(hapax_broker, hapax_queue, receipt, tenant=account) as it:
            assert code(await it.charge()) == (401, "unauthorized")
            for name in ("a", "b", "a"):
                await it.charge(**{"x-account": name, "authorization": str(time.monotonic())})
            assert it.calls == 2

    asyncio.run(main())


def test_a_header_may_name_the_tenant(hapax_broker: Broker, hapax_queue: hapax.Queue) -> None:
    async def main() -> None:
        async with shop(hapax_broker, hapax_queue, receipt, tenant_header="X-Account") as it:
            assert code(await it.charge()) == (401, "unauthorized")
            assert code(await it.charge(**{"x-account": ""})) == (401, "unauthorized")
            named = {"x-account": "a", "connection": "X-Account"}
            assert code(await it.charge(**named))[1] == "invalid"
            for name in ("a", "b", "a"):
                await it.charge(**{"x-account": name, "authorization": str(time.monotonic())})
            assert it.calls == 2

    asyncio.run(main())


def test_a_client_that_disconnects_does_not_stop_its_operation(
    hapax_broker: Broker, hapax_queue: hapax.Queue
) -> None:
    async def main() -> None:
        free = asyncio.Event()

        async def slow(request: Request) -> Response:
            await free.wait()
            return await receipt(request)

        async with shop(hapax_broker, hapax_queue, slow) as it:
            request = asyncio.create_task(it.charge())
            while it.calls == 0:
                await asyncio.sleep(0.01)
            request.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await request
            assert it.idempotency.running >= 1
            free.set()
            assert await it.idempotency.drained(STALL_SECONDS)
            again = await it.charge()
            assert again.headers["idempotency-replayed"] == "true"
            assert it.calls == 1

    asyncio.run(main())


def test_while_the_broker_is_away_nothing_is_done_and_what_was_done_is_stored_later() -> None:
    # It is short only where it must pass: while the broker is away.
    short = 0.5

    async def main(broker: Broker, queue: hapax.Queue) -> None:
        async def kills(request: Request) -> Response:
            broker.kill()
            it.idempotency.broker_timeout = short
            return await receipt(request)

        async with shop(broker, queue, kills) as it:
            carried_out = await it.charge("a")
            assert code(carried_out) == (503, "unavailable")
            assert "carried out" in carried_out.json()["detail"]
            refused = await it.charge("b")
            assert code(refused) == (503, "unavailable")
            assert "nothing was done" in refused.json()["detail"]
            assert it.calls == 1
            broker.start()
            it.idempotency.broker_timeout = STALL_SECONDS
            assert await it.idempotency.drained(STALL_SECONDS)
            again = await it.charge("a")
            assert (again.status_code, again.headers["idempotency-replayed"]) == (201, "true")
            assert it.calls == 1
        async with shop(broker, queue, receipt, broker_timeout=short, on_unavailable="open") as it:
            broker.kill()
            assert (await it.charge("c")).status_code == 201, "unprotected"
            broker.start()
            assert await it.idempotency.drained(STALL_SECONDS)

    with Broker() as broker, broker.client() as client:
        queue = client.queue("away")
        queue.create()
        asyncio.run(main(broker, queue))


def test_too_many_requests_are_refused(hapax_broker: Broker, hapax_queue: hapax.Queue) -> None:
    async def main() -> None:
        free = asyncio.Event()

        async def slow(request: Request) -> Response:
            await free.wait()
            return await receipt(request)

        async with shop(hapax_broker, hapax_queue, slow, operations_max=1) as it:
            first = asyncio.create_task(it.charge("a"))
            while it.calls == 0:
                await asyncio.sleep(0.01)
            assert code(await it.charge("b")) == (503, "unavailable")
            free.set()
            assert (await first).status_code == 201

    asyncio.run(main())


def test_a_key_may_be_in_the_body_or_in_another_header(
    hapax_broker: Broker, hapax_queue: hapax.Queue
) -> None:
    async def main() -> None:
        hook = Route("POST /hooks", key_header="webhook-id")
        events = Route("POST /events", key_from=lambda body: body.decode()[:3] or None)
        async with shop(hapax_broker, hapax_queue, receipt, required=[hook, events]) as it:
            for _ in range(2):
                await it.http.post("/hooks", headers={"webhook-id": "w1"})
                await it.http.post("/events", content="abcdef")
            assert it.calls == 2
            assert code(await it.http.post("/events")) == (400, "missing_key")

    asyncio.run(main())


def test_fastapi_gets_its_operation(hapax_broker: Broker, hapax_queue: hapax.Queue) -> None:
    async def main() -> None:
        async with hapax_broker.async_client() as client:
            app = fastapi.FastAPI()
            rules = Idempotency(
                client.queue(hapax_queue.name),
                required=["POST /charges"],
                broker_timeout=STALL_SECONDS,
                lease=2 * STALL_SECONDS,
            )
            app.add_middleware(IdempotencyMiddleware, idempotency=rules)
            keys: list[str] = []

            async def charge(request: fastapi.Request, body: dict[str, int]) -> dict[str, int]:
                operation = Operation.of(request)
                assert operation is not None
                keys.append(operation.derive("bank"))
                saved = operation.recovery_point("charged")
                if saved is None:
                    await operation.save("charged", "ch_1")
                    raise fastapi.HTTPException(503, "later")
                return {"cents": body["cents"]}

            app.post("/charges")(charge)
            transport = httpx2.ASGITransport(app=app)
            async with httpx2.AsyncClient(transport=transport, base_url="http://shop") as http:
                sent: Any = {"json": {"cents": 17}, "headers": {"idempotency-key": "k"}}
                answers = [await http.post("/charges", **sent) for _ in range(3)]
            assert [it.status_code for it in answers] == [503, 200, 200]
            assert answers[2].json() == {"cents": 17}
            assert len(keys) == 2, "the third is a replay"
            assert len(set(keys)) == 1, "every attempt calls the bank under one key"
            assert await rules.drained(STALL_SECONDS)

    asyncio.run(main())


# ---- Parts that need no broker


def test_routes_are_read_and_matched_like_those_of_the_layer() -> None:
    def matches(pattern: str, method: str, path: str) -> bool:
        return Route(pattern).matches(method, read_path(path))

    def may(pattern: str, method: str, path: str) -> bool:
        return Route(pattern).may_match(method, read_loosely(path))

    assert matches("POST /charges", "POST", "/charges")
    assert not matches("POST /charges", "PUT", "/charges")
    assert not matches("POST /charges", "POST", "/charges/7")
    assert matches("PUT,PATCH /orders/{id}", "PATCH", "/orders/7")
    assert not matches("PUT,PATCH /orders/{id}", "PATCH", "/orders/7/lines")
    assert matches("POST /files/{*path}", "POST", "/files/a/b/c")
    assert not matches("POST /files/{*path}", "POST", "/files")
    assert matches("POST /", "POST", "/")
    assert matches("POST /größe", "POST", "/gr%C3%B6%C3%9Fe")
    for path in ("//charges", "/charges/", "/./charges", "/x/%2e%2e/charges", "/%63harges"):
        assert matches("POST /charges", "POST", path), path
    for path in (
        "/CHARGES",
        "/charges%2f",
        "/..%2Fcharges",
        "/x;a/..;/charges",
        "/charges%3Ba=b",
        "/charges%00.txt",
        "/x\\..\\charges",
        "/%2563harges",
    ):
        assert not matches("POST /charges", "POST", path), path
        assert may("POST /charges", "POST", path), path
        assert not may("PUT /charges", "POST", path), path
    assert may("POST /charges", "post", "/charges")
    assert not may("POST /charges", "POST", "/charges/7")


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("/charges", "not a method and a path"),
        ("POST /a /b", "not a method and a path"),
        ("post /charges", "upper case"),
        ("GET /charges", "needs no key"),
        ("POST charges", "slash"),
        ("POST /a//b", "must not be"),
        ("POST /a?b", "query"),
        ("POST /a/{b", "whole segment"),
        ("POST /a/{}", "no name"),
        ("POST /a/{*b}/c", "nothing can follow"),
    ],
)
def test_what_is_no_route_is_explained(pattern: str, why: str) -> None:
    with pytest.raises(BadRoute, match=why):
        Route(pattern)


def test_a_stored_response_has_the_documented_bytes() -> None:
    response = stored.Response(201, [(b"a", b"b")], b"body")
    data = stored.encode(response)
    assert data == b"\x01\x00\x00\xc9\x01\x01a\x01bbody"
    assert stored.decode(data) == response
    long = stored.Response(200, [(b"n", b"v" * 300)], b"")
    assert stored.decode(stored.encode(long)) == long
    dropped = stored.encode(stored.Response(200, [(b"n", b"v")], None))
    assert dropped == b"\x01\x01\x00\xc8\x00"
    assert stored.decode(dropped).body is None
    many = stored.Response(200, [(b"n", b"v" * 40_000)], b"x")
    assert stored.decode(stored.encode(many)).body is None, "its headers are too large"
    for bad in (
        b"",
        b"\x02\x00\x00\xc8\x00",
        b"\x01\x04\x00\xc8\x00",
        data[:6],
        b"\x01\0\0\xc8\xff",
    ):
        with pytest.raises(stored.Malformed):
            stored.decode(bad)


def test_keys_in_headers() -> None:
    def key(value: bytes) -> str | None:
        return identity.read_key([(b"Idempotency-Key", value)], b"idempotency-key")

    assert key(b"order-42") == "order-42"
    assert key(b'  "order 42, the \\"first\\"" ') == 'order 42, the "first"'
    assert key("größe".encode()) == "größe"
    for bad in (b"a b", b'"a', b'"a"b"', b'"a\\n"', b"\xff", b'a"b'):
        with pytest.raises(Problem):
            key(bad)
    with pytest.raises(Problem):
        identity.read_key([(b"k", b"a"), (b"K", b"b")], b"k")
    assert identity.date("017f22e2-79b0-7cc3-98c4-dc0c0c07398f") is not None
    assert identity.date("01ARZ3NDEKTSV4RRFFQ69G5FAV") is not None
    for undated in ("order-42", "ORDERORDERORDERORDERORDER1", "7ZZZZZZZZZZZZZZZZZZZZZZZZZ"):
        assert identity.date(undated) is None
    with pytest.raises(Problem):
        identity.check_key("ffffffff-ffff-7000-8000-000000000000")


def test_every_part_of_a_request_is_compared() -> None:
    def print_of(**changes: Any) -> str:
        usual: dict[str, Any] = {
            "method": "POST",
            "path": b"/charges",
            "query": b"a=1",
            "headers": [(b"content-type", b"text/plain")],
            "compared": [b"content-type"],
            "body": b"x",
        }
        return identity.fingerprint(**{**usual, **changes})

    first = print_of()
    assert print_of(headers=[(b"Content-Type", b"text/plain"), (b"x-trace", b"7")]) == first
    changes: list[dict[str, Any]] = [
        {"method": "PUT"},
        {"path": b"/charge"},
        {"query": b""},
        {"headers": []},
        {"headers": [(b"content-type", b"text/plain")] * 2},
        {"body": b"y"},
    ]
    others = {print_of(**change) for change in changes}
    assert len(others) == len(changes)
    assert first not in others


# ---- What attacks found


async def call(app: Any, extensions: dict[str, Any] | None = None, **headers: str) -> list[Any]:
    """A request by hand, as a server makes it; returns what was sent."""
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/charges"}
    scope |= {"raw_path": b"/charges", "query_string": b"", "http_version": "1.1"}
    scope["headers"] = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope["asgi"] = {"version": "3.0", "spec_version": "2.4"}
    if extensions is not None:
        scope["extensions"] = extensions
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await app(scope, receive, send)
    return sent


def test_a_file_is_stored_although_the_server_could_send_it_by_its_path(
    hapax_broker: Broker, hapax_queue: hapax.Queue, tmp_path: Any
) -> None:
    file = tmp_path / "receipt.txt"
    file.write_text("seventeen euro")

    async def main() -> None:
        async with hapax_broker.async_client() as client:

            async def app(scope: Any, receive: Any, send: Any) -> None:
                await FileResponse(file)(scope, receive, send)

            rules = Idempotency(
                client.queue(hapax_queue.name),
                required=["POST /charges"],
                broker_timeout=STALL_SECONDS,
            )
            protected = IdempotencyMiddleware(app, rules)
            extensions: dict[str, Any] = {"http.response.pathsend": {}, "tls": {}}
            headers = {"idempotency-key": "k"}
            for _ in range(2):
                sent = await call(protected, extensions, **headers)
                assert sent[0]["status"] == 200
                assert b"".join(it.get("body", b"") for it in sent[1:]) == b"seventeen euro"
            assert (b"idempotency-replayed", b"true") in sent[0]["headers"]

    asyncio.run(main())


def test_many_that_wait_for_one_do_not_keep_it_from_its_answer(
    hapax_broker: Broker, hapax_queue: hapax.Queue
) -> None:
    """They all hold a connection to the broker, and the first needs one to store its response."""

    async def main() -> None:
        free = asyncio.Event()

        async def slow(request: Request) -> Response:
            await free.wait()
            return await receipt(request)

        async with shop(hapax_broker, hapax_queue, slow) as it:
            first = asyncio.create_task(it.charge())
            while it.calls == 0:
                await asyncio.sleep(0.01)
            others = [asyncio.create_task(it.charge(prefer="wait=60")) for _ in range(80)]
            await asyncio.sleep(1)
            free.set()
            responses = [await first, *[await other for other in others]]
            assert {response.status_code for response in responses} == {201}
            assert it.calls == 1

    asyncio.run(main())


def test_the_room_of_an_operation_is_free_when_it_has_ended_and_not_before(
    hapax_broker: Broker, hapax_queue: hapax.Queue
) -> None:
    async def main() -> None:
        free = asyncio.Event()

        async def slow(request: Request) -> Response:
            await free.wait()
            return await receipt(request)

        async with shop(hapax_broker, hapax_queue, slow, operations_max=1) as it:
            first = asyncio.create_task(it.charge("a"))
            while it.calls == 0:
                await asyncio.sleep(0.01)
            first.cancel()  # As some servers do when their client disconnects.
            with contextlib.suppress(asyncio.CancelledError):
                await first
            assert code(await it.charge("b")) == (503, "unavailable")
            free.set()
            assert await it.idempotency.drained(STALL_SECONDS)
            assert (await it.charge("b")).status_code == 201

    asyncio.run(main())


def test_a_key_in_a_body_that_cannot_be_read_is_malformed(
    hapax_broker: Broker, hapax_queue: hapax.Queue
) -> None:
    def key_from(body: bytes) -> str | None:
        key: str | None = json.loads(body).get("id")
        return key

    async def main() -> None:
        rules = {"required": [Route("POST /charges", key_from=key_from)]}
        async with shop(hapax_broker, hapax_queue, receipt, **rules) as it:
            assert code(await it.charge(None, "not JSON")) == (400, "malformed_key")
            assert code(await it.charge(None, "{}")) == (400, "missing_key")
            assert (await it.charge(None, '{"id": "k"}')).status_code == 201
            assert it.calls == 1

    asyncio.run(main())


def test_a_key_that_was_claimed_for_nothing_is_released_however_long_that_takes() -> None:
    rules: Any = None
    fresh = {"answer": "fresh", "lease": "l", "fence": "7", "lease_ms": 30000}
    busy = response({"code": "unavailable", "retryable": True}, "503 Busy")

    def answer(path: str, fields: Any) -> bytes:
        if path.endswith("/claims"):
            # Both are short from here on, and not before: the claim is answered, however slowly.
            rules.broker_timeout = 0.05
            transport = rules.queue.client._transport
            transport.settings = dataclasses.replace(transport.settings, timeout=0.1)
            return response(fresh, "201 Created")
        verbs = [it[1]["items"][0]["do"] for it in fake.asked if it[0].endswith("/settle")]
        return response({"answers": [{"answer": "ok"}]}) if verbs.count("release") > 9 else busy

    async def main() -> None:
        nonlocal rules
        async with hapax.AsyncClient(fake.address, timeout=STALL_SECONDS) as client:

            async def app(scope: Any, receive: Any, send: Any) -> None:
                raise AssertionError("nothing is done")

            rules = Idempotency(
                client.queue("q"), required=["POST /charges"], broker_timeout=STALL_SECONDS
            )
            sent = await call(IdempotencyMiddleware(app, rules), None, **{"idempotency-key": "k"})
            assert sent[0]["status"] == 503
            assert await rules.drained(300)

    with Fake(answer) as fake:
        asyncio.run(main())
    verbs = [it[1]["items"][0]["do"] for it in fake.asked if it[0].endswith("/settle")]
    # An answer that takes longer than the client's timeout is asked for again: ten or more.
    assert verbs.count("release") >= 10, fake.asked


def test_what_is_no_stored_response_is_not_sent() -> None:
    whole = stored.encode(stored.Response(200, [(b"a", b"b")], b"x"))
    assert stored.decode(whole).body == b"x"
    for status, name, value in ((0, b"a", b"b"), (200, b"a b", b"b"), (200, b"a", b"b\r\nc: d")):
        bad = stored.encode(stored.Response(status, [(name, value)], b"x"))
        with pytest.raises(stored.Malformed):
            stored.decode(bad)
