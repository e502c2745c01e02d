"""What `gs` asks of each of Cloud Storage's two APIs: the modules `json_api` and `xml_api` both are an `Api`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from d7yfs.objects import ObjectVersion
from d7yfs.origins.origin import Checksums
from d7yfs.origins.rest import Reply


@dataclass(frozen=True, slots=True)
class GsListing:
    """One page; `next_token` is empty on the last one."""

    objects: tuple[ObjectVersion, ...]
    prefixes: tuple[str, ...]
    next_token: str


class Api(Protocol):
    """Requests and the meaning of replies. Parsers raise ValueError and KeyError for what is not Cloud Storage's."""

    ENCODING_IS_LISTED: bool
    """Whether a version says with which Content-Encoding it is stored."""
    STAT_METHOD: str
    STAT_HEADERS: Mapping[str, str]

    def list_path(self, bucket: str) -> str:
        """Where a bucket is listed."""

    def list_query(self, prefix: str, delimiter: str, token: str, page_size: int) -> dict[str, str]:
        """Of one page."""

    def stat_path(self, bucket: str, key: str) -> str:
        """Where an object's metadata are. Raises ValueError for a key that is not Unicode."""

    def stat_query(self) -> dict[str, str]:
        """For `parse_stat` and `parse_checksums`."""

    def parse_list(self, reply: Reply) -> GsListing:
        """Of a successful reply."""

    def parse_stat(self, reply: Reply, key: str) -> ObjectVersion:
        """Of a successful reply about `key`."""

    def parse_checksums(self, reply: Reply) -> tuple[str, Checksums]:
        """The generation that the reply is about, and what was recorded of it; a composite object has no MD5."""

    def error_code(self, reply: Reply) -> str:
        """The code of a refusal; empty without one."""
