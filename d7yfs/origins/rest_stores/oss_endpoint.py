"""Which address an `oss://` bucket has, and which region its signatures name. Pure but for the environment it is given; called by `oss`.

Endpoints: https://www.alibabacloud.com/help/en/oss/user-guide/regions-and-endpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

from d7yfs.config.place import OSS_DOMAIN, OSS_HOST
from d7yfs.config.url import normal_endpoint
from d7yfs.errors import ConfigError

_HINT = 'set region = "cn-hangzhou" or the like (OSS_REGION), or endpoint_url (OSS_ENDPOINT)'


def endpoint(
    subject: str,
    *,
    configured: str,
    region: str,
    domain: str,
    internal: bool,
    environ: Mapping[str, str],
) -> str:
    """The configured endpoint, else the region's public or internal one, else what OSS_ENDPOINT or OSS_REGION name.

    `domain` is empty for the public cloud's. Raises ConfigError where nothing says it.
    """
    if configured:
        return configured
    if not region and (named := environ.get("OSS_ENDPOINT", "")):
        try:
            return normal_endpoint(named if "://" in named else f"https://{named}")
        except ValueError as error:
            raise ConfigError(f"{subject}: OSS_ENDPOINT {error}", hint=_HINT) from None
    region = region or plain_region(environ.get("OSS_REGION", ""))
    if not region:
        raise ConfigError(f"{subject}: in which region is the bucket?", hint=_HINT)
    return f"https://oss-{region}{'-internal' if internal else ''}.{domain or OSS_DOMAIN}"


def plain_region(text: str) -> str:
    """`oss-cn-hangzhou` and `cn-hangzhou` are both in use for one region."""
    return text.removeprefix("oss-")


def region_of(endpoint_url: str) -> str:
    """The region that an endpoint of OSS's own names; empty for another and for the accelerating one."""
    named = OSS_HOST.fullmatch(urlsplit(endpoint_url).hostname or "")
    return "" if named is None or named["region"].startswith("accelerate") else named["region"]
