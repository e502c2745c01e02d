"""The status page: what it says, and that no name of an object can be more than text in it."""

from __future__ import annotations

import base64
import copy
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from d7yfs.monitor.http_listener import RENDER_PERIOD_S, HttpPage, SharedPage
from d7yfs.monitor.rate_history import LOOKS, RateHistory
from d7yfs.monitor.status_page import HEADERS, picture, render
from d7yfs.stats.status import MountStatus, parse
from tests.monitor.test_metrics import SNAPSHOT

EVIL = "a<script>alert(1)</script>\"' onload=alert(1) &lt;&#x41; ]]>\x1b[2J\u202e\n<svg/onload=alert(1)>"
SHOWN = EVIL.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e").replace("\n", r"\n")
VOID = {"meta", "line", "br"}


class Parsed(HTMLParser):
    """A page's elements and texts. Every element but the void ones has to be closed, in order."""

    def __init__(self, page: HttpPage) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.title = ""
        self._open: list[str] = []
        self.feed(page.body.decode())
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open[-1:] == ["title"]:
            self.title += data
        elif self._open[-1:] != ["style"] and data.strip():
            self.texts.append(data.strip())

    def rows(self) -> str:
        return " | ".join(self.texts)


def account(uptime_s: float = 10.0, *, read: int = 0, **changes: Any) -> MountStatus:
    shown = copy.deepcopy(SNAPSHOT) | {"uptime_s": uptime_s, "started_at": 1.0, "problems": []}
    repository = shown["repositories"][0]
    repository["traffic"] |= {"cache_bytes": read, "direct_bytes": 2 * read, "proxy_bytes": 0, "remote_peer_bytes": 0}
    repository["models"]["a"] |= {"read_bytes": read}
    shown["cache"] |= {"used_bytes": 1 << 30, "limit_bytes": 4 << 30, "hits": 3, "misses": 1}
    return parse(MountStatus, shown | changes)


def page_of(shown: MountStatus, *earlier: MountStatus) -> HttpPage:
    history = RateHistory()
    for each in earlier:
        history.note(each)
    rates, activity = history.describe(shown)
    return render(shown, rates, activity, now=1_700_000_000.0, period_s=5.0)


def hostile() -> MountStatus:
    """A mount of which all that an uploader, a store or an operator can choose is hostile."""
    model = SNAPSHOT["repositories"][0]["models"]["a"]
    repository = SNAPSHOT["repositories"][0] | {"name": EVIL, "url": EVIL, "state": EVIL}
    problem = SNAPSHOT["problems"][0] | {"text": EVIL, "served": EVIL, "hint": EVIL}
    request = {"operation": "read", "path": f"{EVIL.replace('/', '')}/{EVIL}/secret-name", "waited_s": 3.0}
    return account(
        20.0,
        mountpoint=f"/mnt/{EVIL}",
        version=EVIL,
        repositories=[repository | {"models": {EVIL: model | {"read_bytes": 10**9}}}],
        problems=[problem],
        fuse=SNAPSHOT["fuse"] | {"in_flight": 1, "oldest_requests": [request], "waiting_reads": {EVIL: 1}},
    )


def test_names_are_text_and_nothing_else() -> None:
    plain = Parsed(page_of(account(20.0, read=10**9), account(10.0)))
    shown = hostile()
    found = Parsed(page_of(shown, account(10.0)))
    assert {tag for tag, _ in found.elements} <= {tag for tag, _ in plain.elements} | {"ul", "li", "b", "br"}
    assert "script" not in {tag for tag, _ in found.elements}
    names = {name for _, attributes in found.elements for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("style", "src")]
    assert {attributes["href"] for tag, attributes in found.elements if tag == "a"} == {
        "/metrics",
        "/healthz",
        "/readyz",
    }
    assert found.title == f"/mnt/{SHOWN}: d7yfs"
    assert f"/mnt/{SHOWN}" in found.texts
    assert found.texts.count(SHOWN) >= 4, "problem, what is served, what to do, repository"
    assert f"{SHOWN}/{SHOWN}" in found.texts, "a model"
    assert not {"\x1b", "\u202e"} & set(page_of(shown).body.decode())


def test_everybody_may_read_it_so_it_names_no_file() -> None:
    page = page_of(hostile())
    assert b"secret-name" not in page.body
    lone = SNAPSHOT["repositories"][0] | {"name": ""}
    for path, model in (("llm/1/secret", "llm"), ("secret", "."), (".", ".")):
        request = {"operation": "read", "path": path, "waited_s": 3.0}
        fuse = SNAPSHOT["fuse"] | {"in_flight": 1, "oldest_requests": [request]}
        page = page_of(account(repositories=[lone], fuse=fuse))
        assert f"read | {model} | 3.0 s" in Parsed(page).rows()
        assert b"secret" not in page.body
    named = page_of(account(fuse=fuse | {"oldest_requests": [request | {"path": "llm/a/secret"}]}))
    assert "read | llm/a | 3.0 s" in Parsed(named).rows()


