"""A place in a store, and its spelling as a URL. `d7yfs cache ls` prints it; `drop` and `verify`
read it back as the same object.

Owns which store a URL names, so that origins, the cache and the command line agree. A provider is
one store, whatever its endpoint (`oss://https://oss-cn-hangzhou.aliyuncs.com/b` is `oss://b`), and
an Azure account is its address.

A place has two spellings:

    as://account/container/key                                   the grammar of `url`, where it can express the place
    s3+encoded://ENDPOINT/bucket/key                             everything else, each part percent-encoded in UTF-8
    as+encoded://ENDPOINT/account/container/key

`ENDPOINT` is `StoreIdentity.endpoint`, a URL or the provider's own name. The encoded spelling is
for keys with control characters, lone surrogates, slashes at an end or `.` segments, and for
endpoints with a path. Slashes around an encoded key are dropped as in the other spelling; a key's
own are written `%2F`. It names cached objects, and cannot be mounted.

Invariant: `Place.parse(str(place)) == place`. Pure. Called by origins, the cache, `filesystem` and
the command line.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self
from urllib.parse import quote, unquote_to_bytes, urlsplit

from d7yfs.config.url import AZURE_SUFFIX, SCHEMES, RepositoryUrl, redact
from d7yfs.errors import ConfigError
from d7yfs.objects import StoreIdentity

GS_ENDPOINT = "https://storage.googleapis.com"
OSS_HOST = re.compile(
    r"(?:s3\.)?oss-(?P<region>[a-z0-9-]+?)(?P<internal>-internal)?\.(?P<domain>[a-z0-9-]+(?:\.[a-z0-9-]+)+)"
)
"""The host of one of OSS's own endpoints."""
OBS_HOST = re.compile(
    r"obs(?:\.(?P<region>[a-z0-9]+(?:-[a-z0-9]+)+)|(?=\.myhuaweicloud\.com))\.(?P<domain>[a-z0-9-]+(?:\.[a-z0-9-]+)+)"
)
"""The host of an endpoint of OBS: a region's, or the global one, which redirects to a region's."""
OSS_DOMAIN = "aliyuncs.com"
OBS_DOMAIN = "myhuaweicloud.com"

_OWN_NAMES = {"s3": "aws", "gs": "google", "oss": OSS_DOMAIN, "obs": OBS_DOMAIN}
"""`StoreIdentity.endpoint` of the provider's own store."""
_OWN_HOSTS = {"oss": OSS_HOST, "obs": OBS_HOST}
_ENCODED = "+encoded"


@dataclass(frozen=True, slots=True)
class Place:
    """An object with everything below it; the whole store when `key` is empty."""

    store: StoreIdentity
    key: str = ""
    """The object's key, or a prefix that ends at a path segment's end."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read either spelling. Raises ConfigError, which repeats no credentials."""
        named, _, rest = text.partition("://")
        scheme = named.lower().removesuffix(_ENCODED)
        if scheme != named.lower() and scheme in SCHEMES:
            return cls(*_decoded(text, scheme, rest))
        url = RepositoryUrl.parse(text)
        return cls(store_of(url), url.prefix)

    def covers(self, store: StoreIdentity, key: str) -> bool:
        """True if the object `key` of `store` is this place or lies below it."""
        return store == self.store and (not self.key or key == self.key or key.startswith(f"{self.key}/"))

    def __str__(self) -> str:
        plain = str(_plain(self))
        try:
            # A name must be one line, free of a terminal's control characters, and survive being
            # copied.
            if plain.isprintable() and plain == plain.strip() and self.parse(plain) == self:
                return plain
        except ConfigError:
            pass
        return self._encoded()

    def _encoded(self) -> str:
        bare = self.key.strip("/")
        before, _, after = self.key.partition(bare) if bare else (self.key, "", "")
        key = before.replace("/", "%2F") + _quoted(bare, safe="/") + after.replace("/", "%2F")
        store = self.store
        parts = [_quoted(part) for part in (store.endpoint, store.account, store.bucket) if part]
        return f"{store.scheme}{_ENCODED}://" + "/".join([*parts, key] if key else parts)


def store_of(url: RepositoryUrl) -> StoreIdentity:
    """The store that `url` alone names; a mount's settings may give another endpoint."""
    if url.scheme == "as":
        return StoreIdentity("as", azure_account_url(url.account, url.endpoint_url), url.bucket, url.account)
    return StoreIdentity(url.scheme, endpoint_name(url.scheme, url.endpoint_url), url.bucket)


def endpoint_name(scheme: str, endpoint_url: str) -> str:
    """`StoreIdentity.endpoint` of an endpoint's normal URL, empty for its own; not for Azure."""
    if not endpoint_url or (scheme == "gs" and endpoint_url == GS_ENDPOINT):
        return _OWN_NAMES[scheme]
    return provider_domain(scheme, endpoint_url) or endpoint_url


def provider_domain(scheme: str, endpoint_url: str) -> str:
    """The domain of one of OSS's (`aliyuncs.com`) or OBS's own endpoints; else empty."""
    hosts = _OWN_HOSTS.get(scheme)
    named = hosts.fullmatch(urlsplit(endpoint_url).hostname or "") if hosts else None
    return named["domain"] if named else ""


def azure_account_url(account: str, endpoint_url: str, suffix: str = AZURE_SUFFIX) -> str:
    """The URL of the account's containers: its own host, or the endpoint with its name."""
    if not endpoint_url:
        return f"https://{account}.blob.{suffix}"
    parts = urlsplit(endpoint_url)
    if parts.netloc.startswith(f"{account}.") or parts.path.endswith(f"/{account}"):
        return endpoint_url
    return f"{endpoint_url}/{account}"


def _plain(place: Place) -> RepositoryUrl:
    """The place in the other grammar; another place where that cannot express this one."""
    store = place.store
    endpoint_url = store.endpoint if "://" in store.endpoint else ""
    if store.scheme == "as":
        own = store.endpoint == azure_account_url(store.account, "")
        endpoint_url = "" if own else endpoint_url.removesuffix(f"/{store.account}")
    return RepositoryUrl(store.scheme, endpoint_url, store.bucket, place.key, store.account)


def _decoded(text: str, scheme: str, rest: str) -> tuple[StoreIdentity, str]:
    named = 3 if scheme == "as" else 2
    parts = rest.split("/", named)
    try:
        decoded = [unquote_to_bytes(part).decode(errors="surrogatepass") for part in parts[:named]]
        key = unquote_to_bytes("".join(parts[named:]).strip("/")).decode(errors="surrogatepass")
    except UnicodeError:
        raise _refused(text, "is not UTF-8 once it is decoded") from None
    if len(decoded) < named or not all(decoded):
        raise _refused(text, f"names no {'account and container' if scheme == 'as' else 'bucket'} after its endpoint")
    endpoint, *account, bucket = decoded
    return StoreIdentity(scheme, endpoint, bucket, *account), key


def _quoted(text: str, safe: str = "") -> str:
    return quote(text.encode(errors="surrogatepass"), safe=safe + ":")


def _refused(text: str, what: str) -> ConfigError:
    return ConfigError(f"URL {redact(text)!r}: {what}", hint="copy it from the output of d7yfs cache ls")
