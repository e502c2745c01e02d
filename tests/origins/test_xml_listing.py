"""parse_listing against botocore's own parser, on the stores' replies; and refused documents."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import cache
from typing import Any
from urllib.parse import quote_plus
from xml.sax.saxutils import escape

import botocore.session
import pytest
from botocore.parsers import create_parser
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.objects import ObjectVersion
from d7yfs.origins.xml_listing import XmlListing, parse_listing

S3 = "http://s3.amazonaws.com/doc/2006-03-01/"
MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
MTIME_NS = int(MOMENT.timestamp()) * 10**9


def entry(key: str = "a", *, replacing: tuple[str, str] = ("", ""), extra: str = "") -> str:
    xml = (
        f"<Contents><Key>{key}</Key><LastModified>2026-01-02T03:04:05.678Z</LastModified><ETag>&quot;e&quot;</ETag>"
        f"<Size>7</Size><Owner><ID>o</ID><DisplayName>n</DisplayName></Owner>{extra}</Contents>"
    )
    return xml.replace(*replacing)


def document(*inside: str) -> bytes:
    return f'<?xml version="1.0"?>\n<ListBucketResult xmlns="{S3}">{"".join(inside)}</ListBucketResult>'.encode()


def only(*inside: str, archives: frozenset[str] = frozenset()) -> ObjectVersion:
    (version,) = parse_listing(document(*inside), archives=archives).objects
    return version


@cache
def shape() -> Any:
    return botocore.session.Session().get_service_model("s3").operation_model("ListObjectsV2").output_shape


def by_botocore(body: bytes) -> dict[str, Any]:
    parsed: dict[str, Any] = create_parser("rest-xml").parse({"status_code": 200, "headers": {}, "body": body}, shape())
    return parsed


XML_CHARACTERS = st.one_of(
    st.sampled_from("&<>\"'%+ \t\n\r/]\u00fc\u2028\U0001f4a9"),
    st.characters(min_codepoint=0x20, max_codepoint=0xFFFD, exclude_categories=["Cs"]),
)
WRITTEN = (
    escape,
    lambda text: "".join(f"&#{ord(character)};" for character in text),
    lambda text: "<![CDATA[" + text.replace("]]>", "]]]]><![CDATA[>") + "]]>",
    lambda text: "<!-- note -->".join(escape(character) for character in text),
)
KEYS = st.lists(st.tuples(st.text(XML_CHARACTERS), st.sampled_from(WRITTEN)), max_size=4)


@given(keys=KEYS, prefixes=KEYS, last=st.booleans(), indent=st.sampled_from(["", "\n  "]))
def test_reads_what_botocore_reads(keys: list[Any], prefixes: list[Any], last: bool, indent: str) -> None:
    body = document(
        f"<Name>models</Name>{indent}<IsTruncated>{'false' if last else 'true'}</IsTruncated>",
        f"{indent}<NextContinuationToken>t&amp;k</NextContinuationToken><Unknown><Key>k</Key></Unknown>",
        *(f"{indent}{entry(write(key))}" for key, write in keys),
        *(f"<CommonPrefixes>{indent}<Prefix>{write(key)}</Prefix></CommonPrefixes>" for key, write in prefixes),
    )
    theirs = by_botocore(body)
    assert parse_listing(body) == XmlListing(
        truncated=theirs["IsTruncated"],
        next_token=theirs["NextContinuationToken"],
        next_marker="",
        objects=tuple(
            ObjectVersion(each["Key"], each["Size"], each["ETag"], int(each["LastModified"].timestamp()) * 10**9)
            for each in theirs.get("Contents", ())
        ),
        prefixes=tuple(each["Prefix"] for each in theirs.get("CommonPrefixes", ())),
    )


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_url_encoded_names_come_back(key: str) -> None:
    encoded = escape(quote_plus(key, safe="/"))
    listing = parse_listing(
        document(
            f"{entry(encoded)}<CommonPrefixes><Prefix>{encoded}</Prefix></CommonPrefixes><NextMarker>{encoded}</NextMarker>",
            "<NextContinuationToken>a+b%20</NextContinuationToken><EncodingType>url</EncodingType>",
        )
    )
    assert [version.key for version in listing.objects] == [key]
    assert (listing.prefixes, listing.next_marker, listing.next_token) == ((key,), key, "a+b%20")


def test_names_are_as_they_stand_unless_encoded() -> None:
    assert only(entry("a+b%20c")).key == "a+b%20c"


@pytest.mark.parametrize("namespace", ['xmlns="urn:other"', 'xmlns:p="urn:other"', ""])
def test_namespace_does_not_matter(namespace: str) -> None:
    body = document(entry()).replace(f'xmlns="{S3}"'.encode(), namespace.encode())
    if "xmlns:p" in namespace:
        body = body.replace(b"<Contents", b"<p:Contents").replace(b"</Contents", b"</p:Contents")
    assert [version.key for version in parse_listing(body).objects] == ["a"]


def test_entry() -> None:
    assert only(entry("a/b")) == ObjectVersion("a/b", 7, '"e"', MTIME_NS)
    assert only(entry(replacing=("&quot;e&quot;", "e"))).validator == '"e"'
    assert only(entry(replacing=("&quot;e&quot;", "W/&quot;e&quot;"))).validator == 'W/"e"'


@pytest.mark.parametrize(
    "moment",
    ["2026-01-02T03:04:05Z", "2026-01-02T04:04:05+01:00", "2026-01-02T03:04:05", "Fri, 02 Jan 2026 03:04:05 GMT"],
)
def test_moments(moment: str) -> None:
    assert only(entry(replacing=("2026-01-02T03:04:05.678Z", moment))).mtime_ns == MTIME_NS


@pytest.mark.parametrize(
    ("extra", "archived"),
    [
        ("", ""),
        ("<StorageClass>STANDARD</StorageClass>", ""),
        ("<StorageClass>Archive</StorageClass>", "Archive"),
        ("<StorageClass>Archive</StorageClass><RestoreStatus/>", "Archive"),
        (
            "<StorageClass>Archive</StorageClass>"
            "<RestoreStatus><IsRestoreInProgress>true</IsRestoreInProgress></RestoreStatus>",
            "Archive",
        ),
        (
            "<StorageClass>Archive</StorageClass>"
            "<RestoreStatus><RestoreExpiryDate>2026-12-01T00:00:00.000Z</RestoreExpiryDate></RestoreStatus>",
            "",
        ),
        ('<StorageClass>Archive</StorageClass><RestoreInfo>ongoing-request="true"</RestoreInfo>', "Archive"),
        ('<StorageClass>Archive</StorageClass><RestoreInfo>ongoing-request="false", …</RestoreInfo>', ""),
    ],
)
def test_archived(extra: str, archived: str) -> None:
    assert only(entry(extra=extra), archives=frozenset({"Archive"})).archived == archived


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not XML"),
        (document(entry())[:-1], "not XML"),
        (document(entry("a\0b")), "not XML"),
        (document(entry("a")).replace(b"<Key>a", b"<Key>\xff"), "not XML"),
        (document(entry("&unknown;")), "not XML"),
        (b"<Error><Code>InternalError</Code></Error>", "'Error' came"),
        (b"<html><p>Welcome!</p></html>", "'html' came"),
        (b'<!DOCTYPE x [<!ENTITY e "e">]><ListBucketResult><Name>&e;</Name></ListBucketResult>', "document type"),
        ('<?xml version="1.0" encoding="UTF-16"?><!DOCTYPE x><ListBucketResult/>'.encode("utf-16"), "not XML"),
        (document("<IsTruncated>perhaps</IsTruncated>"), "truncated: 'perhaps'"),
        (document(entry(replacing=("<Size>7</Size>", ""))), "leaves out 'Size'"),
        (document(entry(replacing=("Key>", "Name>"))), "leaves out 'Key'"),
        (document("<EncodingType>url</EncodingType>", entry(replacing=("Key>", "Name>"))), "leaves out 'Key'"),
        (document("<CommonPrefixes/>"), "leaves out 'Prefix'"),
    ],
)
def test_anything_else_is_refused(body: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_listing(body)


@given(st.data())
def test_damage_is_refused_or_still_a_listing(data: st.DataObject) -> None:
    whole = document("<IsTruncated>true</IsTruncated>", entry(), "<CommonPrefixes><Prefix>b/</Prefix></CommonPrefixes>")
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, min(start + 9, len(whole))))
    damaged = whole[:start] + data.draw(st.binary(max_size=3)) + whole[stop:]
    try:
        listing = parse_listing(damaged)
    except ValueError:
        return
    assert isinstance(listing, XmlListing)


@pytest.mark.parametrize(
    ("replacing", "reason"),
    [
        ((">7<", ">-7<"), "size that no object has: '-7'"),
        ((">7<", "><"), "size that no object has: ''"),
        ((">7<", f">{1 << 50}<"), "size that no object has"),
        ((">7<", f">{1 << 63}<"), "size that no object has"),
        ((">7<", f">{'9' * 5000}<"), "size that no object has"),
        ((">7<", ">\u0667<"), "size that no object has"),
        (("2026-", "2026+"), r"time that no file can have: '2026\+01"),
        (("2026-", "1026-"), "time that no file can have"),
        (("2026-", "9026-"), "time that no file can have"),
        (("2026-01-02T03:04:05.678Z", "Mon, 01 Jan 2026 00:00:00 +" + "9" * 30), "time that no file can have"),
        (("&quot;e&quot;", "e" * 5000), "too long"),
    ],
)
def test_an_object_that_cannot_be_is_no_fault_of_the_others(replacing: tuple[str, str], reason: str) -> None:
    first, bad, last = parse_listing(document(entry("a"), entry("b", replacing=replacing), entry("c"))).objects
    assert (first.fault, last.fault) == ("", "")
    assert (bad.key, bad.size_bytes, bad.mtime_ns) == ("b", 0, 0)
    assert re.search(reason, bad.fault)
    assert len(bad.fault) < 200


def test_a_page_of_too_many_elements_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ValueError, match="more elements than a page can have"):
        parse_listing(document("<a/>" * 300_000))
    with pytest.raises(ValueError, match="more elements than a page can have"):
        parse_listing(document("<a " + " ".join(f'b{index}=""' for index in range(1_100_000)) + "/>"))
