"""One protected request, from its claim to its answer.

    claim ── fresh ──▶ begin ──▶ handler ──▶ keep ────▶ complete ──▶ the handler's response
      │                  │           │        release ─▶ release ──▶ the handler's response
      │                  │           │        in doubt ▶ park ─────▶ the handler's response
      │                  │           └ raises ─────────▶ park ─────▶ raises
      │                  └ lost ──▶ 409      away ──▶ release, 503
      ├ done ────────────▶ the stored response, marked
      ├ in flight ───────▶ 409        conflict ─▶ 422        parked ─▶ 409
      └ broker away ─────▶ 503, or the handler without a claim

A claim that was not begun is freed when its lease ends, also in a queue that parks, because nothing
was done under it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

from .. import _errors as errors
from .._async.claim import AsyncClaim
from .._log import logger
from .._model import Blob
from .._retry import Retry
from . import _problem as problem
from . import _stored as stored
from ._exchange import App, Message, Scope, Send, quietly, replayed, respond
from ._operation import SCOPE, Operation, Remember
from ._rules import Asked, Idempotency
from ._stored import Headers, Response

#: How long storing a response is retried after its client got an error.
SETTLE_SECONDS = 600.0
SETTLE_PAUSE_SECONDS = 0.2


class Run:
    """One protected request."""

    def __init__(
        self, rules: Idempotency, asked: Asked, app: App, scope: Scope, send: Send
    ) -> None:
        self._rules = rules
        self._asked = asked
        self._app = app
        self._scope = scope
        self._send = send

    async def run(self) -> None:
        try:
            claim = await self._take()
            if claim is not None:
                await self._begin(claim)
        except problem.Problem as refused:
            await self._answer(refused.response(), self._applied())
            return
        except Replay as replay:
            await self._answer(
                replay.response, [*self._applied(), (b"idempotency-replayed", b"true")]
            )
            return
        except Unprotected:
            claim = None
        if claim is None:
            await self._app(self._scope, replayed(self._asked.body, None), self._send)
            return
        await Handling(self._rules, self._asked, claim, self._app, self._scope, self._send).run()

    async def _take(self) -> AsyncClaim:
        """Claims the key, or raises what the client gets instead."""
        rules, asked = self._rules, self._asked
        taking = rules.spawn(rules.claim(asked, asked.wait))
        patience = rules.broker_timeout + (asked.wait or 0)
        done, _ = await asyncio.wait({taking}, timeout=patience)
        if not done:
            # The claim may have succeeded at the broker. Then it is released as soon as the answer
            # arrives, so that the next request need not wait for the end of its lease.
            rules.spawn(_release_late(taking))
            raise self._unavailable()
        try:
            claim = taking.result()
        except errors.Conflict:
            raise problem.conflict() from None
        except errors.TooOld:
            raise problem.too_old() from None
        except errors.UndatedKey:
            raise problem.undated_key() from None
        except errors.Error as error:
            if error.retryable:
                logger.warning("%s: a key could not be claimed: %s", asked.route, error)
                raise self._unavailable() from error
            logger.error("%s: the broker refuses claims: %s", asked.route, error)
            detail = "the service cannot store its response; nothing was done"
            raise problem.internal(detail) from error
        if claim.is_fresh:
            return claim
        if claim.answer == "done":
            raise Replay(replay(claim.result))
        if claim.answer == "in_flight":
            raise problem.in_progress(rules.retry_after)
        raise problem.in_doubt(asked.claim_key)

    async def _begin(self, claim: AsyncClaim) -> None:
        """Reports ``begin`` to the broker: from here on a lost lease leaves the operation in doubt,
        if the queue parks. If the broker does not answer in time, nothing is done and the key is
        released."""
        try:
            await asyncio.wait_for(claim.begin(), self._rules.broker_timeout)
        except errors.LeaseLost:
            raise problem.in_progress(self._rules.retry_after) from None
        except (errors.Error, asyncio.TimeoutError) as error:
            logger.warning("a key was claimed, and its request was not started: %s", error)
            # The broker may have recorded the begin. The lease is extended while this is retried:
            # if it ended, a queue that parks would leave in doubt what was not done.
            self._rules.spawn(_release_surely(claim))
            raise self._unavailable() from error

    def _unavailable(self) -> Exception:
        if self._rules.on_unavailable == "open":
            return Unprotected()
        detail = (
            "nothing was done, because the response could not be stored; retry with the same key"
        )
        return problem.unavailable(detail, self._rules.retry_after)

    def _applied(self) -> Headers:
        wait = self._asked.wait
        return [] if wait is None else [(b"preference-applied", f"wait={wait}".encode())]

    async def _answer(self, response: Response, more: Headers) -> None:
        response.headers = [*response.headers, *more]
        await respond(self._send, response)


class Replay(Exception):
    def __init__(self, response: Response) -> None:
        self.response = response


class Unprotected(Exception):
    """The broker is away, and requests run without it."""


class Handling:
    """The call of the handler under a claim. Its response is held back until it is stored."""

    def __init__(
        self,
        rules: Idempotency,
        asked: Asked,
        claim: AsyncClaim,
        app: App,
        scope: Scope,
        send: Send,
    ) -> None:
        self._rules = rules
        self._asked = asked
        self._claim = claim
        self._app = app
        self._send = send
        self._operation = Operation(claim, asked.key, asked.tenant)
        self._scope: Scope = {**scope, SCOPE: self._operation}
        if "extensions" in scope:
            # Ways to send a body past this middleware, such as the path of a file.
            kept = {name: it for name, it in (scope["extensions"] or {}).items() if _passes(name)}
            self._scope["extensions"] = kept
        self._start: Message | None = None
        self._body = bytearray()
        #: Whether the claim is settled, and the rest of the response goes through.
        self._is_settled = False
        #: The client gets another response than the handler's, which is dropped.
        self._is_replaced = False

    async def run(self) -> None:
        try:
            await self._app(self._scope, replayed(self._asked.body, None), self._take)
        except BaseException:
            if not self._is_settled:
                await self._park("its handler raised an exception")
            raise
        if not self._is_settled:
            await self._park("the service ended without a whole response")
            if self._start is not None:
                detail = "the request was begun, but its response was interrupted"
                more = {"claim_key": self._asked.claim_key}
                broken = problem.Problem(
                    "in_doubt", 500, "The outcome is unknown", detail, more=more
                )
                await respond(self._send, broken.response())

    async def _take(self, message: Message) -> None:
        """What the handler sends."""
        if self._is_replaced:
            return
        if self._is_settled:
            await quietly(self._send, message)
            return
        if message["type"] == "http.response.start":
            self._start = message
            remember = self._operation.remember or self._rules.policy(message["status"])
            if remember != "keep":
                await self._let_go(remember, message)
            return
        if message["type"] != "http.response.body" or self._start is None:
            return
        self._body += message.get("body", b"")
        has_more = message.get("more_body", False)
        if len(self._body) > self._rules.response_bytes_max:
            await self._keep(None, has_more)
        elif not has_more:
            await self._keep(bytes(self._body), has_more=False)

    async def _let_go(self, remember: Remember, start: Message) -> None:
        if remember == "release":
            await self._end(self._claim.release)
        else:
            status = start["status"]
            await self._park(f"its handler answered {status} without knowing the outcome")
        self._is_settled = True
        await quietly(self._send, start)

    async def _keep(self, body: bytes | None, has_more: bool) -> None:
        """Stores the response, and then sends it."""
        assert self._start is not None
        status: int = self._start["status"]
        headers: Headers = list(self._start.get("headers", []))
        kept = Response(status, stored.chosen(headers, self._rules.headers), body)
        storing = self._rules.spawn(self._store(kept))
        done, _ = await asyncio.wait({storing}, timeout=self._rules.broker_timeout)
        self._is_settled = True
        ended: Response | bool | None = storing.result() if done else None
        if isinstance(ended, Response):
            self._is_replaced = True
            await respond(self._send, ended)
        elif ended is True or self._rules.on_unavailable == "open":
            await quietly(self._send, self._start)
            whole = {"type": "http.response.body", "body": bytes(self._body)}
            await quietly(self._send, {**whole, "more_body": has_more})
            self._body.clear()
        else:
            self._is_replaced = True
            detail = (
                "the request was carried out, but its response is not stored yet: retry with the "
                "same key to get it"
            )
            unavailable = problem.unavailable(detail, self._rules.retry_after)
            await respond(self._send, unavailable.response())

    async def _store(self, kept: Response) -> Response | bool:
        """``True`` if it is stored, ``False`` if the broker cannot be reached for minutes; another
        response, if that is what the client gets. The effect has happened, so this is retried."""
        retry, claim = _settle_retry(), self._claim
        while True:
            try:
                settled = await claim.complete(_blob(kept))
            except errors.Error as error:
                if not error.retryable and kept.body is not None:
                    logger.error("a response is refused; only its status is stored: %s", error)
                    kept = Response(kept.status, [], None)
                    continue
                pause = retry.pause_after(error)
                if pause is None:
                    route = self._asked.route
                    logger.error("%s: a response could not be stored: %s", route, error)
                    if error.retryable:
                        return False
                    detail = "the request was carried out, but its response cannot be stored"
                    return problem.internal(detail).response()
                await asyncio.sleep(pause)
                continue
            if not settled.is_lost:
                return True
            if settled.result is not None:
                return _marked(replay(settled.result))
            return await self._store_again(kept)

    async def _store_again(self, kept: Response) -> Response | bool:
        """The lease is lost and nobody has finished. If nobody holds the key either, it is claimed
        again to store the response, because discarding it would only cause a repetition."""
        logger.warning("%s: a response was ready after its lease was lost", self._asked.route)
        superseded = problem.lease_lost(self._rules.retry_after).response()
        try:
            claim = await self._rules.claim(self._asked, None)
            if claim.answer == "done":
                return _marked(replay(claim.result))
            if not claim.is_fresh:
                return superseded
            settled = await claim.complete(_blob(kept))
        except errors.Conflict:
            return superseded
        except errors.Error as error:
            logger.error("%s: a response could not be stored: %s", self._asked.route, error)
            return False
        if settled.is_lost:
            return superseded if settled.result is None else _marked(replay(settled.result))
        return True

    async def _park(self, why: str) -> None:
        """The outcome is unknown: a queue that parks keeps the key until an operator resolves it,
        any other frees it."""
        asked = self._asked
        logger.warning("%s: the operation %s is in doubt: %s", asked.route, asked.claim_key, why)
        self._is_settled = True
        await self._end(lambda: self._claim.park(f"{asked.request}: {why}"))

    async def _end(self, settle: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Settles. Waits, so that an immediate retry sees the new state, but not for longer than
        the timeout if the broker cannot be reached."""
        settling = self._rules.spawn(_settle_surely(settle))
        await asyncio.wait({settling}, timeout=self._rules.broker_timeout)


