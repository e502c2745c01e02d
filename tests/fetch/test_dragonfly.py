"""What dfdaemon is told, and whom its errors blame."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from d7yfs.fetch.dragonfly import DEFAULT_FILTERED_PARAMS, Blame, blame, content_id, proxy_headers, sorted_query
from d7yfs.objects import ObjectVersion

VERSION = ObjectVersion("m/model.onnx", 1000, '"etag"', 1)
STORE = "s3 http://127.0.0.1:9000 models"


def test_the_content_id_binds_everything_that_identifies_a_version() -> None:
    others = [
        content_id("s3 http://127.0.0.1:9001 models", VERSION),
        content_id(STORE, replace(VERSION, key="m/model.onnx2")),
        content_id(STORE, replace(VERSION, validator='"etag2"')),
        content_id(STORE, replace(VERSION, size_bytes=1001)),
    ]
    assert len({content_id(STORE, VERSION), *others}) == 5


def test_the_content_id_is_the_same_on_all_hosts_and_in_all_releases() -> None:
    """A golden value: another one would split the cluster's tasks between releases."""
    assert content_id(STORE, VERSION) == "bc4f6e70db534cb726f3aef7733075c19b9c2f8a22d19858a876645d9300de93"


def test_the_content_id_ignores_what_a_stat_knows_and_a_listing_does_not() -> None:
    assert content_id(STORE, VERSION) == content_id(STORE, replace(VERSION, mtime_ns=2, version_id="v", archived=""))


TEXT = st.text(max_size=4, alphabet=st.sampled_from('\0",[\\a\udcff1'))


@given(st.tuples(TEXT, TEXT, TEXT, st.integers(0, 12)), st.tuples(TEXT, TEXT, TEXT, st.integers(0, 12)))
def test_different_fields_never_meet_in_one_content_id(
    one: tuple[str, str, str, int], other: tuple[str, str, str, int]
) -> None:
    first, second = (content_id(store, ObjectVersion(key, size, tag, 1)) for store, key, tag, size in (one, other))
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
    """As measured: base + "?" + urlencode(sorted(parse_qsl(q, keep_blank_values=True), key=first)), 12 of 12."""
    query = urlencode(pairs)
    measured = urlencode(sorted(parse_qsl(query, keep_blank_values=True), key=lambda pair: pair[0]))
    expected = f"https://h/k?{measured}" if measured else "https://h/k"
    once = sorted_query(f"https://h/k?{query}" if query else "https://h/k")
    assert once == sorted_query(once) == expected
    assert sorted(parse_qsl(once.partition("?")[2], keep_blank_values=True)) == sorted(pairs)


def test_headers() -> None:
    headers = proxy_headers("ID", {"sig", "X-Amz-Date"}, ["mine"], {"X-Team": "a", "X-Dragonfly-Priority": "3"})
    names = headers["X-Dragonfly-Filtered-Query-Params"].split(",")
    assert set(names) == {*DEFAULT_FILTERED_PARAMS, "sig", "mine"}
    assert names == sorted(names)
    assert headers["X-Dragonfly-Filter"].split("&") == names
    assert headers["X-Dragonfly-Use-P2P"] == "true"
    assert headers["X-Dragonfly-Content-For-Calculating-Task-ID"] == "ID"
    assert (headers["X-Team"], headers["X-Dragonfly-Priority"]) == ("a", "3")


def test_our_headers_win_in_every_spelling() -> None:
    users = {"x-dragonfly-use-p2p": "false", "X-DRAGONFLY-CONTENT-FOR-CALCULATING-TASK-ID": "theirs"}
    headers = proxy_headers("ours", (), (), users)
    assert sorted(name.lower() for name in headers) == sorted({name.lower() for name in headers})
    assert not {"false", "theirs"} & set(headers.values())


@pytest.mark.parametrize(
    ("status", "error_type", "whose"),
    [
        *((status, "backend", Blame.ORIGIN) for status in (400, 403, 404, 412, 429, 500, 503)),
        *((status, "proxy", Blame.PROXY) for status in (400, 403, 429, 500)),
        *((status, "dfdaemon", Blame.PROXY) for status in (403, 404, 500)),
        (404, "something new", Blame.PROXY),
        (404, "", Blame.PROXY),
        (403, " Backend ", Blame.ORIGIN),
        *((status, None, Blame.ORIGIN) for status in (400, 401, 403, 404, 412, 416)),
        *((status, None, Blame.PROXY) for status in (301, 407, 429, 500, 502, 503, 504)),
    ],
)
def test_blame(status: int, error_type: str | None, whose: Blame) -> None:
    assert blame(status, error_type) is whose
