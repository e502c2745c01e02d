"""Repository URLs: every spelling that Triton, the Dragonfly agent and users have, and one normal
form for each repository.

Owns the grammar. Two URLs name the same repository exactly when their `RepositoryUrl`s are equal.
The origin registry has a module for each scheme.

    s3://bucket[/prefix]                      the provider's own endpoint
    s3://host:port/bucket[/prefix]            an S3-compatible store, plain http (Triton's form): the port tells it from a bucket
    s3://http://host[:port]/bucket[/prefix]   the same with the scheme written out
    s3://https://host[:port]/bucket[/prefix]  over TLS

s3a:// and s3n:// (Hadoop's) are s3://, and gcs:// is gs://. The same three forms exist with gs://,
oss:// and obs://; oss://bucket.endpoint/prefix is the OSS tools' spelling. On Azure an account comes
before the container, and decides the address:

    as://account/container[/prefix]                               Triton's form; also az://
    as://account.blob.core.windows.net/container[/prefix]         another suffix than this becomes the endpoint
    abfs://container@account.dfs.core.windows.net[/prefix]        Hadoop's; also abfss://, wasb[s]://
    as://http://host:port/account/container[/prefix]              an emulator, or a gateway with the account in the path

Keys are opaque: nothing is percent-decoded, case and an inner `//` are kept (on S3, `a//b` and
`a/b` are two keys). Slashes around the prefix are dropped. Segments `.` and `..` are refused,
because HTTP software on the way may resolve them and so reach another bucket. Credentials in a URL
and signatures in its query are refused, and no message repeats them: a URL is in the mount table,
the log and the list of processes.

Cached objects have another spelling too, for keys that these forms cannot write: `place`.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from typing import Self

from d7yfs.errors import ConfigError

SCHEMES = ("s3", "gs", "as", "oss", "obs")
"""Schemes that parse, and that the origin registry can open."""

_DEFAULT_PORTS = {"http": 80, "https": 443}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_HOST_PORT = re.compile(r"(?P<host>\[[^\]/]*\]|[^:/\[\]]*)(?P<port>:.*)?", re.DOTALL)
_HOST = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?")
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_SPELLINGS = {
    **dict.fromkeys(("s3a", "s3n"), "s3"),
    "gcs": "gs",
    **dict.fromkeys(("az", "abfs", "abfss", "wasb", "wasbs"), "as"),
}
_ELSEWHERE = {
    "hf": "download the model once (hf download ORG/NAME --local-dir DIR), copy it to a bucket, and mount that",
    "modelscope": "download the model once (modelscope download), copy it to a bucket, and mount that",
}
"""The way from a hub, which has no buckets, to a mount."""
AZURE_SUFFIX = "core.windows.net"
_AZURE_HOST = re.compile(r"(?P<account>[a-z0-9]{3,24})\.(?:blob|dfs)\.(?P<suffix>[a-z0-9.-]+)")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_OSS_HOST = re.compile(r"(?P<bucket>[a-z0-9-]+)\.(?P<endpoint>[a-z0-9-]+(?:\.[a-z0-9-]+)+)")
_SIGNATURE = re.compile(
    r"[?&;](?:sig|(?:x-(?:amz|goog|oss|obs)-)?(?:signature|credential|security-token)|(?:access_?)?token|"
    r"(?:aws|oss|goog)?access(?:key)?id|sv)=",
    re.IGNORECASE,
)
"""A parameter of a presigned URL or a shared access signature."""

_FORMS = "s3://bucket/prefix, s3://host:port/bucket/prefix or s3://https://host/bucket/prefix"
_AZURE_FORMS = "as://account/container/prefix"


@dataclass(frozen=True, slots=True)
class RepositoryUrl:
    """The place of a model repository; equal for every spelling of it. `str` is the normal form."""

    scheme: str
    """One of SCHEMES."""
    endpoint_url: str
    """`http[s]://host[:port]` without a default port; empty for the provider's own endpoint."""
    bucket: str
    prefix: str
    """Without leading or trailing slash; empty for the whole bucket."""
    account: str = ""
    """The storage account of an Azure container (`bucket`); empty for the other schemes."""
    written: str = field(default="", compare=False)
    """The spelling that was parsed; empty for a URL that was put together."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read one URL. Raises ConfigError, which never repeats credentials in the URL."""
        url = cls.parse_prefix(text)
        if url.scheme == "as" and not (url.account and url.bucket):
            raise _error(text, f"names no {'container' if url.account else 'account'}", f"write {_AZURE_FORMS}")
        if not url.bucket:
            raise _error(text, "names no bucket", f"write {_FORMS}")
        return url

    @classmethod
    def parse_prefix(cls, text: str) -> Self:
        """Like `parse`, but the bucket may be absent (`s3://`, `s3://host:port`): a key of a
        credential file covers every URL that begins with it. Raises ConfigError."""
        scheme, rest = _split_scheme(text)
        if any(ord(char) < 0x20 or ord(char) == 0x7F or 0xD800 <= ord(char) < 0xE000 for char in text):
            raise _error(text, "holds a control character or is not UTF-8", f"write {_FORMS}")
        if _SIGNATURE.search(text):
            raise _error(
                text,
                "has a signature or a token in its query",
                "a mount signs its requests itself: remove the query, and see the credentials in docs/clouds.md; every "
                "user of this host may have seen it in the list of processes",
            )
        account = ""
        if scheme == "as":
            endpoint_url, account, path = _split_account(text, rest)
        else:
            endpoint_url, path = _split_endpoint(text, rest)
        bucket, _, prefix = path.partition("/")
        if scheme == "oss" and not endpoint_url and (named := _OSS_HOST.fullmatch(bucket)):
            endpoint_url, bucket = f"https://{named['endpoint']}", named["bucket"]
        if bucket and not _BUCKET.fullmatch(bucket):
            raise _error(
                text, f"{redact(bucket)!r} is not a bucket name", "a bucket name has letters, digits, '.', '-' and '_'"
            )
        if not {".", ".."}.isdisjoint(prefix.split("/")):
            raise _error(text, "has a '.' or '..' segment in its prefix", "write the prefix as it is in the keys")
        if not bucket and prefix.strip("/"):
            raise _error(text, "names no bucket before its prefix", f"write {_FORMS}")
        return cls(scheme, endpoint_url, bucket, prefix.strip("/"), account, text)

    def covers(self, other: RepositoryUrl) -> bool:
        """True if `other` is this place or lies below it. The prefix must end at a path boundary:
        `s3://b/mo` does not cover `s3://b/models` (stricter than Triton, which compares
        characters)."""
        if self.scheme != other.scheme:
            return False
        if self.account and self.account != other.account:
            return False
        if not self.bucket:
            return self.endpoint_url in ("", other.endpoint_url)
        if (self.endpoint_url, self.bucket) != (other.endpoint_url, other.bucket):
            return False
        return not self.prefix or f"{other.prefix}/".startswith(f"{self.prefix}/")

    def __str__(self) -> str:
        return f"{self.scheme}://" + "/".join(
            part for part in (self.endpoint_url, self.account, self.bucket, self.prefix) if part
        )


