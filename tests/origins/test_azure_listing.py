"""List Blobs replies as the documentation shows them, and documents that are none."""

from __future__ import annotations

from xml.sax.saxutils import escape

import pytest

from d7yfs.objects import ListingPage, ObjectVersion
from d7yfs.origins.azure.listing import is_directory, parse
from d7yfs.origins.xml_listing import seconds_ns

MODIFIED = "Sat, 21 Nov 2026 10:55:00 GMT"
MTIME_NS = 1_795_258_500_000_000_000


def blob(name: str, *properties: str, metadata: str = "", size: str = "3", encoded: bool = False) -> str:
    attribute = ' Encoded="true"' if encoded else ""
    return (
        f"<Blob><Name{attribute}>{escape(name)}</Name><Properties><Creation-Time>{MODIFIED}</Creation-Time>"
        f"<Last-Modified>{MODIFIED}</Last-Modified><Etag>0x8DE28A</Etag><Content-Length>{size}</Content-Length>"
        f"<Content-Type>application/octet-stream</Content-Type><Content-Encoding/><BlobType>BlockBlob</BlobType>"
        f"{''.join(properties)}</Properties><Metadata>{metadata}</Metadata><OrMetadata/></Blob>"
    )


def page(*entries: str, next_marker: str = "") -> bytes:
    return (
        '\ufeff<?xml version="1.0" encoding="utf-8"?><EnumerationResults ServiceEndpoint="https://a.blob.core.windows.net/"'
        f' ContainerName="models"><Prefix>a/</Prefix><Delimiter>/</Delimiter><Blobs>{"".join(entries)}</Blobs>'
        f"<NextMarker>{next_marker}</NextMarker></EnumerationResults>"
    ).encode()


def parsed(body: bytes) -> ListingPage:
    return parse(body, 0)


def test_entry() -> None:
    expected = ObjectVersion("a/model.onnx", 3, '"0x8DE28A"', MTIME_NS)
    assert parsed(page(blob("a/model.onnx"))) == ListingPage((expected,), (), "", 0)


def test_empty_page_with_more_to_come() -> None:
    assert parsed(page(next_marker="2!76!x--")) == ListingPage((), (), "2!76!x--", 0)


def test_prefixes() -> None:
    found = parsed(page("<BlobPrefix><Name>a/b/</Name></BlobPrefix>", blob("a/c")))
    assert found.prefixes == ("a/b/",)
    assert [version.key for version in found.objects] == ["a/c"]


def test_names_that_xml_has_not_are_encoded() -> None:
    prefix = '<BlobPrefix><Name Encoded="true">a%01/</Name></BlobPrefix>'
    found = parsed(page(blob("a/x%EF%BF%BE%2F", encoded=True), blob("a/x%2F"), prefix))
    assert [version.key for version in found.objects] == ["a/x%2F", "a/x\ufffe/"]
    assert found.prefixes == ("a\x01/",)


def test_white_space_in_names_is_kept() -> None:
    assert [version.key for version in parsed(page(blob(" a\tb\nc "))).objects] == [" a\tb\nc "]


@pytest.mark.parametrize(("tier", "archived"), [("Hot", ""), ("Cold", ""), ("Archive", "Archive")])
def test_access_tier(tier: str, archived: str) -> None:
    (version,) = parsed(page(blob("a", f"<AccessTier>{tier}</AccessTier>"))).objects
    assert version.archived == archived


def test_stored_encoding() -> None:
    (version,) = parsed(
        page(blob("a").replace("<Content-Encoding/>", "<Content-Encoding>gzip</Content-Encoding>"))
    ).objects
    assert version.encoding == "gzip"


def test_directories_become_markers_in_their_place() -> None:
    found = parsed(
        page(
            blob("m/1", "<ResourceType>directory</ResourceType>", size="0"),
            blob("m/1-old", "<ResourceType>file</ResourceType>"),
            blob("m/2", metadata="<Hdi_isfolder>true</Hdi_isfolder>", size="0"),
            blob("m/3", metadata="<hdi_isfolder>false</hdi_isfolder><Name>x</Name><Etag>y</Etag>"),
        )
    )
    assert [version.key for version in found.objects] == ["m/1-old", "m/1/", "m/2/", "m/3"]


def test_what_makes_a_directory() -> None:
    assert is_directory("directory", "")
    assert is_directory("", "true")
    assert not is_directory("file", "")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"<html><body>Log in!</body></html>",
        b"\xff\xfe<",
        b"<ListBucketResult><Contents/></ListBucketResult>",
        b"<EnumerationResults><Containers/></EnumerationResults>",
        page(blob("a"))[:-10],
        page(blob("")),
        page(blob("a", size="")),
        page(blob("a").replace("<Etag>0x8DE28A</Etag>", "")),
        page("<BlobPrefix/>"),
        b'<!DOCTYPE x [<!ENTITY e "e">]>' + page(blob("a")).removeprefix("\ufeff".encode()),
    ],
)
def test_what_is_no_listing(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        parsed(body)


def test_http_date() -> None:
    assert seconds_ns(MODIFIED) == MTIME_NS


def test_an_entry_that_cannot_be_is_no_fault_of_the_others() -> None:
    body = page(blob("a", size=str(1 << 63)) + blob("b") + blob("c").replace(MODIFIED, "yesterday"))
    found = parsed(body)
    assert [(version.key, version.fault != "") for version in found.objects] == [("a", True), ("b", False), ("c", True)]
