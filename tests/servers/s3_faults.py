"""An S3 store whose replies a test can spoil: `ScriptedServer` with HEAD and ListObjectsV2, enough
for a mount.

It accepts any signature, and requests without one. Keys include the bucket, as in `ScriptedServer`;
a bucket exists while it has a key. A listing is one page. A script names the object's key, or the
bucket for its listings.
"""

from __future__ import annotations

import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import replace
from email.utils import formatdate
from urllib.parse import parse_qs, quote, urlsplit
from xml.sax.saxutils import escape

from d7yfs.checksum import crc32c, crc64nvme
from tests.servers.http11 import Answer, Request
from tests.servers.scripted import ScriptedServer

_NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"


class S3Faults(ScriptedServer):
    """A fake S3 store; `archive` puts an object into an archive storage class."""

    def __init__(
        self, objects: Mapping[str, bytes] | None = None, *, ssl_context: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(objects, ssl_context=ssl_context)
        self._storage_classes: dict[str, str] = {}
        self._etags: dict[str, tuple[bytes, str]] = {}
        self._checksums: dict[str, dict[str, str]] = {}

    def etag(self, key: str) -> str:
        """The ETag, computed once per body, because each listing shows them all."""
        body, etag = self._etags.get(key, (b"", ""))
        if not etag or body is not self.objects[key]:
            etag = super().etag(key)
            self._etags[key] = (self.objects[key], etag)
        return etag

    def archive(self, key: str, storage_class: str = "GLACIER") -> None:
        self._storage_classes[key] = storage_class

    def record_crc32c(self, key: str) -> None:
        """Record a CRC32C, as an upload with one does."""
        self._record(key, "crc32c", crc32c(self.objects[key]).to_bytes(4, "big"))

    def record_crc64nvme(self, key: str) -> None:
        """Record a CRC64NVME, as AWS does for uploads without a checksum."""
        self._record(key, "crc64nvme", crc64nvme(self.objects[key]).to_bytes(8, "big"))

    def _record(self, key: str, name: str, value: bytes) -> None:
        recorded = {f"x-amz-checksum-{name}": b64encode(value).decode(), "x-amz-checksum-type": "FULL_OBJECT"}
        self._checksums.setdefault(key, {}).update(recorded)

    def delete(self, key: str) -> None:
        del self.objects[key]

    def data_requests(self, key: str) -> list[Request]:
        return [request for request in self.requests_for(key) if request.method == "GET"]

    async def answer(self, request: Request) -> Answer:
        query = parse_qs(urlsplit(request.target).query, keep_blank_values=True)
        if query.get("list-type") == ["2"]:
            return self._listing(request.key.strip("/"), query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
        if request.method == "HEAD":
            whole = await super().answer(replace(request, method="GET"))
            assert isinstance(whole.body, bytes)
            headers = {**whole.headers, "Content-Length": str(len(whole.body))}
            if request.headers.get("x-amz-checksum-mode") == "ENABLED":
                headers |= self._checksums.get(request.key, {})
            return Answer(whole.status, headers)
        return await super().answer(request)

    def _listing(self, bucket: str, prefix: str, delimiter: str) -> Answer:
        if not any(key.startswith(f"{bucket}/") for key in self.objects):
            return Answer(404, {"Content-Type": "application/xml"}, b"<Error><Code>NoSuchBucket</Code></Error>")
        entries = []
        common = []
        for key in sorted(self.objects, key=str.encode):
            name = key.removeprefix(f"{bucket}/")
            if name == key or not name.startswith(prefix):
                continue
            head, separator, _ = name[len(prefix) :].partition(delimiter) if delimiter else (name, "", "")
            if separator:
                if prefix + head + delimiter not in common:
                    common.append(prefix + head + delimiter)
                continue
            entries.append(
                f"<Contents><Key>{quote(name)}</Key><LastModified>2023-11-14T22:13:20.000Z</LastModified>"
                f"<ETag>{escape(self.etag(key))}</ETag><Size>{len(self.objects[key])}</Size>"
                f"<StorageClass>{self._storage_classes.get(key, 'STANDARD')}</StorageClass></Contents>"
            )
        prefixes = "".join(f"<CommonPrefixes><Prefix>{quote(each)}</Prefix></CommonPrefixes>" for each in common)
        body = (
            f"<?xml version='1.0' encoding='UTF-8'?><ListBucketResult xmlns='{_NAMESPACE}'><Name>{bucket}</Name>"
            f"<Prefix>{quote(prefix)}</Prefix><EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>"
            f"<KeyCount>{len(entries) + len(common)}</KeyCount>{''.join(entries)}{prefixes}</ListBucketResult>"
        )
        return Answer(200, {"Content-Type": "application/xml", "Date": formatdate(usegmt=True)}, body.encode())
