"""The text that `d7yfs doctor` writes for a bug report: versions, settings with their sources, status,
problems, the end of the log, mounts, cache, limits and FUSE.

It is one text, because whoever sends it reads it first, and whoever gets it searches in it. It is made
with a daemon that answers, one that hangs, a dead one, or none: each section has a deadline, and says
why it is empty. No secret is in it: its sources hold none, and `mask` takes out what looks like one.

A client's part, synchronous. Called by the command line.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

from d7yfs.cache import inspection
from d7yfs.config.schema import default_cache_dir
from d7yfs.config.sources import load_settings
from d7yfs.control import control_socket, live_mount
from d7yfs.errors import D7yfsError
from d7yfs.host import facts
from d7yfs.objects import printable

LOG_LINES = 400
"""Lines of each mount's log."""
_DEADLINE_S = 30.0
"""Longest wait for a section: more than a daemon that hangs is given."""
_ANSWER_S = 5.0
_MASK = "…"
_SECRET_NAME = re.compile(r"SECRET|TOKEN|PASSW|KEY|CREDENTIAL|SIGNATURE|AUTH", re.IGNORECASE)
_SECRET_BYTES = 8
"""A shorter value of a variable is no secret, and would blot out words."""
_LOOKS_SECRET = (
    re.compile(r"(?<=://)[^\s/@\"']+(?=@)"),
    re.compile(r"(?i)[?&;](?:x-\w+-)?(?:signature|credential|security-token|sig|token)=[^&\s\"']+"),
    re.compile(r"(?i)\b(?:authorization|proxy-authorization|cookie)[\"']?\s*[:=]\s*[^\n]+"),
    re.compile(r"(?i)\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"),
    re.compile(r"-----BEGIN[^-]*PRIVATE KEY-----.*?(?:-----END[^-]*-----|\Z)", re.DOTALL),
)


class _Section(NamedTuple):
    """One part of the report."""

    title: str
    text: Callable[[], str]


def write_report(points: list[Path], environ: Mapping[str, str], config: Path | None, *, names: bool) -> str:
    """The report on the mounts at `points`. Without `names` it has no log and no status, which name
    objects; the prefixes of URLs stay."""
    made = time.strftime("%Y-%m-%d %H:%M:%S %z")
    shown = [f"d7yfs doctor, {made}. Secrets are left out. " + ("Names of objects are in it." if names else "")]
    mounts = ", ".join(map(str, points)) or "none"
    shown.append(f"Mounts: {mounts}")
    for section in _sections(points, environ, config, names=names):
        shown.append(f"\n== {section.title} ==\n\n{_within(_DEADLINE_S, section.text)}")
    lines = mask("\n".join(shown), environ).split("\n")
    return "\n".join(map(printable, lines)) + "\n"


def _sections(
    points: list[Path], environ: Mapping[str, str], config: Path | None, *, names: bool
) -> Iterator[_Section]:
    yield _Section("Versions", facts.versions)
    yield _Section("FUSE", facts.fuse)
    yield _Section("FUSE mounts", facts.fuse_mounts)
    yield _Section("Limits", facts.limits)
    yield _Section("Variables of the command's environment, by name", lambda: facts.variables(environ))
    for point in points:
        yield from _OneMount(point, names=names).sections()
    yield _Section("Settings as a new mount would have them", lambda: _settings(environ, config))
    yield _Section("Cache directory of a new mount", lambda: _cache(environ, config))


