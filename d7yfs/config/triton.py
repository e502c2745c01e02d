"""The files of a host that is set up for Triton with the Dragonfly repository agent, read
unchanged.

Owns the formats: `cloud_credential.json` (Triton's docs/user_guide/model_repository.md, "Cloud
Storage with Credential file") and `dragonfly_config.json` (the agent's README). `sources` decides
which layer wins.

A file that a variable names must exist and be valid: there is never a fall-through to other
credentials. An unknown key is a warning, a wrong type an error. Both files hold secrets, so
messages name the file, the key and what is allowed, but never a value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from d7yfs.config.json_file import JsonFile
from d7yfs.config.kinds import parse_proxy
from d7yfs.config.schema import Credentials, CredentialsFile, Profile, ProviderChain, StaticKeys
from d7yfs.config.settings_file import distrust
from d7yfs.config.url import SCHEMES, RepositoryUrl, redact
from d7yfs.errors import ConfigError
from d7yfs.objects import SecretStr

CREDENTIAL_VARIABLE = "TRITON_CLOUD_CREDENTIAL_PATH"
CREDENTIAL_FILE = "cloud_credential.json"
DRAGONFLY_VARIABLE = "TRITON_DRAGONFLY_CONFIG_PATH"
DRAGONFLY_FILE = "dragonfly_config.json"

_KEYS = ("key_id", "secret_key", "session_token", "region", "profile")

_FORBIDDEN_HEADERS = {
    # Parts of each request itself.
    *("host", "range", "authorization", "accept-encoding", "content-length"),
    # Hop-by-hop (RFC 9110, 7.6.1).
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
    # Names that d7yfs sets, or that would change a task's identity or where dfdaemon keeps it.
    *("x-dragonfly-use-p2p", "x-dragonfly-filtered-query-params", "x-dragonfly-filter", "x-dragonfly-range"),
    *("x-dragonfly-content-for-calculating-task-id", "x-dragonfly-piece-length"),
    *("x-dragonfly-output-path", "x-dragonfly-force-hard-link"),
}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")


@dataclass(frozen=True, slots=True)
class CredentialEntry:
    """One key of a section, with the entry under it."""

    key: str
    """The key as the file spells it."""
    place: RepositoryUrl | None
    """The key in normal form; None for the default key `""`."""
    credentials: Credentials
    region: str = ""


@dataclass(frozen=True, slots=True)
class CredentialFile:
    """The content of one `cloud_credential.json`."""

    path: Path
    sections: Mapping[str, tuple[CredentialEntry, ...]]
    """By scheme."""
    warnings: tuple[str, ...]
    """About the file as a whole."""
    section_warnings: Mapping[str, tuple[str, ...]]
    """By scheme: they matter to a mount that uses the section."""

    def match(self, url: RepositoryUrl) -> CredentialEntry:
        """The entry whose longest key covers `url`, else the default. Raises ConfigError."""
        entries = self.sections.get(url.scheme, ())
        covering = [entry for entry in entries if entry.place is None or entry.place.covers(url)]
        if covering:
            found = max(covering, key=lambda entry: len(str(entry.place)) if entry.place else -1)
            if isinstance(found.credentials, StaticKeys) and not found.credentials.key_id:
                # An entry of Azure without an account is for the URL's.
                return replace(found, credentials=replace(found.credentials, key_id=url.account))
            return found
        keys = ", ".join(f'"{redact(entry.key)}"' for entry in entries) or "none"
        hint = 'add the URL or a default key ""; or set --profile or --anonymous, which replace this file'
        raise ConfigError(
            f'{self.path}: no key of section "{url.scheme}" covers {url}; keys there: {keys}',
            hint="\n  ".join([hint, *self.section_warnings.get(url.scheme, ())]),
        )


@dataclass(frozen=True, slots=True)
class DragonflyFile:
    """The content of a `dragonfly_config.json`, or the same from an endpoint plugin's file."""

    path: Path
    proxy: str
    """`http://host[:port]`; empty for none."""
    headers: Mapping[str, SecretStr]
    """For proxied requests only."""
    filter: tuple[str, ...]
    """Names of query parameters that are no part of a task's identity."""
    warnings: tuple[str, ...]


