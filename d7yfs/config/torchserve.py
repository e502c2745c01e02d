"""The files of a host that is set up for TorchServe with an earlier Dragonfly plugin, read
unchanged.

Owns two formats, told apart by their keys. One is the endpoint plugin's `config.json` (`addr`,
`header`, `filter`, `object_storage`; the dragonfly-endpoint project's documentation). The other is
the S3 plugin's flat JSON (`accessKeyId`, …, `load_model`, `minWorker`), whose published sample has
`//` comments and a comma too many. `sources` decides which layer wins, `d7yfs.servers` what to
register.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from d7yfs.config.json_file import JsonFile
from d7yfs.config.schema import Credentials, CredentialsFile, ProviderChain, StaticKeys
from d7yfs.config.triton import DragonflyFile, proxy_address, proxy_filter, proxy_headers
from d7yfs.config.url import RepositoryUrl, normal_endpoint
from d7yfs.errors import ConfigError
from d7yfs.objects import SecretStr

ENDPOINT_VARIABLE = "DRAGONFLY_ENDPOINT_CONFIG"
ENDPOINT_FILE = Path("/etc/dragonfly-endpoint/config.json")
_ENDPOINT_PORT = 65001
"""The endpoint plugin's own default: the old client's proxy."""

_S3_KEYS = ("accessKeyId", "secretAccessKey", "region", "bucketName", "key", "load_model", "minWorker")
_SCHEMES = {"s3": "s3", "gcs": "gs", "oss": "oss", "abs": "as"}
_STORAGE_KEYS = {
    "s3": ("region", "access_key", "secret_key", "endpoint"),
    "gcs": ("project_id", "service_account_path", "endpoint"),  # reading a bucket needs no project
    "oss": ("access_key_id", "access_key_secret", "region", "endpoint"),
    "abs": ("account_name", "account_key", "endpoint"),
}


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """The place of the models that a file gives, and the credentials to read them."""

    url: RepositoryUrl
    """Without an endpoint."""
    credentials: Credentials
    region: str = ""
    endpoint_url: str = ""

    def holds(self, url: RepositoryUrl) -> bool:
        """True if `url` lies in this bucket of this service."""
        return self.is_bucket_of(url) and url.endpoint_url in ("", self.endpoint_url)

    def is_bucket_of(self, url: RepositoryUrl) -> bool:
        """True if `url` has the same bucket's name, on any service."""
        return (url.scheme, url.account, url.bucket) == (self.url.scheme, self.url.account, self.url.bucket)


@dataclass(frozen=True, slots=True)
class TorchServeFile:
    """The content of one of the files; None or empty for what it does not say."""

    path: Path
    storage: ObjectStore | None
    dragonfly: DragonflyFile | None
    models: tuple[str, ...]
    """`load_model`: names, or only `all`."""
    initial_workers: int | None
    """`minWorker`; 0 for an S3 file without it."""
    warnings: tuple[str, ...]


def read(path: Path) -> TorchServeFile:
    """Parse and validate either format. Raises ConfigError."""
    reader = JsonFile(path)
    root = reader.load(relaxed=True)
    return _read_s3(reader, root) if any(key in root for key in _S3_KEYS) else _read_endpoint(reader, root)


def _read_endpoint(reader: JsonFile, root: Mapping[str, object]) -> TorchServeFile:
    """Read the endpoint plugin's format; an address without a port means port 65001."""
    unknown = reader.warn_unknown(root, ("addr", "header", "filter", "object_storage"), "the file")
    text = reader.require_text(root.get("addr", ""), '"addr"')
    if not text:
        allowed = 'allowed: {"addr": "http://host:port"}'
        raise reader.error("gives no proxy address", "; ".join([*unknown, allowed]))
    text = text if "://" in text else f"http://{text}"
    address = proxy_address(reader, "addr", text)
    if urlsplit(text).port is None:
        address += f":{_ENDPOINT_PORT}"
    headers, names = proxy_headers(reader, root), proxy_filter(reader, root)
    storage = _storage(reader, reader.require_object(root.get("object_storage", {}), '"object_storage"'))
    dragonfly = DragonflyFile(reader.path, address, headers, names, ())
    return TorchServeFile(reader.path, storage, dragonfly, (), None, tuple(reader.warnings))


