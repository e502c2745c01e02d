"""`oss://` against a server of ours that recomputes OSS's signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import ClassVar

from d7yfs.origins.rest_stores.oss import OssOrigin
from d7yfs.publish.stores.oss import WritableOss
from tests.contract.bucket_store import BUCKET, READER, BucketStore
from tests.servers.bucket_server import Identity
from tests.servers.faults import status
from tests.servers.http11 import Fault
from tests.servers.in_thread import InThread
from tests.servers.oss import OssServer

_ELSEWHERE = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>no</Message><Endpoint>oss-cn-beijing.aliyuncs.com</Endpoint></Error>"

IDENTITY = Identity("STS.reader", "secret-of-the-oss-reader", "CAISowJ1q6Ft5B2yfSjIr5bgIOz31blR9oWm/+=")
"""Temporary keys, so that the tests look for their token too."""


@contextmanager
def running() -> Iterator[OssServer]:
    """The server for the rows below."""
    with InThread(OssServer(IDENTITY, READER, bucket=BUCKET)) as thread:
        yield thread.server


class OssOnServer(BucketStore):
    """A row with OSS's signature V4."""

    scheme = "oss"
    identity = IDENTITY
    cannot: ClassVar[Mapping[str, str]] = {
        "test_a_condition_is_kept_by_the_store": "OSS has none for a bucket with versioning, as this one is"
    }
    write_permission = "oss:PutObject"
    origin_class = OssOrigin
    writable_class = WritableOss
    options: ClassVar[Mapping[str, str]] = {"region": OssServer.region, "signature": "v4"}
    elsewhere: ClassVar[Mapping[str, Fault]] = {
        "403": status(403, {}, _ELSEWHERE % b"AccessDenied"),
        "301": status(301, {}, _ELSEWHERE % b"PermanentRedirect"),
    }


class OssV1OnServer(OssOnServer):
    """A row with OSS's signature V1."""

    options: ClassVar[Mapping[str, str]] = {**OssOnServer.options, "signature": "v1"}
