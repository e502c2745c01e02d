"""The page at the metrics port that people read: the state of a mount, what is wrong first. Pure.

It needs no script: a browser renews it. Names in it are chosen by whoever can upload, so each text is
escaped, and `HEADERS` forbid all that a page could load or do. It names models, and no file below
them: everybody who reaches the port can read it.

Rendered by `reporter`, in a worker thread.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta

from d7yfs.logs import show_time
from d7yfs.monitor.http_listener import HttpPage
from d7yfs.monitor.problems import show_span
from d7yfs.objects import printable
from d7yfs.stats.activity import ActivityStatus
from d7yfs.stats.problems import ProblemStatus
from d7yfs.stats.status import MountStatus
from d7yfs.stats.words import show_count, show_size_roughly

RENEWED_S = 5
_WAYS = {"cache": "to readers, from the cache", "p2p": "by P2P", "store": "from the store"}
_WIDTH, _HEIGHT = 720, 160
_STYLE = """
:root { color-scheme: light dark; --text: #1b1f24; --back: #ffffff; --faint: #6a737d; --line: #d9dde2;
  --bad: #b3141d; --bad-back: #fdecec; --good: #1a7f37; --cache: #1a7f37; --p2p: #8250df; --store: #b35900; }
@media (prefers-color-scheme: dark) { :root { --text: #e6e9ec; --back: #14171a; --faint: #98a1ab; --line: #363b42;
  --bad: #ff7b72; --bad-back: #33191b; --good: #4ac26b; --cache: #4ac26b; --p2p: #b794f6; --store: #f0a050; } }
body { margin: 1.5rem auto; max-width: 60rem; padding: 0 1rem; color: var(--text); background: var(--back);
  font: 15px/1.45 system-ui, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin: 1.6rem 0 0.4rem; }
p, ul { margin: 0.4rem 0; } .faint, footer, th { color: var(--faint); } .good { color: var(--good); }
.problem { list-style: none; margin: 0.5rem 0; padding: 0.6rem 0.8rem; border-left: 4px solid var(--bad);
  background: var(--bad-back); overflow-wrap: anywhere; } .problem b, .bad { color: var(--bad); }
ul.problems { padding: 0; } table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 500; } th, td { padding: 0.25rem 0.8rem 0.25rem 0; border-bottom: 1px solid var(--line);
  overflow-wrap: anywhere; } td.number, th.number { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; display: block; } svg text { fill: var(--faint); font-size: 12px; }
polyline { fill: none; stroke-width: 2; } .grid { stroke: var(--line); stroke-width: 1; }
.key { display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.5em; }
polyline.cache { stroke: var(--cache); } polyline.p2p { stroke: var(--p2p); } polyline.store { stroke: var(--store); }
.key.cache { background: var(--cache); } .key.p2p { background: var(--p2p); } .key.store { background: var(--store); }
meter { width: 16rem; max-width: 100%; vertical-align: middle; } footer { margin: 2rem 0; } a { color: inherit; }
"""
_DIGEST = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
HEADERS = (
    (
        "Content-Security-Policy",
        f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    ("X-Content-Type-Options", "nosniff"),
    ("Referrer-Policy", "no-referrer"),
    ("Cache-Control", "no-store"),
)
"""The headers of the page: it loads nothing, runs nothing, and is part of no other page."""


def render(
    account: MountStatus, rates: Mapping[str, Sequence[float]], activity: ActivityStatus, *, now: float, period_s: float
) -> HttpPage:
    """The page of a mount at `now`. `rates` are bytes per second by way, the oldest first, `period_s` apart."""
    parts = [
        "<!DOCTYPE html>",
        '<html lang="en"><head><meta charset="utf-8">',
        f"<title>{_text(account.mountpoint)}: d7yfs</title>",
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="refresh" content="{RENEWED_S}"><style>{_STYLE}</style></head><body>',
        f"<h1>{_text(account.mountpoint)}</h1>",
        f'<p class="faint">d7yfs {_text(account.version)}, up {timedelta(seconds=int(account.uptime_s))}, '
        f"as of {_text(show_time(now))}</p>",
        *_problems(account.problems),
        *_rates(rates, activity, period_s),
        *_waiting(account, activity),
        *_models(activity),
        *_repositories(account),
        *_cache(account),
        *_daemon(account),
        f'<footer>It renews itself every {RENEWED_S} s. For programs: <a href="/metrics">/metrics</a>, '
        '<a href="/healthz">/healthz</a>, <a href="/readyz">/readyz</a>. <code>d7yfs top</code> and '
        "<code>d7yfs status</code> on the host say more.</footer>",
        "</body></html>",
    ]
    return HttpPage(200, "text/html; charset=utf-8", "\n".join(parts).encode(), HEADERS)


def _text(said: object) -> str:
    """Text that is neither markup nor changes the order of what is around it."""
    return html.escape(printable(str(said)))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: int = 0) -> list[str]:
    """A table of markup; its last `numbers` columns are numbers."""
    first = len(heads) - numbers

    def cells(tag: str, row: Sequence[str]) -> str:
        of = (f'<{tag} class="number">' if index >= first else f"<{tag}>" for index in range(len(row)))
        return "".join(f"{begin}{each}</{tag}>" for begin, each in zip(of, row, strict=True))

    head = [f"<tr>{cells('th', heads)}</tr>"] if any(heads) else []
    return ["<table>", *head, *(f"<tr>{cells('td', row)}</tr>" for row in rows), "</table>"]


def _problems(problems: Sequence[ProblemStatus]) -> list[str]:
    if not problems:
        return ['<p class="good">Nothing is wrong now.</p>']
    items = (
        f'<li class="problem"><b>{_text(each.text)}</b><br>{_text(each.served)}<br>{_text(each.hint)}</li>'
        for each in problems
    )
    return [f"<h2>{show_count(len(problems), 'problem')}</h2>", '<ul class="problems">', *items, "</ul>"]


def _rates(rates: Mapping[str, Sequence[float]], activity: ActivityStatus, period_s: float) -> list[str]:
    highest = max((max(values, default=0.0) for values in rates.values()), default=0.0)
    count = max(map(len, rates.values()), default=0)
    now = {"cache": activity.cache_bytes_s, "p2p": activity.p2p_bytes_s, "store": activity.store_bytes_s}
    legend = [
        [f'<span class="key {way}"></span>{name}', f"{show_size_roughly(now[way])}/s", _highest(rates.get(way, ()))]
        for way, name in _WAYS.items()
    ]
    itself = (
        f"The kernel reads files that are whole in the cache by itself ({activity.passthrough_opens_s:.3g} opens/s): "
        "how many bytes it reads is not known."
    )
    return [
        "<h2>Bytes per second, by way</h2>",
        *(picture(rates, highest, count * period_s) if count > 1 else ['<p class="faint">No rates yet.</p>']),
        *_table(("", "now", "highest"), legend, numbers=2),
        *([f'<p class="faint">{itself}</p>'] if activity.passthrough else []),
    ]


def _highest(values: Sequence[float]) -> str:
    return f"{show_size_roughly(max(values, default=0.0))}/s"


def picture(rates: Mapping[str, Sequence[float]], highest: float, span_s: float) -> list[str]:
    """The lines of all ways in one scale, as SVG."""
    count = max(map(len, rates.values()))
    top, bottom = 18, _HEIGHT - 18

    def points(values: Sequence[float]) -> str:
        first = count - len(values)
        return " ".join(
            f"{(first + index) * _WIDTH / (count - 1):.1f},{bottom - (bottom - top) * value / (highest or 1.0):.1f}"
            for index, value in enumerate(values)
        )

    grid = [f'<line class="grid" x1="0" x2="{_WIDTH}" y1="{y}" y2="{y}"/>' for y in (top, (top + bottom) // 2, bottom)]
    return [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="bytes per second, by way">',
        *grid,
        f'<text x="0" y="{top - 5}">{show_size_roughly(highest)}/s</text>',
        f'<text x="0" y="{_HEIGHT - 3}">{show_span(span_s)} ago</text>',
        f'<text x="{_WIDTH}" y="{_HEIGHT - 3}" text-anchor="end">now</text>',
        *(f'<polyline class="{way}" points="{points(rates[way])}"/>' for way in _WAYS if rates.get(way)),
        "</svg>",
    ]


def _waiting(account: MountStatus, activity: ActivityStatus) -> list[str]:
    if not activity.in_flight:
        return ["<h2>Requests that wait</h2>", '<p class="faint">None.</p>']
    waiting = sum(activity.waiting_reads.values())
    said = f"{show_count(activity.in_flight, 'request')}, among them {show_count(waiting, 'read')} of "
    said += show_count(len(activity.waiting_reads), "user")
    rows = [
        [_text(each.operation), _text(_model_of(each.path, account)), f"{each.waited_s:.1f} s"]
        for each in activity.oldest_requests
    ]
    table = _table(("oldest", "in model", "waits for"), rows, numbers=1)
    return ["<h2>Requests that wait</h2>", f"<p>{said}.</p>", *table]


def _model_of(path: str, account: MountStatus) -> str:
    """The repository and model of a path in the mount, and nothing of the rest."""
    repository, _, below = path.partition("/") if any(each.name for each in account.repositories) else ("", "", path)
    first, slash, _ = below.partition("/")
    return "/".join(filter(None, (repository, first if slash else ""))) or "."


def _models(activity: ActivityStatus) -> list[str]:
    rows = [
        [
            _text("/".join(filter(None, (each.repository, each.model)))),
            f"{show_size_roughly(each.read_bytes_s)}/s",
            f"{show_size_roughly(each.fetched_bytes_s)}/s",
            f"{show_size_roughly(each.cached_bytes)} of {show_size_roughly(each.size_bytes)}",
        ]
        for each in activity.models
    ]
    if not rows:
        return []
    return ["<h2>Models with most bytes lately</h2>", *_table(("model", "read", "fetched", "cached"), rows, numbers=3)]


def _repositories(account: MountStatus) -> list[str]:
    rows = [
        [
            _text(each.label),
            f'<span class="{"good" if each.is_up else "bad"}">{_text(each.state)}</span>',
            {"origin": "from the store", "proxy": "by dfdaemon's proxy", "socket": "by dfdaemon's socket"}[each.way],
            show_size_roughly(each.read_bytes),
            show_size_roughly(each.traffic.fetched_bytes),
        ]
        for each in account.repositories
    ]
    heads = ("repository", "store", "large files come", "read since start", "fetched")
    return ["<h2>Repositories</h2>", *_table(heads, rows, numbers=2)]


def _cache(account: MountStatus) -> list[str]:
    cache = account.cache
    share = cache.used_bytes / cache.limit_bytes if cache.limit_bytes else 0.0
    reads = cache.hits + cache.misses
    rows = [
        [
            f'<meter min="0" max="1" value="{min(1.0, share):.3f}"></meter>',
            f"{show_size_roughly(cache.used_bytes)} of {show_size_roughly(cache.limit_bytes)}",
            f"{share:.0%}",
        ],
        [
            "free on its disk",
            f"{show_size_roughly(cache.free_bytes)}, {show_size_roughly(cache.min_free_bytes)} stay free",
            "",
        ],
        ["reads that found all their bytes", f"{cache.hits} of {reads}", f"{cache.hits / reads:.0%}" if reads else ""],
        ["evicted since start", show_count(cache.evicted_files, "file"), ""],
    ]
    return ["<h2>Cache</h2>", *_table(("", "", ""), rows, numbers=2)]


def _daemon(account: MountStatus) -> list[str]:
    fuse, movers, takeover = account.fuse, account.movers, account.takeover
    rows = [
        [
            "open",
            f"{show_count(fuse.open_files, 'file')}, {show_count(fuse.open_directories, 'directory', 'directories')}",
        ],
        [
            "known",
            f"{show_count(account.tree.files, 'file')}, {show_count(account.tree.directories, 'directory', 'directories')}",
        ],
        ["memory", show_size_roughly(account.rss_bytes)],
        [
            "movers",
            f"{movers.processes} of {movers.processes_limit}, {show_count(movers.jobs, 'job')}, {movers.lost} lost",
        ],
        [
            "takeover",
            _text(takeover.off and "none")
            or f"{show_count(takeover.restarts, 'restart')}, {show_count(takeover.upgrades, 'upgrade')}",
        ],
    ]
    return ["<h2>Daemon</h2>", *_table(("", ""), rows)]
