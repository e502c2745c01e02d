"""The `gs://` rows of the contract suite: on its own server and on fake-gcs-server."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
from google.auth import _helpers

from d7yfs.config.schema import Anonymous, Credentials, CredentialsFile, StaticKeys
from d7yfs.objects import SecretStr
from d7yfs.origins.gs import signing
from d7yfs.origins.gs.origin import GsOrigin
from d7yfs.origins.renewal import RELOAD_INTERVAL_S
from d7yfs.publish.store_writer import WritableStore
from d7yfs.publish.stores.gs import WritableGs
from tests.origins.opening import opened_at
from tests.servers.fake_gcs import FakeGcs
from tests.servers.gcs import Bucket, GcsServer
from tests.servers.http11 import Fault

_ONE_ENDPOINT = {"test_bucket_that_is_elsewhere": "one endpoint serves the buckets of all regions"}


class GsServiceAccount:
    """A row with a service account's key: it signs URLs, and direct reads carry a token."""

    BUCKET = "contract"
    cannot: ClassVar[Mapping[str, str]] = {
        **_ONE_ENDPOINT,
        "test_signature_of_wrong_keys_is_refused": "a wrong key gets no token, and nothing is read without one",
    }
    unstorable: frozenset[str] = frozenset()
    elsewhere: ClassVar[Mapping[str, Fault]] = {}
    follows = False
    write_permission = "storage.objects.create"

    def __init__(self, server: GcsServer) -> None:
        self.prefix = ""
        self._later_s = 0.0
        self.server = server
        self.endpoint_url = server.url
        server.put(self.BUCKET, "other", b"")
        server.buckets["unwritable"] = Bucket(writable=False)
        self._directory = tempfile.TemporaryDirectory()
        self.secrets = self._give_credentials()

    def put(self, name: str, body: bytes) -> str:
        return self.server.put(self.BUCKET, self.prefix + name, body).key

    def delete(self, name: str) -> None:
        self.server.delete(self.BUCKET, self.prefix + name)

    def origin(self, **changes: Any) -> GsOrigin:
        return self._origin(**changes)

    def origin_at(self, endpoint_url: str) -> GsOrigin:
        return self._origin(endpoint_url=endpoint_url)

    def denied(self) -> GsOrigin:
        return self._origin(credentials=self._wrong)

    def no_such_bucket(self) -> GsOrigin:
        return self._origin(bucket="no-such-bucket")

    def unreachable(self) -> GsOrigin:
        return self._origin(endpoint_url="http://127.0.0.1:1")

    def writable(self, *, bucket: str = "", endpoint_url: str = "") -> WritableStore:
        url = f"gs://{bucket or self.BUCKET}"
        return opened_at(WritableGs, url, self._right, endpoint_url=endpoint_url or self.endpoint_url, clock=self._now)

    def unwritable(self) -> WritableStore:
        return self.writable(bucket="unwritable")

    @contextmanager
    def signing_at(self, shift_s: float) -> Iterator[None]:
        """Shift the time of signatures and assertions; tokens of so long ago have expired then."""
        moment = signing._moment
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(signing, "_moment", lambda now: moment(now + shift_s))
            patch.setattr(
                _helpers, "utcnow", lambda: datetime.fromtimestamp(time.time() + shift_s, UTC).replace(tzinfo=None)
            )
            yield
        if -shift_s > self.server.token_life_s:
            self.server.tokens.clear()
            self._later_s += RELOAD_INTERVAL_S

    def close(self) -> None:
        self._directory.cleanup()

    def _give_credentials(self) -> frozenset[str]:
        account = self.server.account()
        self._right: Credentials = self._file("right.json", account)
        self._wrong: Credentials = self._file("wrong.json", self.server.account(account["client_email"], known=False))
        key = account["private_key"].split("\n")
        return frozenset(line for line in key if len(line) > 32)

    def _file(self, name: str, content: dict[str, str]) -> CredentialsFile:
        path = Path(self._directory.name) / name
        path.write_text(json.dumps(content))
        return CredentialsFile(path)

    def _now(self) -> float:
        return time.time() + self._later_s

    def _origin(
        self,
        *,
        bucket: str = BUCKET,
        endpoint_url: str = "",
        credentials: Credentials | None = None,
        **changes: Any,
    ) -> GsOrigin:
        changes.setdefault("clock", self._now)
        changes["endpoint_url"] = endpoint_url or self.endpoint_url
        return opened_at(GsOrigin, f"gs://{bucket}", credentials or self._right, **changes)


class GsHmacKey(GsServiceAccount):
    """A row with an HMAC key, which signs everything, also listings."""

    cannot = _ONE_ENDPOINT

    def _give_credentials(self) -> frozenset[str]:
        access_id, secret = self.server.hmac_key()
        self._right = StaticKeys(access_id, SecretStr(secret))
        self._wrong = StaticKeys(access_id, SecretStr("not-the-secret"))
        return frozenset({secret})


class GsOnFakeGcs(GsServiceAccount):
    """An anonymous row, on a server that asks for no credentials."""

    cannot: ClassVar[Mapping[str, str]] = {
        **_ONE_ENDPOINT,
        **dict.fromkeys(
            (
                "test_wrong_secret",
                "test_failures",
                "test_clock_that_is_wrong",
                "test_expired_signature_is_renewed",
                "test_fresh_signs_anew",
                "test_garbled_signature_is_refused",
                "test_no_secret_is_ever_written",
                "test_presigned_signs_neither_range_nor_conditions",
                "test_refused_signature_is_renewed_once",
                "test_requests_are_reused_for_half_their_life",
                "test_signature_of_wrong_keys_is_refused",
                "test_signed_keeps_the_signature_out_of_the_url",
            ),
            "fake-gcs-server checks no credentials",
        ),
        **dict.fromkeys(
            ("test_busy_store", "test_truncated_body"), "fake-gcs-server knows its objects by one Host alone"
        ),
        "test_paging_yields_each_entry_once_and_in_order": "fake-gcs-server does not count prefixes into a page",
        **dict.fromkeys(
            (
                "test_what_is_put_is_read",
                "test_a_pointer_replaces_only_what_was_there",
                "test_a_condition_is_kept_by_the_store",
                "test_a_refused_write_names_the_right",
                "test_a_write_to_no_bucket",
                "test_a_write_to_a_busy_store",
                "test_a_write_to_no_store",
            ),
            "fake-gcs-server takes a PUT of the XML API in a signed URL alone, and ignores its condition",
        ),
    }
    secrets = frozenset()

    def __init__(self, server: FakeGcs) -> None:
        self.prefix = ""
        self._later_s = 0.0
        self._fake = server
        self._right = Anonymous()
        self.endpoint_url = server.endpoint_url
        server.make_bucket(self.BUCKET)

    def put(self, name: str, body: bytes) -> str:
        self._fake.put(self.BUCKET, self.prefix + name, body)
        return self.prefix + name

    def delete(self, name: str) -> None:
        self._fake.delete(self.BUCKET, self.prefix + name)

    def close(self) -> None:
        """Leave the server's client open: the server owns it."""
