"""The types of options: how each is read from text, the environment or TOML, and how it is shown
again. Pure.

A parser takes the content of a flag, a variable (text) or TOML (a typed value). It raises a
ValueError whose message completes "VALUE …", says what is allowed and never repeats the value,
which may hold a password.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from d7yfs.config.globs import Globs
from d7yfs.config.markers import Markers
from d7yfs.config.p2p import P2p
from d7yfs.config.size_bound import SizeBound
from d7yfs.config.url import normal_endpoint

SIZE_ALLOWED = (
    "bytes, or a number with K, M, G or T (powers of 1024; KiB, MiB, GiB, TiB mean the same), such as 50GiB or 500M"
)
DURATION_ALLOWED = "seconds, or numbers with ms, s, m, h, d or w, such as 30s, 5min or 1h30m"
FOREVER = "forever"
PERCENT_ALLOWED = "a number from 0 to 100, with or without %, such as 0.4%"

_NUMBER = r"([0-9]{1,20}(?:\.[0-9]{1,20})?)\s*"
_SIZE = re.compile(_NUMBER + r"(?:([KMGT])i?)?B?", re.IGNORECASE)
_DURATION_PART = re.compile(_NUMBER + r"(ms|s|m|h|d|w)?[a-z]*\s*", re.IGNORECASE)
_DURATION = re.compile(
    _NUMBER + rf"|(?:{_NUMBER}(?:ms|msec|s|secs?|seconds?|m|mins?|minutes?|h|hours?|d|days?|w|weeks?)\s*)+",
    re.IGNORECASE,
)
"""systemd.time(7) has these units, too."""
_PERCENT = re.compile(_NUMBER + "%?")
_SIZE_FACTORS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_DURATION_MS = {"ms": 1, "": 1000, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_MAX_SIZE_BYTES = 1 << 62
_MAX_DURATION_S = 10 * 365 * 86400
_MOST_OPEN_WAIT_S = 10.0


def _show(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of option: how its value is read from text or TOML, and how it is shown."""

    metavar: str
    parse: Callable[[object], object]
    """Raises ValueError (see the module)."""
    show: Callable[[object], str] = _show
    unset: object = ""
    """The default of its options that have no other."""
    choices: tuple[str, ...] = ()


def parse_size(value: object) -> int:
    """Bytes in an int or in text such as `20GiB`; part of a byte is dropped. Raises ValueError."""
    match = _measure(_SIZE, value, f"a size; allowed: {SIZE_ALLOWED}")
    size_bytes = int(Decimal(match[1]) * _SIZE_FACTORS[(match[2] or "").upper()])
    if size_bytes > _MAX_SIZE_BYTES:
        raise ValueError("is larger than any disk; allowed: up to 4194304T")
    return size_bytes


def parse_size_bound(value: object) -> SizeBound:
    """A size as `parse_size` reads it, a percentage such as `50%`, or one of each with a comma between
    them. Raises ValueError."""
    parts = value.split(",") if isinstance(value, str) else [value]
    percents = [each for each in parts if isinstance(each, str) and each.strip().endswith("%")]
    sizes = [each for each in parts if each not in percents]
    if len(percents) > 1 or len(sizes) > 1:
        raise ValueError("is not one size and one percentage; allowed: such as 200GiB, 50%, or 50%,200GiB")
    try:
        size_bytes = parse_size(sizes[0]) if sizes else None
    except ValueError as error:
        raise ValueError(f"{error}; or a percentage of the disk, such as 50% or 50%,200GiB") from None
    return SizeBound(size_bytes, parse_percent(percents[0]) if percents else None)


def parse_duration(value: object) -> float:
    """Seconds in a number or in text such as `5m`. Raises ValueError."""
    text = _measure(_DURATION, value, f"a duration; allowed: {DURATION_ALLOWED}")[0]
    parts = (Decimal(part[1]) * _DURATION_MS[(part[2] or "").lower()] for part in _DURATION_PART.finditer(text))
    duration_s = float(sum(parts) / 1000)
    if duration_s > _MAX_DURATION_S:
        raise ValueError("is longer than ten years; allowed: up to 3650d")
    return duration_s


def parse_lifetime(value: object) -> float:
    """Seconds like `parse_duration`, or infinity for the word `forever`. Raises ValueError."""
    if isinstance(value, str) and value.strip().lower() == FOREVER:
        return math.inf
    try:
        return parse_duration(value)
    except ValueError as error:
        raise ValueError(f"{error}, or {FOREVER}") from None


def parse_percent(value: object) -> float:
    """Hundredths in a number or in text such as `0.4%`. Raises ValueError."""
    what = f"a percentage; allowed: {PERCENT_ALLOWED}"
    percent = float(_measure(_PERCENT, value, what)[1])
    if percent > 100:
        raise ValueError(f"is not {what}")
    return percent


def show_size(size_bytes: object) -> str:
    """The shortest exact spelling that `parse_size` reads back: `50GiB`, `1000`; empty for None."""
    if not isinstance(size_bytes, int):
        return _show(size_bytes)
    for unit in ("T", "G", "M", "K"):
        if size_bytes and size_bytes % _SIZE_FACTORS[unit] == 0:
            return f"{size_bytes // _SIZE_FACTORS[unit]}{unit}iB"
    return str(size_bytes)


