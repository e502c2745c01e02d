"""A mount point as `d7yfs check` finds it: a running mount of ours, one that hangs or is dead, another
user's, or another kind of file system.

Owns how these are told apart. It is never decided by a look from this process, which a mount that
hangs would hold up: the mount table tells of the mount, the control socket of the daemon. A mount is
dead only where the kernel says so (ENOTCONN), or where nobody listens on its socket any more.

A client's part, synchronous. The daemon's part is `live_check`.
"""

from __future__ import annotations

import errno
import os
import pwd
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from d7yfs import __version__
from d7yfs.check.findings import Finding, Severity, failed, ok, warning
from d7yfs.control import control_socket
from d7yfs.control.control_socket import NoAnswer
from d7yfs.errors import MountError
from d7yfs.host import mount_table, process
from d7yfs.host.mount_table import FSTYPE, Mount
from d7yfs.stats.status import HealthStatus, MountStatus, parse

_PROBE = "mount"
_ANSWER_S = 5.0
"""The longest wait for the daemon's account: it never waits for a store."""
_HEALTH_S = 17.0
"""Longer than a daemon waits for its mount."""


@dataclass(frozen=True, slots=True)
class LiveMount:
    """The mount at a place, as far as it can be told; `status` only of a daemon that answers."""

    point: Path
    findings: tuple[Finding, ...]
    status: MountStatus | None = None


def look_at(point: Path, source: str | None = None) -> LiveMount | None:
    """Tell what is mounted at `point`; None for nothing. `source`: somebody would mount that there
    (`name_source`); then None also for another kind of file system, which may be mounted on."""
    mount = mount_table.mounted_at(point)
    if mount is None and source is None:
        return _explain_place(point)
    if mount is None or (source is not None and mount.fstype != FSTYPE):
        return None
    if mount.fstype != FSTYPE:
        said = f"{point} is no mount of d7yfs, but of another kind: {mount.fstype} of {mount.source}"
        return LiveMount(point, (failed(_PROBE, said, "name a repository to test a mount there"),))
    path = control_socket.socket_path(point)
    for is_last in (False, True):
        began_at = time.perf_counter()
        try:
            status = parse(MountStatus, control_socket.ask(path, "status", timeout_s=_ANSWER_S))
        except NoAnswer:
            trouble = mount_table.stat_errno(point) if not control_socket.listener_pid(path) else errno.ETIMEDOUT
            if trouble == 0 and control_socket.listener_pid(path) and not is_last:
                continue  # the next worker has taken over meanwhile
            return LiveMount(point, (_explain_silence(mount, path, trouble, wants_to_mount=source is not None),))
        took_ms = (time.perf_counter() - began_at) * 1000
        return LiveMount(point, tuple(_describe(mount, source, status, took_ms, path)), status)
    return None


def _explain_place(point: Path) -> LiveMount | None:
    """A place inside of a mount of ours; None for any other where nothing is mounted."""
    try:
        above, _ = mount_table.containing(point)
    except MountError:
        return None
    return LiveMount(point, (failed(_PROBE, f"{point} lies in the mount at {above}", f"run d7yfs check {above}"),))


def name_source(urls: Iterable[tuple[str, object]]) -> str:
    """The repositories of a mount, by name and URL in its normal form, whatever was written."""
    return ", ".join(f"{name}={url}".removeprefix("=") for name, url in urls)


