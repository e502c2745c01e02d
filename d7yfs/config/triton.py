"""The files of a host set up for Triton with the Dragonfly repository agent, read unchanged.

Owns the formats: `cloud_credential.json` (Triton's docs/user_guide/model_repository.md, "Cloud Storage with Credential
file") and `dragonfly_config.json` (the agent's README). Which layer wins is the business of `sources`.

A file that a variable names must be there and right: there is never a fall-through to other credentials. What the formats
do not know is reported as a warning, a wrong type is an error. Both files hold secrets, so messages name the file, the key
and what is allowed, but never a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from d7yfs.config.json_file import JsonFile
from d7yfs.config.kinds import parse_proxy
from d7yfs.config.schema import Credentials, Profile, ProviderChain, StaticKeys
from d7yfs.config.url import SCHEMES, RepositoryUrl, redact
from d7yfs.errors import ConfigError

CREDENTIAL_VARIABLE = "TRITON_CLOUD_CREDENTIAL_PATH"
CREDENTIAL_FILE = "cloud_credential.json"
DRAGONFLY_VARIABLE = "TRITON_DRAGONFLY_CONFIG_PATH"
DRAGONFLY_FILE = "dragonfly_config.json"

_FORBIDDEN_HEADERS = {
    # What each request itself is made of.
    *("host", "range", "authorization", "accept-encoding", "content-length"),
    # Hop-by-hop (RFC 9110, 7.6.1).
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
    # Names that d7yfs sets, or that would change what a task is and where dfdaemon keeps it.
    *("x-dragonfly-use-p2p", "x-dragonfly-filtered-query-params", "x-dragonfly-filter", "x-dragonfly-range"),
    *("x-dragonfly-content-for-calculating-task-id", "x-dragonfly-piece-length"),
    *("x-dragonfly-output-path", "x-dragonfly-force-hard-link"),
}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class KeyEntry:
    """An entry of `s3`, `oss` or `obs`: keys, else profile, else the provider's chain. Absent values are empty."""

    key_id: str
    secret_key: SecretStr
    session_token: SecretStr
    region: str
    profile: str

    def credentials(self) -> Credentials:
        """What the entry amounts to; half a key pair counts as none, as in Triton."""
        if self.key_id and self.secret_key:
            return StaticKeys(self.key_id, self.secret_key, self.session_token or None)
        return Profile(self.profile) if self.profile else ProviderChain()


@dataclass(frozen=True, slots=True)
class GoogleEntry:
    """An entry of `gs`: path of a service account's file; empty for the default credentials."""

    path: str


@dataclass(frozen=True, slots=True)
class AzureEntry:
    """An entry of `as`."""

    account_str: str
    account_key: SecretStr


@dataclass(frozen=True, slots=True)
class CredentialEntry:
    """One key of a section with what stands under it."""

    key: str
    """As the file has it."""
    place: RepositoryUrl | None
    """The key in normal form; None for the default key `""`."""
    value: KeyEntry | GoogleEntry | AzureEntry


@dataclass(frozen=True, slots=True)
class CredentialFile:
    """A parsed `cloud_credential.json`."""

    path: Path
    sections: Mapping[str, tuple[CredentialEntry, ...]]
    """By scheme."""
    warnings: tuple[str, ...]

    def match(self, url: RepositoryUrl) -> CredentialEntry:
        """The entry with the longest key that covers `url`, else the default one. Raises ConfigError when there is none."""
        entries = self.sections.get(url.scheme, ())
        covering = [entry for entry in entries if entry.place is None or entry.place.covers(url)]
        if covering:
            return max(covering, key=lambda entry: len(str(entry.place)) if entry.place else -1)
        keys = ", ".join(f'"{redact(entry.key)}"' for entry in entries) or "none"
        raise ConfigError(
            f'{self.path}: no key of section "{url.scheme}" covers {url}; keys there: {keys}',
            hint='add the URL or a default key ""; or set --profile or --anonymous, which replace this file',
        )


@dataclass(frozen=True, slots=True)
class DragonflyFile:
    """A parsed `dragonfly_config.json`, or what an endpoint's file says of the same."""

    path: Path
    proxy: str
    """`http://host[:port]`, never empty."""
    headers: Mapping[str, SecretStr]
    """For proxied requests only."""
    filter: tuple[str, ...]
    """Names of query parameters that are no part of a task's identity."""
    warnings: tuple[str, ...]


def locate(environ: Mapping[str, str], variable: str, default: Path) -> tuple[Path | None, bool]:
    """The file to read, if any, and whether the variable names it. An empty variable turns the default file off."""
    named = environ.get(variable)
    if named is not None:
        return (Path(named).absolute() if named else None), bool(named)
    try:
        return (default if default.exists() else None), False
    except PermissionError:  # a home directory that we may not look into
        return None, False


def read_credentials(path: Path) -> CredentialFile:
    """Parse and validate all sections. Raises ConfigError."""
    reader = JsonFile(path)
    sections: dict[str, tuple[CredentialEntry, ...]] = {}
    for section, content in reader.load().items():
        if section not in SCHEMES:
            reader.warn(f'unknown section "{section}" is ignored; known: {", ".join(SCHEMES)}')
            continue
        sections[section] = _entries(reader, section, reader.mapping(content, f'"{section}"'))
    return CredentialFile(path, sections, tuple(reader.warnings))


