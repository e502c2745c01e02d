"""The headers for dfdaemon, the proof in its replies, and the side that its errors blame."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.fetch.dragonfly_task import (
    FILTERED_PARAMS,
    Task,
    TaskOptions,
    blames_proxy,
    content_id,
    filtered_params,
    names_version,
    sorted_query,
    task,
    task_id,
)
from d7yfs.objects import ObjectVersion, StoreIdentity
from d7yfs.origins.origin import ReadRequest
from tests.servers import dfdaemon
from tests.servers.http11 import Request

VERSION = ObjectVersion("m/model.onnx", 1000, '"etag"', 1)
STORE = StoreIdentity("s3", "http://127.0.0.1:9000", "models")
URL = "https://h/models/m/model.onnx"


def asked(
    url: str = f"{URL}?sig=5ecre7",
    options: TaskOptions | None = None,
    *,
    content_ids: bool = True,
    small_too: bool = False,
    rest_too: bool = False,
) -> Task:
    request = ReadRequest(url, {"If-Match": VERSION.validator}, float("inf"), frozenset({"sig", "mine-too"}))
    return task(
        request,
        STORE,
        VERSION,
        options or TaskOptions(),
        content_ids=content_ids,
        small_too=small_too,
        rest_too=rest_too,
    )


def test_the_content_id_binds_everything_that_identifies_a_version() -> None:
    others = [
        content_id(replace(STORE, endpoint="http://127.0.0.1:9001"), VERSION),
        content_id(STORE, replace(VERSION, key="m/model.onnx2")),
        content_id(STORE, replace(VERSION, validator='"etag2"')),
        content_id(STORE, replace(VERSION, size_bytes=1001)),
    ]
    assert len({content_id(STORE, VERSION), *others}) == 5


def test_the_content_id_is_the_same_on_all_hosts_and_in_all_releases() -> None:
    """A golden value: another one would split the cluster's tasks between releases."""
    assert content_id(STORE, VERSION) == "bc4f6e70db534cb726f3aef7733075c19b9c2f8a22d19858a876645d9300de93"


def test_a_piece_length_of_ones_own_is_bound_too() -> None:
    """dfdaemon leaves it out of an id made of a content id, and would mix tasks of different
    pieces.
    """
    assert len({content_id(STORE, VERSION, length) for length in (0, 4 << 20, 8 << 20)}) == 3


def test_the_content_id_ignores_what_a_stat_knows_and_a_listing_does_not() -> None:
    assert content_id(STORE, VERSION) == content_id(STORE, replace(VERSION, mtime_ns=2, version_id="v", archived=""))


TEXT = st.text(max_size=4, alphabet=st.sampled_from('\0",[\\a\udcff1'))


@given(st.tuples(TEXT, TEXT, TEXT, st.integers(0, 12)), st.tuples(TEXT, TEXT, TEXT, st.integers(0, 12)))
def test_different_fields_never_meet_in_one_content_id(
    one: tuple[str, str, str, int], other: tuple[str, str, str, int]
) -> None:
    first, second = (
        content_id(replace(STORE, bucket=bucket), ObjectVersion(key, size, tag, 1))
        for bucket, key, tag, size in (one, other)
    )
    assert (first == second) == (one == other)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://h/b/k", "https://h/b/k"),
        ("https://h/b/k?b=1&a=2", "https://h/b/k?a=2&b=1"),
        ("https://h/b/k?b=1&a=", "https://h/b/k?a=&b=1"),
        ("https://h/b/k?a=2&a=1", "https://h/b/k?a=2&a=1"),
        ("https://h/b/k%20%2B%23?X-Amz-Credential=A%2F2026%2Fs3&X-Amz-Algorithm=S", "https://h/b/k%20%2B%23?X-Amz-Algorithm=S&X-Amz-Credential=A%2F2026%2Fs3"),
        ("http://[::1]:9000/b//k?z=%2B%2F%3D", "http://[::1]:9000/b//k?z=%2B%2F%3D"),
    ],
)  # fmt: skip
def test_sorted_query(url: str, expected: str) -> None:
    assert sorted_query(url) == expected