def show_size_bound(bound: object) -> str:
    """The spelling that `parse_size_bound` reads back: `50%,200GiB`."""
    assert isinstance(bound, SizeBound)
    percent = [] if bound.percent is None else [show_percent(bound.percent)]
    return ",".join([*percent, *([] if bound.size_bytes is None else [show_size(bound.size_bytes)])])


def show_duration(duration_s: object) -> str:
    """Seconds with their unit, as `parse_lifetime` reads them back: `60s`, `0.5s`, `forever`."""
    assert isinstance(duration_s, float | int)
    if math.isinf(duration_s):
        return FOREVER
    return f"{Decimal(repr(duration_s)).normalize():f}s"


def show_percent(percent: object) -> str:
    """The spelling that `parse_percent` reads back: `0.4%`."""
    return f"{Decimal(repr(percent)).normalize():f}%"


def _measure(pattern: re.Pattern[str], value: object, what: str) -> re.Match[str]:
    """The match of a number or of text; the words of all else match nothing. Raises ValueError."""
    text = f"{Decimal(repr(value)):f}" if isinstance(value, float) else str(value).strip()
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(f"is not {what}")
    return match


def _text(value: object, allowed: str = "text in quotes") -> str:
    if not isinstance(value, str):
        raise ValueError(f"has the wrong type; allowed: {allowed}")
    return value


def _truth(value: object) -> bool:
    if isinstance(value, bool):
        return value
    words = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    if not isinstance(value, str) or value.lower() not in words:
        raise ValueError("is neither true nor false; allowed: true, false")
    return words[value.lower()]


def _integer(low: int, high: int, what: str) -> Callable[[object], int]:
    def parse(value: object) -> int:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value) else value
        if not isinstance(number, int) or isinstance(number, bool) or not low <= number <= high:
            raise ValueError(f"is not a {what}; allowed: a whole number from {low} to {high}")
        return number

    return parse


def _movers(value: object) -> int | None:
    return None if value == "auto" else _integer(0, 64, "number of processes, or auto")(value)


def _mode(value: object) -> int:
    # TOML's 444 and 0o444 are different integers that look alike to a user, so only text is
    # accepted.
    if not isinstance(value, str) or not re.fullmatch(r"(0o?)?[0-7]{3}", value):
        raise ValueError('is not a permission; allowed: three octal digits as text, such as "0444"')
    return int(value, 8)


def _path(value: object) -> Path:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in str(value):
        raise ValueError("is not a path; allowed: a path, where ~ is the home directory")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError("begins with ~, but there is no home directory; allowed: an absolute path") from None