def read_dragonfly(path: Path) -> DragonflyFile:
    """Parse and validate. Raises ConfigError, also when the file gives no address."""
    reader = JsonFile(path)
    root = reader.load()
    addresses: dict[str, str] = {}
    proxy = root.get("proxy", "")
    if isinstance(proxy, dict):
        reader.warn_unknown(proxy, ("addr",), '"proxy"')
        addresses["proxy.addr"] = reader.text(proxy.get("addr", ""), "proxy.addr")
    else:
        addresses["proxy"] = reader.text(proxy, '"proxy"')
    for key in ("proxy/addr", "addr"):
        addresses[key] = reader.text(root.get(key, ""), f'"{key}"')
    reader.warn_unknown(root, ("proxy", "proxy/addr", "addr", "header", "filter"), "the file")
    proxies = {key: proxy_address(reader, key, text) for key, text in addresses.items() if text}
    if not any(proxies.values()):
        raise reader.error("gives no proxy address", 'allowed: {"proxy": "http://host:port"}')
    used, address = next((key, found) for key, found in proxies.items() if found)
    for key, other in proxies.items():
        if other != address:
            reader.warn(f'"{key}" gives another address than "{used}" and is ignored')
    return DragonflyFile(path, address, proxy_headers(reader, root), proxy_filter(reader, root), tuple(reader.warnings))


def _entries(reader: JsonFile, section: str, content: Mapping[str, object]) -> tuple[CredentialEntry, ...]:
    entries: dict[str, CredentialEntry] = {}
    for key, raw in content.items():
        where = f'{section}["{redact(key)}"]'
        value = _entry(reader, section, where, raw)
        try:
            place = RepositoryUrl.parse_prefix(key) if key else None
        except ConfigError:
            reader.warn(f"{where} is no URL, so it covers nothing")
            continue
        if place and place.scheme != section:
            reader.warn(f"{where} is no {section}:// URL, so it covers nothing")
            continue
        normal = str(place) if place else ""
        if normal in entries and entries[normal].value != value:
            first = redact(entries[normal].key)
            raise reader.error(f'{where} and "{first}" name the same place with different content', "keep one of them")
        entries[normal] = CredentialEntry(key, place, value)
    return tuple(entries.values())


def _entry(reader: JsonFile, section: str, where: str, raw: object) -> KeyEntry | GoogleEntry | AzureEntry:
    if section == "gs":
        return GoogleEntry(reader.text(raw, where, allowed="the path of a credentials file"))
    known = ("account_str", "account_key") if section == "as" else tuple(KeyEntry.__dataclass_fields__)
    content = reader.mapping(raw, where)
    reader.warn_unknown(content, known, where)
    text = {key: reader.text(content.get(key, ""), f"{where}.{key}") for key in known}
    if section == "as":
        return AzureEntry(text["account_str"], SecretStr(text["account_key"]))
    if bool(text["key_id"]) != bool(text["secret_key"]):
        lacking = "secret_key" if text["key_id"] else "key_id"
        reader.warn(f"{where} has no {lacking}, so its other half is ignored")
    elif text["session_token"] and not text["key_id"]:
        reader.warn(f"{where} has a session_token without keys, which is ignored")
    secrets = {key: SecretStr(text[key]) for key in ("secret_key", "session_token")}
    return KeyEntry(text["key_id"], **secrets, region=text["region"], profile=text["profile"])


def proxy_address(reader: JsonFile, key: str, text: str) -> str:
    """dfdaemon's address under `key`. Raises ConfigError."""
    try:
        return parse_proxy(text)
    except ValueError as error:
        raise reader.error(f'"{key}" {error}') from None


def proxy_headers(reader: JsonFile, root: Mapping[str, object]) -> dict[str, SecretStr]:
    """What stands under `header`, less what is not for it to say. Raises ConfigError."""
    headers: dict[str, SecretStr] = {}
    forbidden = []
    for name, raw in reader.mapping(root.get("header", {}), '"header"').items():
        value = reader.text(raw, f'header "{name}"').strip()
        if not _HEADER_NAME.fullmatch(name):
            raise reader.error(f"header {name!r} is no header name", "allowed: letters, digits and -")
        if not _HEADER_VALUE.fullmatch(value):
            raise reader.error(f'the value of header "{name}" cannot be sent', "allowed: printable ASCII on one line")
        if name.lower() in _FORBIDDEN_HEADERS or name.lower().startswith("if-"):
            forbidden.append(name)
        elif value:
            headers[name] = SecretStr(value)
    if forbidden:
        reader.warn(f"header {', '.join(forbidden)} belongs to each request itself and is ignored")
    return headers


def proxy_filter(reader: JsonFile, root: Mapping[str, object]) -> tuple[str, ...]:
    """The names under `filter`. Raises ConfigError."""
    elements = root.get("filter", [])
    if not isinstance(elements, list):
        raise reader.error('"filter" has the wrong type', "allowed: a list of query parameter names")
    texts = [reader.text(element, f"filter[{index}]") for index, element in enumerate(elements)]
    names = [name.strip() for text in texts for name in re.split("[&,]", text)]
    # The names travel in a header of their own.
    if not all(_HEADER_VALUE.fullmatch(name) for name in names):
        raise reader.error('"filter" holds a name that cannot be sent', "allowed: printable ASCII")
    return tuple(dict.fromkeys(name for name in names if name))
