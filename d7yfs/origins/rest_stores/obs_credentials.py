"""Where `obs://` finds its access keys. Called by `obs` through a `renewal.Renewal`, which decides when to look again.

Of the chain the first that has keys counts, whole:

    environment    OBS_ACCESS_KEY_ID, OBS_SECRET_ACCESS_KEY and OBS_SECURITY_TOKEN, as OBS's SDKs have them;
                   HUAWEICLOUD_SDK_AK, _SK and _SECURITY_TOKEN, as Huawei Cloud's other SDKs do; HW_ACCESS_KEY, HW_SECRET_KEY and
                   HW_SECURITY_TOKEN, as its Terraform provider does
    agency         temporary keys of the agency that the ECS instance has, from its metadata
                   (https://support.huaweicloud.com/intl/en-us/usermanual-ecs/ecs_03_0166.html, "Security Key")
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Mapping
from datetime import datetime

import trio

from d7yfs.config.schema import Anonymous, Credentials, ProviderChain, StaticKeys
from d7yfs.errors import AccessDenied, BadReply, ConfigError, OriginUnavailable
from d7yfs.origins.rest import Rest
from d7yfs.origins.rest_stores.access_keys import AccessKeys, from_environment, given

METADATA_URL = "http://169.254.169.254"
_METADATA_TIMEOUT_S = 3.0
"""The metadata service is on the same machine; anywhere else nobody answers."""
_ENVIRONMENTS = (
    ("OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY", "OBS_SECURITY_TOKEN"),
    ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN"),
    ("HW_ACCESS_KEY", "HW_SECRET_KEY", "HW_SECURITY_TOKEN"),
)
_GIVE_CREDENTIALS = "set OBS_ACCESS_KEY_ID and OBS_SECRET_ACCESS_KEY, give the instance an agency, or read a public bucket with --anonymous"


class ObsCredentials:
    """Loads the keys that `source` means. `metadata_url` is the address of the instance's metadata service."""

    def __init__(
        self,
        source: Credentials,
        *,
        subject: str,
        environ: Mapping[str, str] = os.environ,
        metadata_url: str = METADATA_URL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Raises ConfigError for a kind of credentials that OBS has not."""
        if not isinstance(source, Anonymous | StaticKeys | ProviderChain):
            raise ConfigError(f"{subject}: credentials of that kind ({source.describe()}) are not OBS's")
        self._source = source
        self._subject = subject
        self._environ = environ
        self._metadata_url = metadata_url
        self._clock = clock

    async def load(self, _held: AccessKeys | None = None) -> AccessKeys | None:
        """The keys as they are now; None for anonymous. Raises AccessDenied, and OriginUnavailable while the metadata service fails."""
        match self._source:
            case StaticKeys() as keys:
                return given(keys)
            case ProviderChain(else_anonymous=else_anonymous):
                found = from_environment(self._environ, _ENVIRONMENTS) or await self._from_agency()
                if found is None and not else_anonymous:
                    raise AccessDenied(f"{self._subject}: there are no credentials", hint=_GIVE_CREDENTIALS)
                return found
            case _:
                return None

    async def _from_agency(self) -> AccessKeys | None:
        """None where there is no metadata service, or the instance has no agency."""
        rest = Rest(context=False, clock=self._clock)  # plain http: no certificates to load
        subject = f"{self._subject}: instance metadata"
        try:
            with trio.move_on_after(_METADATA_TIMEOUT_S) as limit:
                url = f"{self._metadata_url}/openstack/latest/securitykey"
                reply = await rest.send("GET", url, {}, subject=subject)
        except (BadReply, OriginUnavailable):
            return None
        finally:
            await rest.aclose()
        if limit.cancelled_caught or 400 <= reply.status < 500:
            return None
        if reply.status != 200:
            raise OriginUnavailable(f"{subject} says {reply.status}")
        try:
            credential = json.loads(reply.body)["credential"]
            expires_at = datetime.fromisoformat(credential["expires_at"]).timestamp()
            names = ("access", "secret", "securitytoken")
            key_id, secret, token = (str(credential[name]) for name in names)
        except (ValueError, KeyError, TypeError):
            raise BadReply(f"{subject}: is not what ECS gives") from None
        return AccessKeys(key_id, secret, token, expires_at=expires_at or math.inf, source="the instance's agency")
