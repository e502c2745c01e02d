"""`obs://` against a server of ours that recomputes OBS's signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

from d7yfs.origins.rest_stores.obs import ObsOrigin
from d7yfs.publish.stores.obs import WritableObs
from tests.contract.bucket_store import BUCKET, READER, BucketStore
from tests.servers.bucket_server import Identity
from tests.servers.faults import status
from tests.servers.http11 import Fault
from tests.servers.in_thread import InThread
from tests.servers.obs import ObsServer

_ELSEWHERE = (
    b"<?xml version='1.0'?><Error><Code>%s</Code><Endpoint>contract.obs.cn-east-3.myhuaweicloud.com</Endpoint></Error>"
)

IDENTITY = Identity("OBSREADER", "secret-of-the-obs-reader", "ggpjbi1ub3J0aC0zTemporary/+=")
"""Temporary keys, so that the tests look for their token too."""


@contextmanager
def running() -> Iterator[ObsServer]:
    """The server for the rows below."""
    with InThread(ObsServer(IDENTITY, READER, bucket=BUCKET)) as thread:
        yield thread.server


class ObsOnServer(BucketStore):
    """A row with OBS's signature."""

    scheme = "obs"
    identity = IDENTITY
    cannot: ClassVar[Mapping[str, str]] = {"test_a_condition_is_kept_by_the_store": "OBS has no condition for a PUT"}
    write_permission = "obs:object:PutObject"
    origin_class = ObsOrigin
    writable_class = WritableObs
    elsewhere: ClassVar[Mapping[str, Fault]] = {
        "301": status(301, {}, _ELSEWHERE % b"PermanentRedirect"),
        "307": status(307, {"Location": "https://contract.obs.cn-east-3.myhuaweicloud.com/"}),
    }
