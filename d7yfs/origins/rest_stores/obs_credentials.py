"""The sources of `obs://`'s access keys. A `renewal.Renewal` decides when they are read again.

The first source of the chain that has keys supplies all of them:

    environment    OBS_ACCESS_KEY_ID, OBS_SECRET_ACCESS_KEY and OBS_SECURITY_TOKEN, as OBS's SDKs have them;
                   HUAWEICLOUD_SDK_AK, _SK and _SECURITY_TOKEN, as Huawei Cloud's other SDKs do; HW_ACCESS_KEY, HW_SECRET_KEY and
                   HW_SECURITY_TOKEN, as its Terraform provider does
    agency         temporary keys of the agency that the ECS instance has, from its metadata
                   (https://support.huaweicloud.com/intl/en-us/usermanual-ecs/ecs_03_0166.html, "Security Key")
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import trio

from d7yfs.bounds.values import read_json, read_time
from d7yfs.errors import BadReply, OriginUnavailable
from d7yfs.origins.access_keys import AccessKeys, from_environment
from d7yfs.origins.places import describe_variable
from d7yfs.origins.rest import Rest

METADATA_URL = "http://169.254.169.254"
_METADATA_TIMEOUT_S = 3.0
"""The metadata service is on the same machine; elsewhere nothing answers."""
_ENVIRONMENTS = (
    ("OBS_ACCESS_KEY_ID", "OBS_SECRET_ACCESS_KEY", "OBS_SECURITY_TOKEN"),
    ("HUAWEICLOUD_SDK_AK", "HUAWEICLOUD_SDK_SK", "HUAWEICLOUD_SDK_SECURITY_TOKEN"),
    ("HW_ACCESS_KEY", "HW_SECRET_KEY", "HW_SECURITY_TOKEN"),
)
GIVE_CREDENTIALS = "set OBS_ACCESS_KEY_ID and OBS_SECRET_ACCESS_KEY, give the instance an agency, or read a public bucket with --anonymous"


@dataclass(frozen=True)
class ObsCredentials:
    """A `KeyFinder` in the environment and at `metadata_url`, the instance's metadata service."""

    subject: str
    environ: Mapping[str, str]
    metadata_url: str
    clock: Callable[[], float]

    async def find(self, _profile: str, _held: AccessKeys | None) -> AccessKeys | None:
        """The environment's keys, else the agency's.

        Raises BadReply, and OriginUnavailable while the metadata service fails.
        """
        return from_environment(self.environ, _ENVIRONMENTS) or await self._from_agency()

    def places(self) -> list[str]:
        """See `KeyFinder`."""
        found = [describe_variable(each[0], self.environ) for each in _ENVIRONMENTS]
        return [*found, "instance metadata: no answer, or no agency"]

    async def _from_agency(self) -> AccessKeys | None:
        """The agency's keys; None without a metadata service or without an agency."""
        rest = Rest(clock=self.clock)
        subject = f"{self.subject}: instance metadata"
        try:
            with trio.move_on_after(_METADATA_TIMEOUT_S) as limit:
                url = f"{self.metadata_url}/openstack/latest/securitykey"
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
            credential = read_json(reply.body)["credential"]
            expires_at = read_time(credential["expires_at"]).timestamp()
            names = ("access", "secret", "securitytoken")
            key_id, secret, token = (str(credential[name]) for name in names)
        except (ValueError, KeyError, TypeError):
            raise BadReply(f"{subject}: is not what ECS gives") from None
        return AccessKeys(key_id, secret, token, expires_at=expires_at or math.inf, source="the instance's agency")
