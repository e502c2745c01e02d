"""The `as://` rows of the contract suite: Azurite, by the account's key and by a SAS."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import pytest
from azure.core.exceptions import ResourceExistsError
from azure.storage.blob import ContainerSasPermissions, generate_container_sas

from d7yfs.config.schema import Credentials, SasToken, StaticKeys
from d7yfs.objects import SecretStr
from d7yfs.origins.azure import sas
from d7yfs.origins.azure.origin import AzureOrigin
from d7yfs.origins.origin import Origin
from d7yfs.publish.store_writer import WritableStore
from d7yfs.publish.stores.azure import WritableAzure
from tests.contract.stores import WRONG_SECRET
from tests.origins.opening import opened_at
from tests.servers.azurite import Azurite
from tests.servers.http11 import Fault

_NO_HEADER = "a signature in headers would cover Range and If-Match, so data is signed in the URL"
_NEVER_ELSEWHERE = "an account's host name says where it is: nothing redirects"


class _AzureOnAzurite:
    """The common part of both rows; `prefix` is the test's own."""

    CONTAINER = "contract"
    # Azure takes \ for /; it lists control characters percent-encoded, Azurite not at all.
    unstorable: ClassVar[frozenset[str]] = frozenset({"back\\slash", "ctl\x01x"})
    elsewhere: ClassVar[Mapping[str, Fault]] = {}
    follows: ClassVar[bool] = False
    write_permission: ClassVar[str] = "Storage Blob Data Contributor"

    def __init__(self, server: Azurite) -> None:
        self.prefix = ""
        self.endpoint_url = server.endpoint_url
        self._server = server
        self._tokens: dict[tuple[str, bool], str] = {}
        self._client = server.client()
        self._container = self._client.get_container_client(self._container_name())
        with suppress(ResourceExistsError):  # of a row that was made before, and is again
            self._container.create_container()

    def put(self, name: str, body: bytes) -> str:
        self._container.upload_blob(self.prefix + name, body, overwrite=True)
        return self.prefix + name

    def delete(self, name: str) -> None:
        self._container.delete_blob(self.prefix + name)

    def origin(self, **changes: Any) -> Origin:
        return self._origin(self._credentials(), **changes)

    def origin_at(self, endpoint_url: str) -> Origin:
        return self._origin(self._credentials(), endpoint_url=endpoint_url)

    def denied(self) -> Origin:
        return self._origin(self._wrong_credentials())

    def no_such_bucket(self) -> Origin:
        return self._origin(self._credentials("no-such-bucket"), container="no-such-bucket")

    def unreachable(self) -> Origin:
        return self._origin(self._credentials(), endpoint_url="http://127.0.0.1:1")

    def writable(self, *, bucket: str = "", endpoint_url: str = "") -> WritableStore:
        return self._writable(self._credentials(bucket, write=True), bucket, endpoint_url)

    def unwritable(self) -> WritableStore:
        return self._writable(SasToken(SecretStr(self._token(self._container_name()))))

    @contextmanager
    def signing_at(self, shift_s: float) -> Iterator[None]:
        true: Callable[[float], str] = sas.iso
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sas, "iso", lambda moment: true(moment + shift_s))
            yield

    def close(self) -> None:
        self._client.close()

    def _container_name(self) -> str:
        return self.CONTAINER

    def _credentials(self, container: str = "", *, write: bool = False) -> Credentials:
        raise NotImplementedError

    def _wrong_credentials(self) -> Credentials:
        raise NotImplementedError

    def _token(self, container: str, *, write: bool = False) -> str:
        """A signature that the SDK makes; the same one each time."""
        if (container, write) not in self._tokens:
            self._tokens[container, write] = generate_container_sas(
                self._server.account,
                container,
                account_key=self._server.key,
                permission=ContainerSasPermissions(read=True, list=True, write=write),
                expiry=datetime.now(UTC) + timedelta(hours=2),
            )
        return self._tokens[container, write]

    def _writable(self, credentials: Credentials, container: str = "", endpoint_url: str = "") -> WritableStore:
        url = f"as://{self._server.account}/{container or self._container_name()}"
        return opened_at(WritableAzure, url, credentials, endpoint_url=endpoint_url or self.endpoint_url)

    def _origin(
        self, credentials: Credentials, *, container: str = "", endpoint_url: str = "", **changes: Any
    ) -> Origin:
        return opened_at(
            AzureOrigin,
            f"as://{self._server.account}/{container or self._container_name()}",
            credentials,
            endpoint_url=endpoint_url or self.endpoint_url,
            **changes,
        )


class AzureKeyOnAzurite(_AzureOnAzurite):
    """A row whose origin signs with the account's key."""

    cannot: ClassVar[Mapping[str, str]] = {
        "test_signed_keeps_the_signature_out_of_the_url": _NO_HEADER,
        "test_clock_that_is_wrong[3600]": "a signature without a start is valid whatever a clock that is ahead says",
        "test_bucket_that_is_elsewhere": _NEVER_ELSEWHERE,
    }

    def __init__(self, server: Azurite) -> None:
        super().__init__(server)
        self.secrets = frozenset({server.key})

    def _credentials(self, container: str = "", *, write: bool = False) -> Credentials:
        return StaticKeys(self._server.account, SecretStr(self._server.key))

    def _wrong_credentials(self) -> Credentials:
        # A key is base64; of anything else the origin says so before it asks.
        return StaticKeys(self._server.account, SecretStr("bm90LXRoZS1zZWNyZXQ="))


class AzureSasOnAzurite(_AzureOnAzurite):
    """A row with a signature that the SDK made beforehand, for one container."""

    cannot: ClassVar[Mapping[str, str]] = {
        "test_signed_keeps_the_signature_out_of_the_url": "a shared access signature is part of the URL",
        "test_clock_that_is_wrong": "the signature is made elsewhere, by another clock",
        "test_expired_signature_is_renewed": "the signature is made elsewhere, and there is only this one",
        "test_bucket_that_is_elsewhere": _NEVER_ELSEWHERE,
    }

    def __init__(self, server: Azurite) -> None:
        super().__init__(server)
        self.secrets = frozenset({server.key, self._token(self._container_name()).partition("sig=")[2]})

    def _container_name(self) -> str:
        return f"{self.CONTAINER}-sas"

    def _credentials(self, container: str = "", *, write: bool = False) -> Credentials:
        return SasToken(SecretStr(self._token(container or self._container_name(), write=write)))

    def _wrong_credentials(self) -> Credentials:
        signed, mark, _ = self._token(self._container_name()).partition("sig=")
        return SasToken(SecretStr(f"{signed}{mark}{WRONG_SECRET}"))