class _OneMount:
    """The sections on one mount. Its daemon is asked once."""

    def __init__(self, point: Path, *, names: bool) -> None:
        self._point = point
        self._names = names
        self._path = control_socket.socket_path(point)
        self._status: dict[str, Any] = {}

    def sections(self) -> Iterator[_Section]:
        """All of them, the mount's condition first."""
        yield _Section(f"Mount {self._point}", self._condition)
        yield _Section(f"Problems of {self._point}", self._problems)
        yield _Section(f"Settings of {self._point}", self._settings)
        yield _Section(f"Cache of {self._point}", self._cache)
        yield _Section(f"Processes of {self._point}", self._processes)
        if self._names:
            yield _Section(f"Log of {self._point}", self._log)
            yield _Section(f"Status of {self._point}", self._whole_status)

    def _condition(self) -> str:
        live = live_mount.look_at(self._point)
        if live is None:
            return "nothing is mounted there"
        if live.status is not None:
            self._status = control_socket.ask(self._path, "status", timeout_s=_ANSWER_S)
        first = live.findings[0]
        return f"{first.verdict.value}: {first.said}\n{first.hint}".strip()

    def _problems(self) -> str:
        if not self._status:
            return ""
        lines = []
        for each in self._status.get("problems", []):
            words = f": {each['text']}: {each['served']}; {each['hint']}" if self._names else ""
            lines.append(f"{each['code']} since {_moment(each['since'])}{words}")
        return "\n".join(lines) or "none"

    def _settings(self) -> str:
        rows = self._status.get("settings", {})
        return "\n".join(f"{name} = {row['value']}  (from {row['from']})" for name, row in rows.items())

    def _cache(self) -> str:
        account = self._status.get("cache", {})
        return "\n".join(f"{name} = {value}" for name, value in account.items() if not isinstance(value, dict | list))

    def _processes(self) -> str:
        pids = [self._status.get("pid", 0), self._status.get("takeover", {}).get("worker_pid", 0)]
        pids.append(control_socket.listener_pid(self._path))
        return "\n\n".join(facts.describe_process(pid) for pid in dict.fromkeys(filter(None, pids)))

    def _whole_status(self) -> str:
        return json.dumps(self._status, indent=1) if self._status else ""

    def _log(self) -> str:
        pid = int(self._status.get("pid", 0)) or control_socket.listener_pid(self._path)
        place = str(self._status.get("log", "")) or _log_in(pid)
        if place.startswith("/"):
            return facts.end_of_file(Path(place), LOG_LINES)
        background = self._path.with_suffix(".log")
        if background.exists():
            return facts.end_of_file(background, LOG_LINES)
        unit = facts.unit_of(pid) if pid else ""
        matches = [f"--unit={unit}"] if unit else ["--identifier=d7yfs"]
        if not unit and place == "stderr":
            worker = self._status.get("takeover", {}).get("worker_pid", 0)
            matches = [f"_PID={each}" for each in (pid, worker) if each]
        said = facts.end_of_journal(matches, LOG_LINES)
        if place == "stderr" and not unit:
            said += f"\nIt goes to the stderr of process {pid}: whatever started that may keep it (docker logs, kubectl logs)."
        return said


def _log_in(pid: int) -> str:
    """The log file that the command of a process names; empty if it names none."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0") if pid else []
    except OSError:
        return ""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "--log-file":
            return following
        if word.startswith("--log-file="):
            return word.partition("=")[2]
    return ""


def _settings(environ: Mapping[str, str], config: Path | None) -> str:
    try:
        settings = load_settings({}, (), None, environ, config)
    except D7yfsError as error:
        return f"there are none: {error}"
    rows = [f"{name} = {row['value']}  (from {row['from']})" for name, row in settings.explain().items()]
    return "\n".join([*(f"warning: {text}" for text in settings.warnings), *rows])


def _cache(environ: Mapping[str, str], config: Path | None) -> str:
    try:
        path = load_settings({}, (), None, environ, config).config.cache_dir
    except D7yfsError:
        path = default_cache_dir(environ, root=os.geteuid() == 0)
    try:
        found, disk = path.stat(), os.statvfs(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    stored = inspection.stored(path)
    whole, used = sum(each.complete for each in stored), sum(each.in_use for each in stored)
    cached_bytes, taken_bytes = sum(each.cached_bytes for each in stored), sum(each.disk_bytes for each in stored)
    free_bytes, all_bytes = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
    return (
        f"{path}: mode {found.st_mode & 0o7777:o}, uid {found.st_uid}, gid {found.st_gid}\n"
        f"its disk: {free_bytes} of {all_bytes} bytes free, {disk.f_favail} inodes free\n"
        f"{len(stored)} versions of files, {whole} whole, {used} in use\n"
        f"{cached_bytes} bytes cached, {taken_bytes} on disk"
    )


def _within(deadline_s: float, text: Callable[[], str]) -> str:
    """The text, or why there is none. What hangs is left behind."""
    said = [f"no answer within {deadline_s:g} s"]

    def work() -> None:
        try:
            said[0] = text() or "nothing is known"
        except D7yfsError as error:
            said[0] = f"not known: {error}"
        except Exception as error:  # one section less
            said[0] = f"not known: {type(error).__name__}: {error}"

    thread = Thread(target=work, daemon=True)
    thread.start()
    thread.join(deadline_s)
    return said[0]


def mask(text: str, environ: Mapping[str, str]) -> str:
    """`text` without the values of variables that are named like secrets, and without what has the form
    of one. A second line of defence: nothing that is joined here is to hold any."""
    values = {value for name, value in environ.items() if _SECRET_NAME.search(name) and len(value) >= _SECRET_BYTES}
    for value in sorted(values, key=len, reverse=True):
        if not value.startswith("/"):  # a file's name
            text = text.replace(value, _MASK)
    for pattern in _LOOKS_SECRET:
        text = pattern.sub(_MASK, text)
    return text


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
