"""The language-neutral suite of the clients, run by both clients of this package.

Cases that leave the broker alone run eight at a time: most of their time they wait for a lease to
end. Those that kill it follow, one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import conformance
import pytest

from hapax.testing import Broker

CASES = {case["name"]: case for case in conformance.cases()}
AT_ONCE = 8


def kills(case: dict[str, Any]) -> bool:
    return any(step["op"] == "kill_broker" for step in case["steps"])


class Runs:
    """The cases that were selected, for one of the clients."""

    def __init__(self, broker: Broker, is_async: bool, names: list[str]) -> None:
        self._broker = broker
        self._is_async = is_async
        self._pool = ThreadPoolExecutor(max_workers=AT_ONCE)
        peaceful = [name for name in names if not kills(CASES[name])]
        self._started: dict[str, Future[None]] = {
            name: self._pool.submit(self._run, name) for name in peaceful
        }

    def _run(self, name: str) -> None:
        conformance.Runner(self._broker, self._is_async).run(CASES[name])

    def result(self, name: str) -> None:
        if name in self._started:
            self._started[name].result()
            return
        wait(self._started.values())
        self._run(name)

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


@pytest.fixture(scope="module", params=["async", "blocking"])
def runs(request: pytest.FixtureRequest) -> Iterator[Runs]:
    """An empty broker for each client: the queues of the file have fixed names."""
    kind = request.param
    names = [
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.function is test_case
        and item.callspec.params["runs"] == kind
    ]
    with Broker() as broker:
        runs = Runs(broker, kind == "async", names)
        yield runs
        runs.close()


@pytest.mark.parametrize("name", CASES)
def test_case(runs: Runs, name: str) -> None:
    runs.result(name)


def test_a_result_that_is_not_as_expected_is_noticed() -> None:
    """The runner itself: a matcher that lets everything pass would find nothing."""
    matches, found = conformance.is_match, {"a": 1, "list": [{"b": "x"}], "none": None}
    assert matches({"a": 1, "list": [{"b": "x"}], "missing": None, "none": None}, found)
    wrongs: list[dict[str, Any]] = [
        {"a": 2},
        {"a": "1"},
        {"a": True},
        {"list": []},
        {"list": [{"b": "y"}]},
        {"none": 0},
        {"missing": 1},
        {"a": {"$not": 1}},
        {"a": {"$in": [2, 3]}},
        {"missing": {"$any": True}},
        {"a": {"$newer": "1"}},
        {"list": [{"b": {"$contains": "y"}}]},
    ]
    for wrong in wrongs:
        assert not matches(wrong, found), wrong
    assert matches({"a": {"$newer": "0"}}, found)
