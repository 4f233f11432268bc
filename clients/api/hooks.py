"""Hooks of schemathesis: a broker in which requests can succeed, and a count of those that do.

A generated request names a queue, a key or a lease that does not exist, so its answer is an error.
Before most requests, what the request needs is made (a queue, a message, a lease, a dead letter),
and its name is put into the request. The rest of it stays as it was generated.
"""

from __future__ import annotations

import atexit
import itertools
import json
import os
import random
from collections import Counter
from typing import Any
from urllib.parse import quote

import requests
import schemathesis
from schemathesis.core.parameters import ParameterLocation

URL = os.environ["API_URL"]
FINGERPRINT = "lemons"

http = requests.Session()
http.headers["Authorization"] = f"Bearer {os.environ['API_TOKEN']}"
numbers = itertools.count()
answers: Counter[tuple[str, int]] = Counter()
# Which requests are prepared; the same ones in every run with the same seed.
chance = random.Random(int(os.environ.get("API_SEED", "0")))


def call(method: str, path: str, **kwargs: Any) -> Any:
    """Asks the broker for something that must succeed."""
    response = http.request(method, f"{URL}/v1/queues/{path}", timeout=60, **kwargs)
    assert response.ok, f"{method} {path}: {response.text}"
    return response.json() if response.content else None


def queue(name: str) -> str:
    """A queue in which messages are parked, and finished ones can be replayed."""
    call("PUT", name, json={"on_lost": "park", "keep_bodies": True, "max_attempts": 1000})
    call("POST", f"{name}/resume")
    return name


def send(name: str) -> str:
    """A new message; its key."""
    key = f"k-{next(numbers)}"
    # Under a fingerprint of its own any body is the same message: it can be replayed with any.
    headers = {"Idempotency-Key": key, "hapax-fingerprint": FINGERPRINT}
    call("POST", f"{name}/messages", data=b"lemons", headers=headers)
    return key


def lease(name: str) -> tuple[str, str]:
    """A new message that is leased: its key and the lease."""
    call("POST", f"{name}/purge")
    key = send(name)
    while True:
        for message in call("POST", f"{name}/receive", json={"wait_ms": 1000})["messages"]:
            if message["key"] == key:
                return key, message["lease"]


def settle(name: str, **item: Any) -> str:
    """A new message that is leased and settled; its key."""
    key, held = lease(name)
    steps = [{"do": "begin"}] if item["do"] == "park" else []
    items = [{"lease": held, **step} for step in [*steps, item]]
    told = call("POST", f"{name}/settle", json={"items": items})["answers"]
    assert all(answer["answer"] == "ok" for answer in told), told
    return key


def key_for(operation: str, name: str) -> str:
    """A key whose message is in the state that the operation is for."""
    match operation:
        case "forgetKey" | "replayKey":
            return settle(name, do="done", result={"body_base64": "/w=="})
        case "redriveKey":
            return settle(name, do="fail", error="no", dead=True)
        case "resolveKey":
            return settle(name, do="park", error="who knows")
        case _:
            return send(name)


def prepare(operation: str, case: schemathesis.Case) -> None:
    """Makes what a request needs, and names it in the request."""
    name = queue(f"q-{operation}")
    case.path_parameters["queue"] = name
    if "key" in case.path_parameters:
        case.path_parameters["key"] = quote(key_for(operation, name), safe="")
        if operation == "replayKey":
            case.headers.pop("Idempotency-Key", None)
            case.headers["hapax-fingerprint"] = FINGERPRINT
    match operation:
        case "sendMessage" | "claim":
            case.headers["Idempotency-Key"] = f"k-{next(numbers)}"
            case.headers.pop("hapax-issued-at", None)
        case "deleteQueue" | "putQueue":
            case.headers.pop("If-Match", None)
            case.headers.pop("If-None-Match", None)
        case "browseMessages":
            send(name)
            case.query.pop("cursor", None)
        case "receive":
            send(name)
        case "settle":
            for item in case.body["items"]:
                item["lease"] = lease(name)[1]
                for emit in item.get("emit") or []:
                    emit["queue"] = name
        case "redrive":
            dead = settle(name, do="fail", error="no", dead=True)
            if "id" in case.body:
                case.body["id"] = f"r-{next(numbers)}"
            if "keys" in case.body:
                case.body["keys"] = [dead, *case.body["keys"][1:]]
        case "getRedrive" | "cancelRedrive":
            settle(name, do="fail", error="no", dead=True)
            started = call("POST", f"{name}/redrive", json={"all": True, "per_s": 1})
            case.path_parameters["id"] = started["id"]


def is_sound(case: schemathesis.Case) -> bool:
    """Whether no part of the request was made to be refused."""
    meta = case.meta
    return meta is None or not any(meta.is_negative_at(place) for place in ParameterLocation)


@schemathesis.hook
def before_call(context: Any, case: schemathesis.Case, kwargs: dict[str, Any]) -> None:
    operation = case.operation.definition.raw["operationId"]
    # Nobody else is here to be waited for.
    if isinstance(case.body, dict) and isinstance(case.body.get("wait_ms"), int):
        case.body["wait_ms"] = min(case.body["wait_ms"], 20)
    if "wait_ms" in case.query:
        case.query["wait_ms"] = 20
    case.headers.pop("Prefer", None)
    is_prepared = chance.random() < 0.8
    if case.method.upper() == case.operation.method.upper() and is_sound(case) and is_prepared:
        if "{queue}" in case.path:
            prepare(operation, case)


@schemathesis.hook
def after_call(context: Any, case: schemathesis.Case, response: Any) -> None:
    if case.method.upper() == case.operation.method.upper():
        answers[case.operation.definition.raw["operationId"], response.status_code] += 1


@schemathesis.hook
def after_load_schema(context: Any, schema: Any) -> None:
    paths = schema.raw_schema["paths"].values()
    operations = sorted(it["operationId"] for item in paths for it in item.values())

    @atexit.register
    def report() -> None:
        with open(os.environ["API_COUNTS"], "w") as file:
            counts = {operation: {} for operation in operations}
            for (operation, status), count in sorted(answers.items()):
                counts[operation][str(status)] = count
            json.dump(counts, file, indent=1)
