"""The row of the contract suite for `s3://` on Ceph's RADOS Gateway; `make integration` runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from tests.contract.stores import S3OnSeaweedFS
from tests.servers.rgw import Rgw


class S3OnRgw(S3OnSeaweedFS):
    """The row of Ceph, with a reader that has no other permission."""

    cannot: ClassVar[Mapping[str, str]] = {}
    unstorable = frozenset()

    def __init__(self, server: Rgw) -> None:
        super().__init__(server)
        server.let_read(self.BUCKET)