def _describe(mount: Mount, source: str | None, status: MountStatus, took_ms: float, path: Path) -> Iterator[Finding]:
    """The findings on a daemon that answers, without those on its stores."""
    point = mount.point
    mounted = name_source((each.name, each.url) for each in status.repositories)
    answers = f"answers in {max(1, round(took_ms))} ms"
    said = f"{point}: already mounted by pid {status.pid}, {answers}: {mounted}"
    try:
        alive = parse(HealthStatus, control_socket.ask(path, "health", timeout_s=_HEALTH_S)).alive
    except MountError:
        alive = False
    if alive is False:
        hint = f"see its log ({status.log}); d7yfs umount --force {point} fails its readers and takes it away"
        yield failed(_PROBE, f"{point}: the daemon (pid {status.pid}) answers, but not reads of the mount", hint)
    else:
        yield ok(_PROBE, said)
    # A helper's mount has the helper's name in the mount table.
    if source not in (None, mounted):
        said = f"{point} is mounted from {mounted}, and not from {source}"
        yield failed(_PROBE, said, f"choose another directory, or unmount it first: d7yfs umount {point}")
    if status.version != __version__:
        said = f"the mount runs d7yfs {status.version}, and {__version__} is installed"
        yield warning("version", said, f"d7yfs upgrade {point} puts it in place")
    for problem in status.problems:
        trouble = failed if problem.blocks_reads else warning
        yield trouble("problem", f"{problem.text}: {problem.served}", problem.hint)
    for text in status.warnings:
        yield warning("configuration", text)


def _explain_silence(mount: Mount, path: Path, trouble: int, *, wants_to_mount: bool) -> Finding:
    """The finding on a mount of d7yfs whose daemon does not answer here; `trouble`: the errno of a stat
    of it."""
    point, source = mount.point, mount.source
    pid = control_socket.listener_pid(path)
    is_abandoned = control_socket.is_abandoned(path)
    if trouble == errno.ENOTCONN or (trouble == errno.ETIMEDOUT and is_abandoned):
        said = f"{point} is a dead mount of {source}: its daemon has ended"
        if wants_to_mount:
            return warning(_PROBE, said, "a new mount cleans it up")
        return failed(_PROBE, said, f"mount it again, which cleans up, or d7yfs umount {point}")
    if not path.exists() and mount.owner not in (None, os.geteuid()):
        said = f"{point}: {source} is mounted by {_name(mount.owner)}, who alone can ask its daemon"
        if wants_to_mount:
            return failed(_PROBE, said, "choose another directory")
        return warning(_PROBE, said, "run d7yfs check as that user")
    if trouble == errno.ETIMEDOUT:
        stopped = process.state_of(pid) in ("T", "t") if pid else False
        who = f"its daemon (pid {pid})" if pid else "its daemon"
        said = f"{point}: {source} is mounted, and {who} does not answer within {_ANSWER_S:g} s"
        said += ": it is stopped" if stopped else ""
        go_on = f"kill -CONT {pid} lets it go on" if stopped else "see its log, and d7yfs doctor"
        return failed(_PROBE, said, f"{go_on}; d7yfs umount --force {point} fails its readers and takes it away")
    said = f"{point}: {source} is mounted, and its daemon has no control socket here ({path})"
    hint = f"it runs in a container, or with another {control_socket.RUNTIME_VARIABLE}: run d7yfs check there"
    return (failed if wants_to_mount else warning)(_PROBE, said, hint)


def compare_settings(asked: Mapping[str, str], status: MountStatus) -> Iterator[Finding]:
    """Warn of settings of this command (`asked`, in words) that the running mount does not have."""
    other = [
        f"{name} = {value} (the mount has {found.value})"
        for name, value in asked.items()
        if (found := status.settings.get(name)) is not None
        and found.value != value
        and name.rpartition(".")[2] != "url"
    ]
    if other:
        said = f"not tried, because the mount runs with its own settings: {', '.join(other)}"
        yield warning("settings", said, "to try them, leave out the directory, or name one where nothing is mounted")


def ask_daemon(live: LiveMount) -> Iterator[Finding | str]:
    """The findings of the daemon on its stores and proxies, as they come; and lines that say for what it
    waits meanwhile. Raises MountError."""
    with closing(control_socket.follow(control_socket.socket_path(live.point), "check")) as replies:
        for reply in replies:
            if (found := reply.get("finding")) is not None:
                names = tuple(found.get("names", ()))  # an earlier release's daemon has none
                yield Finding(found["probe"], Severity(found["verdict"]), found["said"], found["hint"], names)
            elif (text := reply.get("waits")) is not None:
                yield str(text)


def _name(uid: int | None) -> str:
    try:
        return f"{pwd.getpwuid(uid or 0).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"