@given(st.lists(st.tuples(st.text(min_size=1, max_size=3), st.text(max_size=3)), max_size=5))
def test_sorted_query_is_what_dfdaemon_computes(pairs: list[tuple[str, str]]) -> None:
    """As measured: base + "?" + urlencode(sorted(parse_qsl(q, keep_blank_values=True), key=first)),
    12 of 12.
    """
    query = urlencode(pairs)
    measured = urlencode(sorted(parse_qsl(query, keep_blank_values=True), key=lambda pair: pair[0]))
    expected = f"https://h/k?{measured}" if measured else "https://h/k"
    once = sorted_query(f"https://h/k?{query}" if query else "https://h/k")
    assert once == sorted_query(once) == expected
    assert sorted(parse_qsl(once.partition("?")[2], keep_blank_values=True)) == sorted(pairs)


# --- headers ---


def test_headers() -> None:
    options = TaskOptions(
        filter=("mine",), headers={"X-Team": "a", "X-Dragonfly-Priority": "3", "X-Dragonfly-Tag": "t"}
    )
    headers = asked(options=options).headers
    names = headers["X-Dragonfly-Filtered-Query-Params"].split(",")
    assert set(names) == {*FILTERED_PARAMS, "sig", "mine", "mine-too"}
    assert names == sorted(names)
    assert headers["X-Dragonfly-Filter"].split("&") == names
    assert {name: value for name, value in headers.items() if "Filter" not in name} == {
        "If-Match": '"etag"',
        "X-Dragonfly-Use-P2P": "true",
        "X-Dragonfly-Content-For-Calculating-Task-ID": content_id(STORE, VERSION),
        "X-Team": "a",
        "X-Dragonfly-Priority": "3",
        "X-Dragonfly-Tag": "t",
    }


def test_headers_of_all_options() -> None:
    options = TaskOptions("tag", "app", 2, 8 << 20)
    headers = asked(options=options, small_too=True, rest_too=True).headers
    assert headers["X-Dragonfly-Tag"] == "tag"
    assert headers["X-Dragonfly-Application"] == "app"
    assert headers["X-Dragonfly-Priority"] == "2"
    assert headers["X-Dragonfly-Piece-Length"] == str(8 << 20)
    assert headers["X-Dragonfly-Scheduling-Policy"] == "always"
    assert headers["X-Dragonfly-Prefetch"] == "true"
    assert headers["X-Dragonfly-Content-For-Calculating-Task-ID"] == content_id(STORE, VERSION, 8 << 20)


@pytest.mark.parametrize("spell", [str.lower, str.upper, str.title])
def test_our_headers_win_in_every_spelling(spell: object) -> None:
    """Ours, the request's own, and those that would make another task of it if unset."""
    assert callable(spell)
    users = {
        "X-Dragonfly-Use-P2P": "false",
        "X-Dragonfly-Tag": "theirs",
        "X-Dragonfly-Content-For-Calculating-Task-ID": "theirs",
        "X-Dragonfly-Piece-Length": "4MiB",
        "X-Dragonfly-Enable-Task-ID-Based-Blob-Digest": "true",
        "If-Match": "theirs",
        "Range": "bytes=0-0",
    }
    options = TaskOptions(tag="ours", headers={spell(name): value for name, value in users.items()})
    for url in (URL, f"{URL}?versionId=1"):
        headers = asked(url, options).headers
        assert sorted(name.lower() for name in headers) == sorted({name.lower() for name in headers})
        assert not {"theirs", "false", "4MiB", "bytes=0-0"} & set(headers.values())
        assert "Range" not in headers


def test_nothing_of_it_shows() -> None:
    options = TaskOptions(headers={"X-Team": "5ecre7"})
    assert "5ecre7" not in f"{options!r} {options!s} {asked(options=options)!r}"


