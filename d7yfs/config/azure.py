"""The variables that Azure's own tools read for one storage account: AZURE_STORAGE_ACCOUNT, _KEY,
_SAS_TOKEN, _CONNECTION_STRING. Pure.

Owns their meaning for a repository: they count for the account that they name, or for any account
when they name none. Names and the grammar of a connection string:
https://learn.microsoft.com/azure/storage/common/storage-configure-connection-string. Called by
`sources`.
"""

from __future__ import annotations

from collections.abc import Mapping

from d7yfs.config.layers import Found, Value
from d7yfs.config.schema import SasToken, StaticKeys
from d7yfs.config.url import AZURE_SUFFIX, normal_endpoint
from d7yfs.errors import ConfigError
from d7yfs.objects import SecretStr

ACCOUNT = "AZURE_STORAGE_ACCOUNT"
KEY = "AZURE_STORAGE_KEY"
SAS_TOKEN = "AZURE_STORAGE_SAS_TOKEN"  # noqa: S105 - the name of a variable
CONNECTION_STRING = "AZURE_STORAGE_CONNECTION_STRING"


def from_environ(environ: Mapping[str, str], account: str) -> Found | None:
    """Credentials for `account`, and its address; None when the variables give none, or name another account. Empty
    variables count as absent.

    Raises ConfigError for a malformed connection string; the message does not repeat it.
    """
    named = environ.get(ACCOUNT, "").lower()
    if named in ("", account):
        if key := environ.get(KEY):
            return Value(StaticKeys(account, SecretStr(key), given_in=KEY), KEY), {}
        if token := environ.get(SAS_TOKEN):
            return Value(SasToken(SecretStr(token.lstrip("?"))), SAS_TOKEN), {}
    return _from_connection_string(text, account) if (text := environ.get(CONNECTION_STRING)) else None


def _from_connection_string(text: str, account: str) -> Found | None:
    if text.strip().rstrip(";").lower() == "usedevelopmentstorage=true":
        raise ConfigError(
            f"{CONNECTION_STRING}: the emulator has no address of its own here",
            hint="write out the emulator's BlobEndpoint, AccountName and AccountKey",
        )
    parts = {}
    for part in filter(None, text.strip().split(";")):
        name, separator, value = part.partition("=")
        if not separator:
            raise ConfigError(
                f"{CONNECTION_STRING}: is not a connection string", hint="allowed: Name=value pairs separated by ;"
            )
        parts[name.strip().lower()] = value.strip()
    if parts.get("accountname", account).lower() != account:
        return None
    scheme = parts.get("defaultendpointsprotocol", "https").lower()
    suffix = parts.get("endpointsuffix", "")
    endpoint = parts.get("blobendpoint", "")
    if not endpoint and scheme == "http":
        endpoint = f"http://{account}.blob.{suffix or AZURE_SUFFIX}"
    try:
        endpoint = normal_endpoint(endpoint) if endpoint else ""
    except ValueError as error:
        raise ConfigError(f"{CONNECTION_STRING}: its BlobEndpoint {error}") from None
    # An emulator's BlobEndpoint ends in the account, which the URL of the repository has already.
    endpoint = endpoint.removesuffix(f"/{account}")
    said = {"endpoint_url": endpoint, "endpoint_suffix": suffix}
    places = {name: Value(value, CONNECTION_STRING) for name, value in said.items() if value}
    if key := parts.get("accountkey"):
        keys = StaticKeys(account, SecretStr(key), given_in=CONNECTION_STRING)
        return Value(keys, CONNECTION_STRING), places
    if token := parts.get("sharedaccesssignature"):
        return Value(SasToken(SecretStr(token.lstrip("?"))), CONNECTION_STRING), places
    raise ConfigError(
        f"{CONNECTION_STRING}: holds neither AccountKey nor SharedAccessSignature",
        hint="copy it again from the portal, or unset it",
    )
