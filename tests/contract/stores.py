"""The rows of the contract suite: each a real store that an origin is run against, filled by the provider's own client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import pytest
from pydantic import SecretStr

from d7yfs.config.schema import StaticKeys
from d7yfs.origins.origin import Origin
from d7yfs.origins.s3 import S3Origin
from tests.servers.seaweedfs import SeaweedFS


class Store(Protocol):
    """One bucket of a real store, shared by the run. Each test works below a `prefix` of its own, which ends in a slash."""

    prefix: str
    secret: str
    """What must never show up anywhere."""
    unstorable: frozenset[str]
    """Names of the suite that this store refuses or changes."""

    def put(self, name: str, body: bytes) -> str:
        """Store an object at prefix + name; returns its key."""

    def delete(self, name: str) -> None: ...

    def origin(self, **changes: Any) -> Origin:
        """An origin for the bucket with read-only credentials."""

    def denied(self) -> Origin:
        """The same with a wrong secret."""

    def no_such_bucket(self) -> Origin: ...

    def unreachable(self) -> Origin: ...

    def signing_at(self, shift_s: float) -> AbstractContextManager[None]:
        """While it lasts, the provider's SDK signs as if the clock were off by `shift_s`."""

    def close(self) -> None: ...


class S3OnSeaweedFS:
    """`s3://` against SeaweedFS, which verifies every signature."""

    BUCKET = "contract"
    unstorable = frozenset({"back\\slash"})

    def __init__(self, server: SeaweedFS) -> None:
        self.prefix = ""
        self.secret = server.reader.secret_key
        self._server = server
        self._client = server.client()
        self._client.create_bucket(Bucket=self.BUCKET)

    def put(self, name: str, body: bytes) -> str:
        self._client.put_object(Bucket=self.BUCKET, Key=self.prefix + name, Body=body)
        return self.prefix + name

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self.BUCKET, Key=self.prefix + name)

    def origin(self, **changes: Any) -> Origin:
        return self._origin(self.BUCKET, self._server.endpoint_url, self.secret, **changes)

    def denied(self) -> Origin:
        return self._origin(self.BUCKET, self._server.endpoint_url, "not-the-secret")

    def no_such_bucket(self) -> Origin:
        return self._origin("no-such-bucket", self._server.endpoint_url, self.secret)

    def unreachable(self) -> Origin:
        return self._origin(self.BUCKET, "http://127.0.0.1:1", self.secret)

    @contextmanager
    def signing_at(self, shift_s: float) -> Iterator[None]:
        moment = datetime.now(UTC) + timedelta(seconds=shift_s)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("botocore.auth.get_current_datetime", lambda: moment)
            yield

    def close(self) -> None:
        self._client.close()

    def _origin(self, bucket: str, endpoint_url: str, secret: str, **changes: Any) -> Origin:
        keys = StaticKeys(self._server.reader.key_id, SecretStr(secret))
        return S3Origin(bucket, keys, endpoint_url=endpoint_url, **changes)