class Located(NamedTuple):
    """The place of a file, and how it was found."""

    path: Path | None
    """None for no file."""
    named: bool = False
    """True if the variable names it."""
    ignored: str = ""
    """Why a file at the default path does not count, in words."""


def locate(environ: Mapping[str, str], variable: str, default: Path) -> Located:
    """Find a file; an empty variable means no file. A default path must be trusted (`distrust`)."""
    named = environ.get(variable)
    if named is not None:
        return Located(Path(named).absolute() if named else None, bool(named))
    try:
        if not (default.exists() or default.is_symlink()):
            return Located(None)
    except PermissionError:  # a home directory that we may not read
        return Located(None)
    if reason := distrust(default):
        return Located(None, ignored=f"{default} is ignored: {reason}; set {variable} to use it nevertheless")
    return Located(default)


def read_credentials(path: Path) -> CredentialFile:
    """Parse and validate all sections. Raises ConfigError."""
    reader = JsonFile(path)
    root = reader.load()
    reader.warn_unknown(root, SCHEMES, "the file", what="section")
    sections: dict[str, tuple[CredentialEntry, ...]] = {}
    warnings: dict[str, tuple[str, ...]] = {}
    for section in filter(root.__contains__, SCHEMES):
        part = JsonFile(path)
        sections[section] = _entries(part, section, part.require_object(root[section], f'"{section}"'))
        warnings[section] = tuple(part.warnings)
    return CredentialFile(path, sections, tuple(reader.warnings), warnings)


def read_dragonfly(path: Path) -> DragonflyFile:
    """Parse and validate. Raises ConfigError. Without an address reads are direct, as the agent's are."""
    reader = JsonFile(path)
    root = reader.load()
    addresses: dict[str, str] = {}
    proxy = root.get("proxy", "")
    if isinstance(proxy, dict):
        reader.warn_unknown(proxy, ("addr",), '"proxy"')
        addresses["proxy.addr"] = reader.require_text(proxy.get("addr", ""), "proxy.addr")
    else:
        addresses["proxy"] = reader.require_text(proxy, '"proxy"')
    for key in ("proxy/addr", "addr"):
        addresses[key] = reader.require_text(root.get(key, ""), f'"{key}"')
    reader.warn_unknown(root, ("proxy", "proxy/addr", "addr", "header", "filter"), "the file")
    proxies = {key: proxy_address(reader, key, text) for key, text in addresses.items() if text}
    used, address = next(((key, found) for key, found in proxies.items() if found), ("", ""))
    if not address:
        reader.warn('gives no proxy address ({"proxy": "http://host:port"}), so nothing goes through Dragonfly')
    for key, other in proxies.items():
        if address and other != address:
            reader.warn(f'"{key}" gives another address than "{used}" and is ignored')
    return DragonflyFile(path, address, proxy_headers(reader, root), proxy_filter(reader, root), tuple(reader.warnings))


def _entries(reader: JsonFile, section: str, content: Mapping[str, object]) -> tuple[CredentialEntry, ...]:
    entries: dict[str, CredentialEntry] = {}
    for key, raw in content.items():
        where = f'{section}["{redact(key)}"]'
        credentials, region = _entry(reader, section, where, raw)
        try:
            place = RepositoryUrl.parse_prefix(key) if key else None
        except ConfigError:
            reader.warn(f"{where} is not a URL, so it covers nothing")
            continue
        if place and place.scheme != section:
            reader.warn(f"{where} is not a {section}:// URL, so it covers nothing")
            continue
        normal = str(place) if place else ""
        there = entries.get(normal)
        if there and (there.credentials, there.region) != (credentials, region):
            raise reader.error(
                f'{where} and "{redact(there.key)}" name the same place with different content', "keep one of them"
            )
        entries[normal] = CredentialEntry(key, place, credentials, region)
    return tuple(entries.values())