@pytest.mark.parametrize(
    "name",
    ["X-Amz-Signature", "X-Goog-Signature", "sig", "skoid", "x-oss-signature", "security-token", "x-obs-security-token",
     "AWSAccessKeyId", "GoogleAccessId", "x-amz-security-token", "OSSAccessKeyId", "Signature", "q-signature"],
)  # fmt: skip
def test_signatures_of_all_providers_are_no_part_of_a_task(name: str) -> None:
    assert name in filtered_params((), ())


def test_no_filter_takes_the_version_away() -> None:
    names = filtered_params({"versionId"}, ["generation", "versionid", "mine"])
    assert not {"generation", "versionId", "versionid"} & set(names)
    assert "mine" in names


# --- what binds the version ---


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("generation=17", True),
        ("X-Amz-Signature=s&versionId=a%2Bb", True),
        ("versionid=2026-01-01T00%3A00%3A00Z", True),
        ("", False),
        ("sig=s", False),
        ("versionId=", False),
        ("versionId=null", False),
        ("VersionId=1", False),
        ("my-generation=1", False),
    ],
)
def test_whether_the_url_names_the_version(query: str, named: bool) -> None:
    assert names_version(f"{URL}?{query}") is named
    assert (asked(f"{URL}?{query}").content_id == "") is named


def test_a_version_in_the_url_needs_nothing_else() -> None:
    """So that a preheated task, which knows no content ids, is the same."""
    for content_ids in (True, False):
        one = asked(f"{URL}?versionId=1&sig=5ecre7", TaskOptions(tag="t"), content_ids=content_ids)
        assert "X-Dragonfly-Content-For-Calculating-Task-ID" not in one.headers
        assert (one.content_id, one.tag) == ("", "t")
        assert one.id == task_id(f"{URL}?versionId=1", (), "t")


@pytest.mark.parametrize("users", [TaskOptions(tag="t"), TaskOptions(headers={"x-dragonfly-tag": "t"})])
def test_where_content_ids_are_not_heeded_the_tag_carries_the_version(users: TaskOptions) -> None:
    named = content_id(STORE, VERSION)
    assert asked(content_ids=False).headers["X-Dragonfly-Tag"] == named
    one = asked(options=users, content_ids=False)
    assert one.headers["X-Dragonfly-Tag"] == one.tag == f"t-{named}"
    assert "X-Dragonfly-Content-For-Calculating-Task-ID" not in one.headers


@pytest.mark.parametrize("url", [URL, f"{URL}?versionId=1"])
@pytest.mark.parametrize("content_ids", [True, False])
def test_with_a_secret_no_other_client_can_name_the_task(url: str, content_ids: bool) -> None:
    """All else is known to a client that reaches a dfdaemon and would put its own bytes there."""
    secret, other = TaskOptions(secret=b"a" * 16), TaskOptions(secret=b"b" * 16)
    ids = {asked(url, options, content_ids=content_ids).id for options in (TaskOptions(), secret, other)}
    assert len(ids) == 3
    assert asked(url, secret, content_ids=content_ids).id in ids, "the same on all hosts"
    assert not [value for value in asked(url, secret).headers.values() if "a" * 16 in value]


def test_signatures_make_no_difference_to_the_id() -> None:
    for content_ids in (True, False):
        one, other = (asked(f"{URL}?sig={number}", content_ids=content_ids) for number in (1, 2))
        assert one.id == other.id


# --- the id ---

FILE = "https://example.com/file.txt"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((f"{FILE}?z=9&b=2&a=1", ["z"], "foo", "bar"), "8b3f6e9b9b8fe20903bced565cfd1d0aaef354a4c17573f0c2c1979210443f9d"),
        ((f"{FILE}?b=2&a=1&b=1", ["c"]), "7c8801d0596be5e8f9449d5c4af23866c72fe5205119c0e5912981f3b16a37aa"),
        ((f"{FILE}?k=a%20b&m=x*y&n=c~d", ["none"], "", "", 1024), "6196a6846023f6d3c1e4d30f6c86f3d4186e4c664a33e5692b0e04e49b26a9af"),
        ((f"{FILE}?a=1&b=2", ["a", "b"], "foo"), "c8f4b41117329d54af920010394f6f607bac707e933ab2f18d372e3dd4c7fcb3"),
        (("https://example.com", [], "foo", "bar"), "06408fbf247ddaca478f8cb9565fe5591c28efd0994b8fea80a6a87d3203c5ca"),
        (("https://example.com", [], "", "", 1024), "9f7c9aafbc6f30f8f41a96ca77eeae80c5b60964b3034b0ee43ccf7b2f9e52b8"),
    ],
)  # fmt: skip
def test_task_ids_are_dfdaemons(arguments: tuple[str, list[str], str, str, int], expected: str) -> None:
    """Golden values of dfdaemon 1.5.10's own tests (`id_generator`)."""
    assert task_id(*arguments) == expected


