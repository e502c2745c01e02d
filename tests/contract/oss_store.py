"""`oss://` against a server of ours that recomputes OSS's signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar

from d7yfs.config.schema import StaticKeys
from d7yfs.origins.origin import Origin
from d7yfs.origins.rest_stores.oss import OssOrigin
from tests.contract.bucket_store import BUCKET, BucketStore
from tests.origins.opening import opened_at
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
    with InThread(OssServer(IDENTITY, bucket=BUCKET)) as thread:
        yield thread.server


class OssOnServer(BucketStore):
    """A row with OSS's signature V4."""

    signature: ClassVar[str] = "v4"

    identity = IDENTITY
    elsewhere: ClassVar[Mapping[str, Fault]] = {
        "403": status(403, {}, _ELSEWHERE % b"AccessDenied"),
        "301": status(301, {}, _ELSEWHERE % b"PermanentRedirect"),
    }

    def _open(self, bucket: str, keys: StaticKeys, **options: Any) -> Origin:
        options = {"region": OssServer.region, "signature": self.signature, **options}
        return opened_at(OssOrigin, f"oss://{bucket}", keys, **options)


class OssV1OnServer(OssOnServer):
    """A row with OSS's signature V1."""

    signature = "v1"