def normal_endpoint(text: str) -> str:
    """The normal form of `http[s]://host[:port][/path]`: host in lower case, no default port, no
    slash at the end.

    Raises a ValueError whose message completes "… is refused: it" and never repeats the text, which
    may hold a password.
    """
    scheme, separator, rest = text.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _DEFAULT_PORTS:
        raise ValueError("must begin with http:// or https://")
    if "@" in rest:
        raise ValueError("holds credentials, which do not belong in a URL")
    if "?" in rest or "#" in rest:
        raise ValueError("has a query or fragment")
    authority, _, path = rest.partition("/")
    suffix = "/" + path.strip("/") if path.strip("/") else ""
    return f"{scheme}://{_host_port(authority, _DEFAULT_PORTS[scheme])}{suffix}"


def redact(text: str) -> str:
    """`text` without the parts before an `@` or after a `?`, where people put credentials."""
    shown = re.sub(r"\A(\w+://)?.*@", r"\1…@", text, flags=re.DOTALL)
    head, question, _ = shown.partition("?")
    return f"{head}?…" if question else head


def _split_scheme(text: str) -> tuple[str, str]:
    match = _SCHEME.match(text)
    mountable = ", ".join(f"{scheme}://" for scheme in SCHEMES)
    if not match:
        raise _error(text, f"has no scheme; supported: {mountable}", f"write {_FORMS}")
    scheme = _SPELLINGS.get(match[1].lower(), match[1].lower())
    if scheme in _DEFAULT_PORTS:
        raise _error(
            text,
            f"scheme {scheme}:// alone is not supported; supported: {mountable}",
            f"write s3://{scheme}://host/bucket",
        )
    if scheme not in SCHEMES:
        hint = _ELSEWHERE.get(scheme, f"write {_FORMS}")
        raise _error(text, f"scheme {scheme}:// is not supported; supported: {mountable}", hint)
    return scheme, text[match.end() :]