async def _settle_surely(settle: Callable[[], Coroutine[Any, Any, Any]]) -> None:
    try:
        await settle()
    except errors.Error as error:
        logger.warning("a settle did not reach the broker; the lease of a key will end: %s", error)


async def _release_surely(claim: AsyncClaim) -> None:
    retry = _settle_retry()
    while True:
        try:
            await claim.release()
            return
        except errors.Error as error:
            pause = retry.pause_after(error)
            if pause is None:
                logger.warning("a key was not released, and its lease will end: %s", error)
                return
        await asyncio.sleep(pause)


def _settle_retry() -> Retry:
    """Each try itself takes up to the client's timeout."""
    return Retry(SETTLE_SECONDS, first=SETTLE_PAUSE_SECONDS, longest=SETTLE_PAUSE_SECONDS)


async def _release_late(taking: asyncio.Task[AsyncClaim]) -> None:
    with contextlib.suppress(errors.Error):
        claim = await taking
        if claim.is_fresh:
            await claim.release()


def _passes(extension: str) -> bool:
    return not extension.startswith("http.response.")


def _blob(response: Response) -> Blob:
    return Blob(stored.encode(response), stored.CONTENT_TYPE)


def replay(result: Blob | None) -> Response:
    """The stored response, or a problem if it was not stored."""
    if result is not None and result.content_type == stored.CONTENT_TYPE:
        try:
            response = stored.decode(result.body)
        except stored.Malformed as error:
            logger.error("a stored response cannot be read: %s", error)
            detail = "the request was carried out before, but its response cannot be read"
            return problem.internal(detail).response()
        return problem.not_kept(response.status).response() if response.body is None else response
    # An operator resolved it: a body and its content type.
    body = b"" if result is None else result.body
    content_type = None if result is None else result.content_type
    headers = []
    if content_type and stored.is_header_value(content_type.encode()):
        headers.append((b"content-type", content_type.encode()))
    return Response(200 if body else 204, headers, body)


def _marked(response: Response) -> Response:
    response.headers = [*response.headers, (b"idempotency-replayed", b"true")]
    return response
