"""The default suite's tests of the fake dfdaemon, run against the real one: the fake's facts, and
mounts through its proxy.

Tests that need pieces of 1,000 bytes or the fake's own errors are left out: the real one has pieces
of 4 MiB or more. Three more are left out:

- an origin without ranges: the real one passes on small objects in full;
- an empty object: the real one gives no reply;
- the count of requests of eight readers: the real one is slower, so more of them wait.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.mount import test_proxy as proxy_tests
from tests.servers import test_dfdaemon as fake_tests
from tests.servers.dragonfly_cluster import Cluster
from tests.servers.in_thread import InThread
from tests.servers.relayed_dfdaemon import RelayedDfdaemon
from tests.servers.test_dfdaemon import client, origin, transport

__all__ = ["client", "origin", "transport"]

models = proxy_tests.models
weights = proxy_tests.weights
globals().update({name: test for name, test in vars(proxy_tests).items() if name.startswith("test_")})
del globals()["test_eight_readers_are_one_get"]

test_task_identity = fake_tests.test_task_identity
test_origin_errors = fake_tests.test_origin_errors
test_origin_5xx_is_tried_twice = fake_tests.test_origin_5xx_is_tried_twice
test_origin_down = fake_tests.test_origin_down


@pytest.fixture
async def daemon(cluster: Cluster) -> AsyncIterator[RelayedDfdaemon]:
    async with RelayedDfdaemon(cluster.peers[0].proxy_url).running() as relay:
        yield relay


@pytest.fixture
def dfdaemon(cluster: Cluster) -> Iterator[InThread[RelayedDfdaemon]]:
    with InThread(RelayedDfdaemon(cluster.peers[0].proxy_url)) as running:
        yield running
