"""Fixtures for pytest, available wherever this package is installed.

- ``hapax_broker``: a broker for the whole run, started when it is first needed;
- ``hapax_client``: a client of it;
- ``hapax_queue``: a new queue of its own for the test.

The broker is ``$HAPAX_BIN`` or ``hapax`` on the path. Without one, tests that need it are skipped.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from ._sync.client import Client
from ._sync.queue import Queue
from .testing import Broker, NoBroker, binary


@pytest.fixture(scope="session")
def hapax_broker() -> Iterator[Broker]:
    try:
        binary()
    except NoBroker as missing:
        pytest.skip(str(missing))
    with Broker() as broker:
        yield broker


@pytest.fixture
def hapax_client(hapax_broker: Broker) -> Iterator[Client]:
    with hapax_broker.client() as client:
        yield client


@pytest.fixture
def hapax_queue(hapax_client: Client) -> Queue:
    queue = hapax_client.queue(f"test-{uuid.uuid4().hex[:12]}")
    queue.create()
    return queue
