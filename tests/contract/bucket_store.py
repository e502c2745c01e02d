"""The common part of the rows against the suite's own servers of OSS and OBS."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar

from d7yfs.config.schema import StaticKeys
from d7yfs.objects import SecretStr
from d7yfs.origins.origin import Origin
from tests.contract.bucket_clock import signing_at
from tests.contract.stores import WRONG_SECRET
from tests.servers.bucket_server import BucketServer, Identity
from tests.servers.http11 import Fault

BUCKET = "contract"


class BucketStore:
    """A row of OSS or OBS; a subclass has the origin and its credentials."""

    identity: ClassVar[Identity]
    cannot: ClassVar[Mapping[str, str]] = {}
    unstorable: ClassVar[frozenset[str]] = frozenset()
    elsewhere: ClassVar[Mapping[str, Fault]]
    follows: ClassVar[bool] = False
    """Not here: an origin follows only within its endpoint's domain, and an IP address has none."""

    def __init__(self, server: BucketServer) -> None:
        self.prefix = ""
        self.endpoint_url = server.url
        self.secrets = frozenset({self.identity.secret, self.identity.token})
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
        known = self.identity
        keys = StaticKeys(known.key_id, SecretStr(secret or known.secret), SecretStr(known.token))
        return self._open(bucket, keys, endpoint_url=endpoint_url or self.endpoint_url, environ={}, **changes)

    def _open(self, bucket: str, keys: StaticKeys, **options: Any) -> Origin:
        raise NotImplementedError
