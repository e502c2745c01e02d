"""The types of options: how each is read from text, the environment or TOML, and how it is shown again. Pure.

A parser takes what a flag, a variable (text) or TOML (a typed value) holds. It raises ValueError whose message completes
"VALUE …", says what is allowed and never repeats the value, which may hold a password.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from d7yfs.config import units
from d7yfs.config.globs import Globs
from d7yfs.config.markers import Markers
from d7yfs.config.p2p import P2p
from d7yfs.config.url import normal_endpoint


@dataclass(frozen=True, slots=True)
class Kind:
    """A type of option: how it is read from text or TOML, and how it is shown again."""

    metavar: str
    parse: Callable[[object], object]
    """Raises ValueError; the message completes "VALUE …" and says what is allowed. Never repeats the value."""
    show: Callable[[object], str] = str
    choices: tuple[str, ...] = ()


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("has the wrong type; allowed: text in quotes")
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
            raise ValueError(f"is no {what}; allowed: a whole number from {low} to {high}")
        return number

    return parse


def _mode(value: object) -> int:
    # TOML's 444 and 0o444 are different integers that look alike to whoever writes them, so only text is taken.
    if not isinstance(value, str) or not re.fullmatch(r"(0o?)?[0-7]{3}", value):
        raise ValueError('is no permission; allowed: three octal digits as text, such as "0444"')
    return int(value, 8)


def _path(value: object) -> Path:
    if not isinstance(value, str | os.PathLike) or not os.fspath(value) or "\0" in str(value):
        raise ValueError("is no path; allowed: a path, where ~ is the home directory")
    try:
        return Path(value).expanduser()
    except RuntimeError:
        raise ValueError("begins with ~, but there is no home directory; allowed: an absolute path") from None


def _endpoint(value: object) -> str:
    text = _text(value)
    try:
        return normal_endpoint(text) if text else ""
    except ValueError as error:
        raise ValueError(f"is no endpoint: it {error}; allowed: such as https://s3.example.com:9000") from None


def _proxies(value: object) -> str:
    """Addresses in order of preference, with a comma between them."""
    text = _text(value)
    if text.strip().lower() in ("", "none"):
        return ""
    addresses = [parse_proxy(each.strip()) for each in text.split(",")]
    if not all(addresses):
        raise ValueError("has a comma and no proxy address beside it; allowed: http://host:port,http://host:port")
    return ",".join(dict.fromkeys(addresses))


_PROXY_ALLOWED = "allowed: http://host:port, host:port, or none"


def _http_proxy(value: object) -> str:
    text = _text(value)
    if text.lower() in ("", "none"):
        return ""
    try:
        address = normal_endpoint(text if "://" in text else f"http://{text}")
    except ValueError as error:
        raise ValueError(f"is no proxy address: it {error}; {_PROXY_ALLOWED}") from None
    return address


def parse_proxy(value: object) -> str:
    """dfdaemon's address as `http://host[:port]`; `host:port` means http, `none` and the empty text mean no proxy.

    Raises ValueError (see `Kind.parse`).
    """
    text, address = _text(value), _http_proxy(value)
    if not address:
        return ""
    if not address.startswith("http://"):
        raise ValueError(f"is no proxy address: dfdaemon's proxy speaks plain http; {_PROXY_ALLOWED}")
    if address.count("/") > 2 or ("://" not in text and ":" not in text.rpartition("]")[2]):
        raise ValueError(f"is no proxy address; {_PROXY_ALLOWED}")
    return address


def _socket(value: object) -> str:
    text = _text(value)
    if text.lower() in ("", "none"):
        return ""
    path = text.removeprefix("unix://")
    if not path.startswith("/") or "\0" in path or path.endswith("/"):
        raise ValueError("is no address of a socket; allowed: unix:///absolute/path, /absolute/path, or none")
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
    # dfdaemon answers 400 to less. Its own are powers of two up to 64 MiB, which is why no other is asked of it.
    length_bytes = units.parse_size(value)
    if not (4 << 20 <= length_bytes <= 64 << 20 and length_bytes.bit_count() == 1):
        raise ValueError("is no piece length; allowed: 4MiB, 8MiB, 16MiB, 32MiB, 64MiB")
    return length_bytes


def _listen(value: object) -> str:
    """`IP:PORT`, or nothing."""
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
            "is no address to listen on; allowed: 127.0.0.1:7717, 0.0.0.0:7717, [::]:7717, or none"
        ) from None
    return f"[{bare}]:{port}" if ":" in bare else f"{bare}:{port}"


def _host(value: object) -> str:
    text = _text(value).lower().strip(".")
    if text and not re.fullmatch(r"[a-z0-9-]+(\.[a-z0-9-]+)*", text):
        raise ValueError("is no domain; allowed: such as core.chinacloudapi.cn")
    return text


def _at_least(
    low: float, parse: Callable[[object], int] | Callable[[object], float], shown: str
) -> Callable[[object], float]:
    def checked(value: object) -> float:
        number = parse(value)
        if number < low:
            raise ValueError(f"is too little; allowed: {shown} or more")
        return number

    return checked


def one_of(*choices: str) -> Kind:
    """A word out of `choices`."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in choices:
            raise ValueError(f"is not known; allowed: {', '.join(choices)}")
        return value.lower()

    return Kind("|".join(choices), parse, choices=choices)


