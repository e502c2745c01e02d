"""The rows of the contract suite: real stores, filled by the provider's own client."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Protocol

import pytest

from d7yfs.config.schema import StaticKeys
from d7yfs.objects import SecretStr
from d7yfs.origins.origin import Origin
from d7yfs.origins.s3.origin import S3Origin
from d7yfs.publish.store_writer import WritableStore
from d7yfs.publish.stores.s3 import WritableS3
from tests.origins.opening import opened_at
from tests.servers.faults import status
from tests.servers.http11 import Fault
from tests.servers.seaweedfs import Identity, S3Server

WRONG_SECRET = "not-the-secret"


class Store(Protocol):
    """One bucket of a real store, shared by the run; a test's `prefix` ends in a slash."""

    prefix: str
    endpoint_url: str
    """Scheme, host and port of the real server."""
    secrets: frozenset[str]
    """Text that must never show up: keys, tokens, shared access signatures."""

    @property
    def cannot(self) -> Mapping[str, str]:
        """Cases that the provider or its emulator cannot show, each with the reason for the table.

        By the test's name, whole (`test_clock_that_is_wrong`) or with its parameters
        (`test_any_range_with_one_request[presigned]`). They are not run.
        """

    @property
    def unstorable(self) -> frozenset[str]:
        """Names of the suite that this store refuses or changes."""

    @property
    def elsewhere(self) -> Mapping[str, Fault]:
        """The provider's answers to a listing of a bucket elsewhere, by a name for each."""

    @property
    def follows(self) -> bool:
        """True if the origin then goes there; else it raises an error that says where."""

    @property
    def write_permission(self) -> str:
        """The provider's name of the right that a refused write lacks."""

    def put(self, name: str, body: bytes) -> str:
        """Store an object at prefix + name; return its key."""

    def delete(self, name: str) -> None: ...

    def origin(self, **changes: Any) -> Origin:
        """A read-only origin; `changes` are options and keywords (`control_proxy`, `clock`)."""

    def origin_at(self, endpoint_url: str) -> Origin:
        """An origin at another address (scheme, host, port), of a proxy before the server."""

    def denied(self) -> Origin:
        """An origin with a wrong secret, WRONG_SECRET where any text may be one."""

    def no_such_bucket(self) -> Origin:
        """An origin for the bucket `no-such-bucket`."""

    def unreachable(self) -> Origin:
        """An origin at a port without a listener."""

    def writable(self, *, bucket: str = "", endpoint_url: str = "") -> WritableStore:
        """The store with the right to write; the row's own bucket and server unless others are given."""

    def unwritable(self) -> WritableStore:
        """The store without the right to write."""

    def signing_at(self, shift_s: float) -> AbstractContextManager[None]:
        """Sign requests as if the clock were off by `shift_s`, inside the block."""

    def close(self) -> None: ...


def _s3_error(code: str, extra: str = "") -> bytes:
    return f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message>{extra}</Error>".encode()


class S3OnSeaweedFS:
    """The row of `s3://` against SeaweedFS, which verifies every signature."""

    BUCKET = "contract"
    cannot: ClassVar[Mapping[str, str]] = {
        "test_empty_segments": "SeaweedFS keeps a//b as a/b",
        "test_long_components": "SeaweedFS refuses segments over 255 bytes",
        "test_a_write_to_no_bucket": "SeaweedFS makes the bucket",
    }
    unstorable = frozenset({"back\\slash"})
    # https://docs.aws.amazon.com/AmazonS3/latest/userguide/Redirects.html: the region in the header
    # and in the element that S3 adds.
    elsewhere: ClassVar[Mapping[str, Fault]] = {
        "301": status(301, {"x-amz-bucket-region": "eu-west-1"}, _s3_error("PermanentRedirect")),
        "307": status(307, {"x-amz-bucket-region": "eu-west-1"}, _s3_error("TemporaryRedirect")),
        "400": status(400, {}, _s3_error("AuthorizationHeaderMalformed", "<Region>eu-west-1</Region>")),
    }
    follows = True
    write_permission = "s3:PutObject"

    def __init__(self, server: S3Server) -> None:
        self.prefix = ""
        self.endpoint_url = server.endpoint_url
        self.secrets = frozenset({server.reader.secret_key, server.writer.secret_key})
        self._server = server
        self._client = server.client()
        with suppress(self._client.exceptions.BucketAlreadyOwnedByYou):  # of a row that was made before, and is again
            self._client.create_bucket(Bucket=self.BUCKET)

    def put(self, name: str, body: bytes) -> str:
        self._client.put_object(Bucket=self.BUCKET, Key=self.prefix + name, Body=body)
        return self.prefix + name

    def delete(self, name: str) -> None:
        self._client.delete_object(Bucket=self.BUCKET, Key=self.prefix + name)

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
        return self._writable(self._server.writer, bucket, endpoint_url)

    def unwritable(self) -> WritableStore:
        return self._writable(self._server.reader)

    @contextmanager
    def signing_at(self, shift_s: float) -> Iterator[None]:
        moment = datetime.now(UTC) + timedelta(seconds=shift_s)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("botocore.auth.get_current_datetime", lambda: moment)
            yield

    def close(self) -> None:
        self._client.close()

    def _writable(self, identity: Identity, bucket: str = "", endpoint_url: str = "") -> WritableStore:
        keys = StaticKeys(identity.key_id, SecretStr(identity.secret_key))
        url = f"s3://{bucket or self.BUCKET}"
        return opened_at(WritableS3, url, keys, endpoint_url=endpoint_url or self.endpoint_url)

    def _origin(self, *, bucket: str = BUCKET, secret: str = "", endpoint_url: str = "", **changes: Any) -> Origin:
        keys = StaticKeys(self._server.reader.key_id, SecretStr(secret or self._server.reader.secret_key))
        return opened_at(S3Origin, f"s3://{bucket}", keys, endpoint_url=endpoint_url or self.endpoint_url, **changes)