def _entry(reader: JsonFile, section: str, where: str, raw: object) -> tuple[Credentials, str]:
    """Credentials and region. Keys, else a profile, else the provider's chain; half a key pair counts
    as none, as in Triton."""
    if section == "gs":
        file = reader.require_text(raw, where, allowed="the path of a credentials file")
        return CredentialsFile(Path(file)) if file else ProviderChain(else_anonymous=True), ""
    known = ("account_str", "account_key") if section == "as" else _KEYS
    content = reader.require_object(raw, where)
    reader.warn_unknown(content, known, where)
    text = {key: reader.require_text(content.get(key, ""), f"{where}.{key}") for key in known}
    if section == "as":
        keys = StaticKeys(
            text["account_str"].lower(), SecretStr(text["account_key"]), given_in=f"{reader.path}: {where}"
        )
        return keys if keys.secret_key else ProviderChain(), ""
    if bool(text["key_id"]) != bool(text["secret_key"]):
        lacking = "secret_key" if text["key_id"] else "key_id"
        reader.warn(f"{where} has no {lacking}, so its other half is ignored")
    elif text["session_token"] and not text["key_id"]:
        reader.warn(f"{where} has a session_token without keys, which is ignored")
    elif text["key_id"]:
        token = SecretStr(text["session_token"]) if text["session_token"] else None
        given_in = f"{reader.path}: {where}"
        return StaticKeys(text["key_id"], SecretStr(text["secret_key"]), token, given_in), text["region"]
    return Profile(text["profile"]) if text["profile"] else ProviderChain(), text["region"]


def proxy_address(reader: JsonFile, key: str, text: str) -> str:
    """dfdaemon's address under `key`. Raises ConfigError."""
    try:
        return parse_proxy(text)
    except ValueError as error:
        raise reader.error(f'"{key}" {error}') from None


def proxy_headers(reader: JsonFile, root: Mapping[str, object]) -> dict[str, SecretStr]:
    """The headers under `header`, without those of HTTP or d7yfs itself. Raises ConfigError."""
    headers: dict[str, SecretStr] = {}
    forbidden = []
    for name, raw in reader.require_object(root.get("header", {}), '"header"').items():
        value = reader.require_text(raw, f'header "{name}"').strip()
        if not _HEADER_NAME.fullmatch(name):
            raise reader.error(f"header {name!r} is not a header name", "allowed: letters, digits and -")
        if not _HEADER_VALUE.fullmatch(value):
            raise reader.error(f'the value of header "{name}" cannot be sent', "allowed: printable ASCII on one line")
        if name.lower() in _FORBIDDEN_HEADERS or name.lower().startswith("if-"):
            forbidden.append(name)
        elif value:
            headers[name] = SecretStr(value)
    if forbidden:
        reader.warn(f"header {', '.join(forbidden)} is ignored: each request has its own")
    return headers


def proxy_filter(reader: JsonFile, root: Mapping[str, object]) -> tuple[str, ...]:
    """The names under `filter`. Raises ConfigError."""
    elements = root.get("filter", [])
    if not isinstance(elements, list):
        raise reader.error('"filter" has the wrong type', "allowed: a list of query parameter names")
    texts = [reader.require_text(element, f"filter[{index}]") for index, element in enumerate(elements)]
    names = [name.strip() for text in texts for name in re.split("[&,]", text)]
    # The names are sent in a header of their own.
    if not all(_HEADER_VALUE.fullmatch(name) for name in names):
        raise reader.error('"filter" holds a name that cannot be sent', "allowed: printable ASCII")
    return tuple(dict.fromkeys(name for name in names if name))