def _show_number(value: object) -> str:
    return "" if value is None else str(value)


def _show_size(value: object) -> str:
    return units.show_size(value) if isinstance(value, int) else _show_number(value)


def _show_duration(value: object) -> str:
    return units.show_duration(value) if isinstance(value, float) else str(value)


def _show_percent(value: object) -> str:
    return units.show_percent(value) if isinstance(value, float) else str(value)


def _show_mode(value: object) -> str:
    return f"{value:04o}" if isinstance(value, int) else str(value)


def _show_truth(value: object) -> str:
    return "true" if value else "false"


def _show_path(value: object) -> str:
    return "" if value is None else str(value)


TEXT = Kind("TEXT", _text)
TRUTH = Kind("", _truth, _show_truth)
PATH = Kind("PATH", _path, _show_path)
ENDPOINT = Kind("URL", _endpoint)
PROXIES = Kind("URL[,URL…]", _proxies)
HEADER_TEXT = Kind("TEXT", _header_text)
P2P_PRIORITY = Kind("N", _p2p_priority, _show_number)
PIECE_LENGTH = Kind("SIZE", _piece_length, _show_size)
SOCKET = Kind("URL", _socket)
HTTP_PROXY = Kind("URL", _http_proxy)
HOST = Kind("DOMAIN", _host)
LISTEN = Kind("IP:PORT", _listen, lambda value: str(value) or "none")
MODELS = Kind("N", _integer(0, 10_000, "number of models"))
SIZE = Kind("SIZE", units.parse_size, _show_size)
BUFFER_SIZE = Kind("SIZE", _at_least(16 << 20, units.parse_size, "16MiB"), _show_size)
LIFETIME = Kind("TIME", units.parse_lifetime, _show_duration)
TIMEOUT = Kind("TIME", _at_least(0.1, units.parse_duration, "0.1s"), _show_duration)
PERCENT = Kind("PERCENT", units.parse_percent, _show_percent)
P2P = Kind("MODES", P2p.parse)
GLOBS = Kind("GLOB[,GLOB…]", Globs.parse)
MARKERS = Kind("[DIRGLOB/]NAME", Markers.parse)
INODES = Kind("N", _integer(1000, 1_000_000_000, "number of inodes"))
COUNT = Kind("N", _integer(1, 1_000_000_000, "number of objects"))
CONNECTIONS = Kind("N", _integer(1, 1024, "number of connections"))
NUMERIC_ID = Kind("ID", _integer(0, (1 << 32) - 2, "numeric user or group id"))
MODE = Kind("MODE", _mode, _show_mode)
