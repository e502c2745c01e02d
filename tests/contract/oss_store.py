"""`oss://` against a server of ours that recomputes OSS's signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any, ClassVar

from pydantic import SecretStr

from d7yfs.config.schema import StaticKeys
from d7yfs.origins.origin import Origin
from d7yfs.origins.oss import OssOrigin
from tests.contract.bucket_clock import signing_at
from tests.contract.stores import WRONG_SECRET
from tests.servers.bucket_server import Identity
from tests.servers.faults import status
from tests.servers.http11 import Fault
from tests.servers.in_thread import InThread
from tests.servers.oss import OssServer

_ELSEWHERE = b"<?xml version='1.0'?><Error><Code>%s</Code><Message>no</Message><Endpoint>oss-cn-beijing.aliyuncs.com</Endpoint></Error>"

BUCKET = "contract"
IDENTITY = Identity("STS.reader", "secret-of-the-oss-reader", "CAISowJ1q6Ft5B2yfSjIr5bgIOz31blR9oWm/+=")
"""Temporary keys, so that their token is looked for too."""


@contextmanager
def running() -> Iterator[OssServer]:
    """The server for the rows below."""
    with InThread(OssServer(IDENTITY, bucket=BUCKET)) as thread:
        yield thread.server


class OssOnServer:
    """Signed with V4."""

    signature: ClassVar[str] = "v4"

    cannot: ClassVar[Mapping[str, str]] = {}
    unstorable: ClassVar[frozenset[str]] = frozenset()
    elsewhere: ClassVar[Mapping[str, Fault]] = {
        "403": status(403, {}, _ELSEWHERE % b"AccessDenied"),
        "301": status(301, {}, _ELSEWHERE % b"PermanentRedirect"),
    }
    follows: ClassVar[bool] = False
    """Only within the domain of the endpoint, which an IP address has not: see tests/origins/test_oss.py."""

    def __init__(self, server: OssServer) -> None:
        self.prefix = ""
        self.endpoint_url = server.url
        self.secrets = frozenset({IDENTITY.secret, IDENTITY.token})
        self._server = server

    def put(self, name: str, body: bytes) -> str:
        self._server.put(self.prefix + name, body)
        return self.prefix + name

    def delete(self, name: str) -> None:
        self._server.delete(self.prefix + name)

    def origin(self, **changes: Any) -> Origin:
        return self._origin(**changes)

    def origin_at(self, endpoint_url: str) -> Origin:
        return self._origin(endpoint_url=endpoint_url)

    def denied(self) -> Origin:
        return self._origin(secret=WRONG_SECRET)

    def no_such_bucket(self) -> Origin:
        return self._origin(bucket="no-such-bucket")

    def unreachable(self) -> Origin:
        return self._origin(endpoint_url="http://127.0.0.1:1")

    def signing_at(self, shift_s: float) -> AbstractContextManager[None]:
        return signing_at(shift_s)

    def close(self) -> None:
        pass

    def _origin(self, *, bucket: str = BUCKET, secret: str = "", endpoint_url: str = "", **changes: Any) -> Origin:
        options = {"region": OssServer.region, "signature": self.signature, **changes}
        return OssOrigin(
            bucket,
            StaticKeys(IDENTITY.key_id, SecretStr(secret or IDENTITY.secret), SecretStr(IDENTITY.token)),
            endpoint_url=endpoint_url or self.endpoint_url,
            environ={},
            **options,
        )


class OssV1OnServer(OssOnServer):
    """Signed with V1."""

    signature = "v1"
