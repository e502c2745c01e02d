"""The common part of the rows against the suite's own servers of OSS and OBS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

from d7yfs.config.schema import StaticKeys
from d7yfs.objects import SecretStr
from d7yfs.origins.origin import Origin
from d7yfs.publish.store_writer import WritableStore
from tests.contract.bucket_clock import signing_at
from tests.contract.stores import WRONG_SECRET
from tests.origins.opening import opened_at
from tests.servers.bucket_server import BucketServer, Identity
from tests.servers.http11 import Fault

BUCKET = "contract"
READER = Identity("READER", "secret-of-one-who-may-only-read", writes=False)


T = TypeVar("T")


class BucketStore:
    """A row of OSS or OBS; a subclass has the origin and its credentials."""

    scheme: ClassVar[str]
    identity: ClassVar[Identity]
    cannot: ClassVar[Mapping[str, str]] = {}
    unstorable: ClassVar[frozenset[str]] = frozenset()
    elsewhere: ClassVar[Mapping[str, Fault]]
    follows: ClassVar[bool] = False
    """Not here: an origin follows only within its endpoint's domain, and an IP address has none."""
    write_permission: ClassVar[str]
    origin_class: ClassVar[Callable[..., Origin]]
    writable_class: ClassVar[Callable[..., WritableStore]]
    options: ClassVar[Mapping[str, str]] = {}
    """The repository's options."""

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

    def writable(self, *, bucket: str = "", endpoint_url: str = "") -> WritableStore:
        return self._writable(self.identity, bucket, endpoint_url)

    def unwritable(self) -> WritableStore:
        return self._writable(READER)

    def signing_at(self, shift_s: float) -> AbstractContextManager[None]:
        return signing_at(shift_s)

    def close(self) -> None:
        pass

    def _origin(self, *, bucket: str = BUCKET, secret: str = "", endpoint_url: str = "", **changes: Any) -> Origin:
        known = self.identity
        keys = StaticKeys(known.key_id, SecretStr(secret or known.secret), SecretStr(known.token))
        return self._open(self.origin_class, bucket, keys, endpoint_url, **changes)

    def _writable(self, identity: Identity, bucket: str = "", endpoint_url: str = "") -> WritableStore:
        token = SecretStr(identity.token) if identity.token else None
        keys = StaticKeys(identity.key_id, SecretStr(identity.secret), token)
        return self._open(self.writable_class, bucket or BUCKET, keys, endpoint_url)

    def _open(self, kind: Callable[..., T], bucket: str, keys: StaticKeys, endpoint_url: str, **changes: Any) -> T:
        options = {"endpoint_url": endpoint_url or self.endpoint_url, "environ": {}, **self.options, **changes}
        return opened_at(kind, f"{self.scheme}://{bucket}", keys, **options)