def _storage(reader: JsonFile, content: Mapping[str, object]) -> ObjectStore | None:
    if not content:
        return None
    kind = reader.require_text(content.get("type", ""), "object_storage.type")
    if kind not in _SCHEMES:
        raise reader.error("object_storage.type is unknown", f"allowed: {', '.join(_SCHEMES)}")
    place = "container_name" if kind == "abs" else "bucket_name"
    known = ("type", place, *_STORAGE_KEYS[kind])
    reader.warn_unknown(content, known, "object_storage")
    text = {key: reader.require_text(content.get(key, ""), f"object_storage.{key}") for key in known}
    account = text.get("account_name", "").lower()
    credentials: Credentials = ProviderChain()
    match kind:
        case "s3":
            credentials = _keys(reader, text, "access_key", "secret_key")
        case "oss":
            credentials = _keys(reader, text, "access_key_id", "access_key_secret")
        case "gcs" if text["service_account_path"]:
            credentials = CredentialsFile(Path(text["service_account_path"]))
        case "abs" if text["account_key"]:
            credentials = StaticKeys(account, SecretStr(text["account_key"]), given_in=f'{reader.path}: "account_key"')
    url = _url(reader, _SCHEMES[kind], account, text[place], f"object_storage.{place}")
    return ObjectStore(url, credentials, text.get("region", ""), _endpoint(reader, text.get("endpoint", "")))


def _read_s3(reader: JsonFile, root: Mapping[str, object]) -> TorchServeFile:
    reader.warn_unknown(root, _S3_KEYS, "the file")
    text = {key: reader.require_text(root.get(key, ""), f'"{key}"') for key in _S3_KEYS if key != "minWorker"}
    credentials = _keys(reader, text, "accessKeyId", "secretAccessKey")
    storage = None
    if text["bucketName"]:
        # The plugin's `key` is an object or a prefix; of an archive, its directory can be mounted.
        prefix = text["key"].rpartition("/")[0] if text["key"].endswith(".mar") else text["key"]
        url = _url(reader, "s3", "", f"{text['bucketName']}/{prefix}", '"bucketName" and "key"')
        storage = ObjectStore(url, credentials, text["region"])
    models = tuple(name for each in text["load_model"].split(",") if (name := each.strip()))
    workers = _workers(reader, root.get("minWorker", 0))
    return TorchServeFile(reader.path, storage, None, models, workers, tuple(reader.warnings))


def _workers(reader: JsonFile, value: object) -> int:
    number = int(value) if isinstance(value, str) and re.fullmatch("[0-9]{1,6}", value.strip()) else value
    if not isinstance(number, int) or isinstance(number, bool) or number < 0:
        raise reader.error('"minWorker" is not a number of workers', 'allowed: such as 1 or "1"')
    return number


def _keys(reader: JsonFile, text: Mapping[str, str], key_id: str, secret: str) -> Credentials:
    if bool(text[key_id]) != bool(text[secret]):
        there, lacking = (key_id, secret) if text[key_id] else (secret, key_id)
        raise reader.error(
            f'gives "{there}" without "{lacking}"', "give both, or neither to use the provider's own chain"
        )
    if not text[key_id]:
        return ProviderChain()
    return StaticKeys(text[key_id], SecretStr(text[secret]), given_in=f'{reader.path}: "{secret}"')


def _url(reader: JsonFile, scheme: str, account: str, place: str, where: str) -> RepositoryUrl:
    try:
        url = RepositoryUrl.parse(f"{scheme}://{account}/{place}" if scheme == "as" else f"{scheme}://{place}")
    except ConfigError:
        raise reader.error(
            f"{where} do not name a place in a bucket", "allowed: a bucket's name, the beginning of a key"
        ) from None
    if url.endpoint_url:
        raise reader.error(f"{where} holds an address", "allowed: a bucket's name")
    return url


def _endpoint(reader: JsonFile, text: str) -> str:
    try:
        return normal_endpoint(text if "://" in text else f"https://{text}") if text else ""
    except ValueError as error:
        raise reader.error(f"object_storage.endpoint {error}") from None
