"""Writes to Alibaba Cloud OSS.

`x-oss-forbid-overwrite` (https://www.alibabacloud.com/help/en/oss/developer-reference/putobject) is its
only condition: that nothing is there. A bucket with versioning ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping

from d7yfs.origins.rest_stores.oss import OssOrigin
from d7yfs.publish.stores.bucket import WritableBucket


class WritableOss(WritableBucket, OssOrigin):
    """An OSS bucket as a `store_writer.WritableStore`."""

    write_permission = "oss:PutObject"

    def condition(self, before: str) -> Mapping[str, str]:
        return {} if before else {"x-oss-forbid-overwrite": "true"}