def test_the_id_of_a_content_is_dfdaemons() -> None:
    one = replace(asked(), content_id="This is a test file")
    assert one.id == "e2d0fe1585a63ec6009c8016ff8dda8b17719a637405a4e23c0ff81339148249"


@pytest.mark.parametrize(
    "url",
    ["HTTPS://EXAMPLE.com:443/file.txt?b=2&a=1#x", "https://example.com/file.txt?a=1&b=2", "https://Example.com/file.txt?a=1&b=2"],
)  # fmt: skip
def test_one_place_is_one_task(url: str) -> None:
    assert task_id(url, ["c"]) == task_id("https://example.com/file.txt?b=2&a=1", ["c"])
    assert task_id("http://[::1]:9000/k", ["c"]) == hashlib.sha256(b"http://[::1]:9000/kSTANDARD").hexdigest()


def request_for(one: Task) -> Request:
    headers: Mapping[str, str] = {name.lower(): value for name, value in one.headers.items()}
    return Request("GET", one.url, headers, 0)


@given(
    st.dictionaries(st.sampled_from(["versionId", "sig", "a", "b", "response-type"]), st.text(max_size=3)),
    st.booleans(), st.sampled_from(["", "tag"]), st.sampled_from(["", "app"]), st.sampled_from([0, 4 << 20]),
)  # fmt: skip
def test_what_is_sent_makes_the_task_that_is_expected(
    query: dict[str, str], content_ids: bool, tag: str, application: str, piece_length: int
) -> None:
    """The fake dfdaemon reads headers and URL as they are sent."""
    options = TaskOptions(tag, application, 3, piece_length)
    one = asked(f"{URL}?{urlencode(query)}" if query else URL, options, content_ids=content_ids)
    assert dfdaemon.identify(request_for(one)) == one.id
    assert one.is_proved_by(one.id)
    assert not one.is_proved_by("0" * 64)


def test_what_a_reply_proves() -> None:
    by_content, by_url, by_tag = asked(), asked(f"{URL}?generation=1"), asked(content_ids=False)
    for one in (by_content, by_url, by_tag):
        assert one.is_proved_by(one.id)
        assert not one.is_proved_by("")
        assert not one.is_proved_by(task_id(URL, ()))
    # An early client: its formula has no type.
    for one in (by_url, by_tag):
        assert one.is_proved_by(task_id(one.url, one.filtered_params, one.tag, kind=""))
    # One that does not say which task it is may know no content ids either.
    assert [one.is_proved_by(None) for one in (by_content, by_url, by_tag)] == [False, True, True]


# --- errors ---


@pytest.mark.parametrize(
    ("status", "error_type", "proxys"),
    [
        *((status, "backend", False) for status in (400, 403, 404, 412, 429, 500, 503)),
        *((status, "proxy", True) for status in (400, 403, 429, 500)),
        *((status, "dfdaemon", True) for status in (403, 404, 500)),
        (404, "something new", True),
        (404, "", True),
        (403, " Backend ", False),
        *((status, None, False) for status in (400, 401, 403, 404, 412, 416)),
        *((status, None, True) for status in (301, 407, 429, 500, 502, 503, 504)),
    ],
)
def test_blame(status: int, error_type: str | None, proxys: bool) -> None:
    assert blames_proxy(status, error_type) is proxys