def _endpoint(example: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = _text(value)
        try:
            return normal_endpoint(text) if text else ""
        except ValueError as error:
            raise ValueError(f"is not an endpoint: it {error}; allowed: such as {example}") from None

    return read


def _proxies(value: object) -> str:
    """Addresses in order of preference, separated by commas."""
    text = _text(value)
    if text.strip().lower() in ("", "none"):
        return ""
    addresses = [parse_proxy(each.strip()) for each in text.split(",")]
    if not all(addresses):
        raise ValueError("has a comma without a proxy address next to it; allowed: http://host:port,http://host:port")
    return ",".join(dict.fromkeys(addresses))


def _globs(value: object) -> Globs:
    return Globs.parse(_text(value, "text in quotes, globs separated by commas"))


def _name_globs(value: object) -> Globs:
    globs = _globs(value)
    for glob in globs.globs:
        if "/" in glob:
            raise ValueError("has a slash; allowed: globs of names, such as *.sh")
    return globs


_PROXY_ALLOWED = "allowed: http://host:port, host:port, or none"


def _http_proxy(value: object) -> str:
    text = _text(value)
    if text.lower() in ("", "none"):
        return ""
    try:
        address = normal_endpoint(text if "://" in text else f"http://{text}")
    except ValueError as error:
        raise ValueError(f"is not a proxy address: it {error}; {_PROXY_ALLOWED}") from None
    return address


def parse_proxy(value: object) -> str:
    """dfdaemon's address as `http://host[:port]`; `host:port` means http, `none` and the empty text
    mean no proxy.

    Raises ValueError (see `Kind.parse`).
    """
    text, address = _text(value), _http_proxy(value)
    if not address:
        return ""
    if not address.startswith("http://"):
        raise ValueError(f"is not a proxy address: dfdaemon's proxy speaks plain http; {_PROXY_ALLOWED}")
    if address.count("/") > 2 or ("://" not in text and ":" not in text.rpartition("]")[2]):
        raise ValueError(f"is not a proxy address; {_PROXY_ALLOWED}")
    return address


def _socket(value: object) -> str:
    text = _text(value)
    if text.lower() in ("", "none"):
        return ""
    path = text.removeprefix("unix://")
    if not path.startswith("/") or "\0" in path or path.endswith("/"):
        raise ValueError("is not the address of a socket; allowed: unix:///absolute/path, /absolute/path, or none")
    return f"unix://{path}"


def _header_text(value: object) -> str:
    text = _text(value).strip()
    if not re.fullmatch(r"[ -~]*", text):
        raise ValueError("cannot be sent; allowed: printable ASCII on one line")
    return text


def _p2p_priority(value: object) -> int:
    priority = _integer(0, 6, "priority")(value)
    if priority == 1:
        raise ValueError("makes the scheduler refuse every download; allowed: 0, 2 to 6")
    return priority


def _piece_length(value: object) -> int:
    # dfdaemon answers 400 to less. Its own lengths are powers of two up to 64 MiB, so no other is
    # requested.
    length_bytes = parse_size(value)
    if not (4 << 20 <= length_bytes <= 64 << 20 and length_bytes.bit_count() == 1):
        raise ValueError("is not a piece length; allowed: 4MiB, 8MiB, 16MiB, 32MiB, 64MiB")
    return length_bytes


def _listen(value: object) -> str:
    """`IP:PORT`, or the empty text."""
    text = _text(value).strip()
    if text.lower() in ("", "none"):
        return ""
    host, _, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    try:
        ipaddress.ip_address(bare)
        _integer(0, 65535, "port")(port)
    except ValueError:
        raise ValueError(
            "is not an address to listen on; allowed: 127.0.0.1:7717, 0.0.0.0:7717, [::]:7717, or none"
        ) from None
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def _host(value: object) -> str:
    text = _text(value).lower().strip(".")
    if text and not re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*", text):
        raise ValueError("is not a domain; allowed: such as core.chinacloudapi.cn")
    return text


def _at_least(
    low: float, parse: Callable[[object], int] | Callable[[object], float], shown: str
) -> Callable[[object], float]:
    def checked(value: object) -> float:
        number = parse(value)
        if number < low:
            raise ValueError(f"is too small; allowed: {shown} or more")
        return number

    return checked


def _open_wait(value: object) -> float:
    duration_s = parse_duration(value)
    if duration_s > _MOST_OPEN_WAIT_S:
        raise ValueError(f"is too long; allowed: {show_duration(_MOST_OPEN_WAIT_S)} or less")
    return duration_s


def one_of(*choices: str) -> Kind:
    """The kind of an option that is one of `choices`; by default the first."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in choices:
            raise ValueError(f"is unknown; allowed: {', '.join(choices)}")
        return value.lower()

    return Kind("|".join(choices), parse, unset=choices[0], choices=choices)


TEXT = Kind("TEXT", _text)
TRUTH = Kind("", _truth, unset=False)
PATH = Kind("PATH", _path, unset=None)
ENDPOINT = Kind("URL", _endpoint("https://s3.example.com:9000"))
MANAGER = Kind("URL", _endpoint("http://dragonfly-manager:8080"))
PROXIES = Kind("URL[,URL…]", _proxies)
HEADER_TEXT = Kind("TEXT", _header_text)
P2P_PRIORITY = Kind("N", _p2p_priority, unset=None)
PIECE_LENGTH = Kind("SIZE", _piece_length, show_size, unset=None)
SOCKET = Kind("URL", _socket)
HTTP_PROXY = Kind("URL", _http_proxy)
HOST = Kind("DOMAIN", _host)
LISTEN = Kind("IP:PORT", _listen, lambda value: str(value) or "none")
MODELS = Kind("N", _integer(0, 10_000, "number of models"))
SIZE = Kind("SIZE", parse_size_bound, show_size_bound)
BUFFER_SIZE = Kind("SIZE", _at_least(16 << 20, parse_size, "16MiB"), show_size)
LIFETIME = Kind("TIME", parse_lifetime, show_duration)
OPEN_WAIT = Kind("TIME", _open_wait, show_duration)
TIMEOUT = Kind("TIME", _at_least(0.1, parse_duration, "0.1s"), show_duration)
PERCENT = Kind("PERCENT", parse_percent, show_percent)
P2P = Kind("MODES", lambda value: P2p.parse(_text(value)), unset=P2p())
GLOBS = Kind("GLOB[,GLOB…]", _globs, unset=Globs())
NAME_GLOBS = Kind("NAMEGLOB[,NAMEGLOB…]", _name_globs, unset=Globs())
MARKERS = Kind("[DIRGLOB/]NAME", lambda value: Markers.parse(_text(value)), unset=Markers())
INODES = Kind("N", _integer(1000, 1_000_000_000, "number of inodes"))
COUNT = Kind("N", _integer(1, 1_000_000_000, "number of objects"))
HOSTS = Kind("N", _integer(0, 10_000_000, "number of hosts"), unset=0)
CONNECTIONS = Kind("N", _integer(1, 1024, "number of connections"))
MOVERS = Kind("N|auto", _movers, lambda value: "auto" if value is None else str(value), unset=None)
NUMERIC_ID = Kind("ID", _integer(0, (1 << 32) - 2, "numeric user or group id"))
MODE = Kind("MODE", _mode, "{:04o}".format)
