"""Writes to Huawei Cloud OBS, whose PUT has no condition.

https://support.huaweicloud.com/intl/en-us/api-obs/obs_04_0080.html.
"""

from __future__ import annotations

from collections.abc import Mapping

from d7yfs.origins.rest_stores.obs import ObsOrigin
from d7yfs.publish.stores.bucket import WritableBucket


class WritableObs(WritableBucket, ObsOrigin):
    """An OBS bucket as a `store_writer.WritableStore`."""

    write_permission = "obs:object:PutObject"

    def condition(self, before: str) -> Mapping[str, str]:  # noqa: ARG002 - there is none
        return {}