def test_a_browser_loads_and_runs_nothing() -> None:
    page = page_of(account())
    style = re.findall(r"<style>(.*?)</style>", page.body.decode(), re.DOTALL)
    assert len(style) == 1
    digest = base64.b64encode(hashlib.sha256(style[0].encode()).digest()).decode()
    policy = dict(HEADERS)["Content-Security-Policy"]
    assert policy.startswith(f"default-src 'none'; style-src 'sha256-{digest}';")
    assert "frame-ancestors 'none'" in policy
    assert page.headers == HEADERS
    assert not re.search(r"url\(|@import|<script|<link|<img", page.body.decode())
    assert ("meta", {"http-equiv": "refresh", "content": "5"}) in Parsed(page).elements


def test_what_is_wrong_comes_first() -> None:
    texts = Parsed(page_of(account(problems=SNAPSHOT["problems"]))).texts
    at = texts.index("1 problem")
    assert texts[at + 1].startswith("vision: store unreachable")
    assert texts[at + 3] == SNAPSHOT["problems"][0]["hint"]
    assert at < texts.index("Bytes per second, by way")
    assert "Nothing is wrong now." in Parsed(page_of(account())).texts


def test_rates_and_the_state_of_the_mount() -> None:
    rows = Parsed(page_of(account(20.0, read=50 << 20), account(10.0), account(15.0, read=25 << 20))).rows()
    assert "to readers, from the cache | 5 MiB/s | 5 MiB/s | by P2P | 0 B/s | 0 B/s | from the store | 10 MiB/s" in rows
    assert "llm/a | 5 MiB/s | 0 B/s | 0 B of 10 B" in rows
    assert "llm | reachable | by dfdaemon's socket | 12 B" in rows
    assert "vision | unreachable | from the store" in rows
    assert "1 GiB of 4 GiB | 25%" in rows
    assert "3 of 4 | 75%" in rows
    assert "No rates yet." in Parsed(page_of(account())).texts


def test_the_picture_has_one_scale_and_ends_now() -> None:
    drawn = "\n".join(picture({"cache": (0.0, 5.0, 10.0), "store": (10.0,)}, 10.0, 15.0))
    assert '<polyline class="cache" points="0.0,142.0 360.0,80.0 720.0,18.0"/>' in drawn
    assert '<polyline class="store" points="720.0,18.0"/>' in drawn
    assert "15 s ago" in drawn
    assert "10 B/s" in drawn
    nothing = "\n".join(picture({"cache": (0.0, 0.0)}, 0.0, 10.0))
    assert 'points="0.0,142.0 720.0,142.0"' in nothing


def test_the_history_is_small() -> None:
    history = RateHistory()
    for number in range(3 * LOOKS):
        history.note(account(5.0 * number, read=number * 5000))
    rates, activity = history.describe(account(15.0 * LOOKS, read=3 * LOOKS * 5000))
    assert {way: len(values) for way, values in rates.items()} == dict.fromkeys(("cache", "p2p", "store"), LOOKS)
    assert set(rates["cache"]) == {1000.0}
    assert sum(each.itemsize * len(each) for each in history._rates.values()) < 2000
    assert activity.over_s == 10.0, "the last two looks"
    assert activity.models[0].read_bytes_s == 1000.0
    assert 60 <= history._models[-1].uptime_s - history._models[0].uptime_s < 66
    body = page_of(account(15.0 * LOOKS), *(account(5.0 * number, read=number) for number in range(3 * LOOKS))).body
    assert len(body) < 20_000


async def test_all_who_ask_within_a_second_share_a_page(autojump_clock: MockClock) -> None:
    prepared = 0

    def prepare() -> Any:
        nonlocal prepared
        prepared += 1
        return lambda number=prepared: HttpPage(200, "text/html", str(number).encode())

    page = SharedPage(prepare)
    said: list[bytes] = []

    async def ask() -> None:
        said.append((await page.show()).body)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(ask)
    assert said == [b"1"] * 20
    await trio.sleep(RENDER_PERIOD_S)
    await ask()
    assert (said[-1], prepared) == (b"2", 2)


@pytest.mark.parametrize("trouble", ["prepare", "render"])
async def test_a_page_that_fails_is_made_again(trouble: str, autojump_clock: MockClock) -> None:
    fails = [trouble]

    def fail(when: str) -> None:
        if when in fails:
            raise ZeroDivisionError(when)

    def prepare() -> Any:
        fail("prepare")
        return lambda: fail("render") or HttpPage(200, "text/html", b"fine")  # type: ignore[func-returns-value]

    page = SharedPage(prepare)
    with pytest.raises(ZeroDivisionError):
        await page.show()
    fails.clear()
    assert (await page.show()).body == b"fine"