def _split_endpoint(text: str, rest: str) -> tuple[str, str]:
    """Endpoint in normal form (empty for none), and the path after it."""
    inner = _SCHEME.match(rest)
    if inner and inner[1].lower() not in _DEFAULT_PORTS:
        raise _error(
            text, f"endpoint scheme {inner[1].lower()}:// is not supported", "an endpoint is http:// or https://"
        )
    authority, _, path = rest[inner.end() if inner else 0 :].partition("/")
    if "@" in authority:
        raise _error(text, "holds credentials", "use --profile, the environment or a credential file instead")
    if not inner and ":" not in authority and not authority.startswith("["):
        return "", rest
    try:
        endpoint = normal_endpoint(f"{inner[1] if inner else 'http'}://{authority}")
    except ValueError as error:
        raise _error(text, f"its endpoint {error}", f"write {_FORMS}") from None
    return endpoint, path.lstrip("/")


def _split_account(text: str, rest: str) -> tuple[str, str, str]:
    """Endpoint (empty for Azure's public cloud), account and `container/prefix` of an Azure URL."""
    authority, _, path = rest.partition("/")
    container, at, host = authority.partition("@")
    if at:
        # Hadoop's form has the container in the place of the user; anything else before an @ may be
        # a password.
        named = _AZURE_HOST.fullmatch(host.lower())
        if not named or not _BUCKET.fullmatch(container):
            raise _error(text, "holds credentials", f"a URL must not have them; write {_AZURE_FORMS}")
        return _azure_endpoint(named), named["account"], f"{container}/{path}"
    if named := _AZURE_HOST.fullmatch(authority.lower()):
        return _azure_endpoint(named), named["account"], path.lstrip("/")
    endpoint_url, path = _split_endpoint(text, rest)
    account, _, path = path.partition("/")
    account = account.lower()
    if account and not _ACCOUNT.fullmatch(account):
        hint = f"an account has 3 to 24 letters and digits; write {_AZURE_FORMS}"
        raise _error(text, f"{account!r} is not a storage account", hint)
    return endpoint_url, account, path.lstrip("/")


def _azure_endpoint(named: re.Match[str]) -> str:
    suffix = named["suffix"]
    return "" if suffix == AZURE_SUFFIX else f"https://{named['account']}.blob.{suffix}"


def _host_port(authority: str, default_port: int) -> str:
    match = _HOST_PORT.fullmatch(authority)
    if not match:
        raise ValueError("needs host[:port], an IPv6 address in brackets")
    host, port = match["host"].lower(), match["port"]
    if host.startswith("["):
        try:
            host = f"[{ipaddress.IPv6Address(host[1:-1]).compressed}]"
        except ValueError:
            raise ValueError("has no valid IPv6 address between its brackets") from None
        if "%" in host:
            raise ValueError("has an IPv6 zone, which is not supported")
    elif not _HOST.fullmatch(host):
        raise ValueError("has no valid host name (ASCII letters, digits, '.', '-', '_')")
    if port is None:
        return host
    if not re.fullmatch(r":[0-9]{1,5}", port) or not 0 < int(port[1:]) < 65536:
        raise ValueError("needs a port from 1 to 65535 after its ':'")
    return host if int(port[1:]) == default_port else f"{host}:{int(port[1:])}"


def _error(text: str, what: str, hint: str) -> ConfigError:
    return ConfigError(f"repository URL {redact(text)!r}: {what}", hint=hint)
