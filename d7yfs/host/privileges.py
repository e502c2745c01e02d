"""The privileges of a process: the user that it becomes, and the capabilities that it keeps.

With `--worker-user` the supervisor stays root, with few capabilities, and its workers run as that user,
without any. Defaults that depend on the user are those of the one who mounts (`mounter`).

Used by the command line, the settings, and by supervisors and workers. The standard library alone.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Collection, MutableMapping
from pathlib import Path
from typing import NamedTuple, Self

from d7yfs.errors import ConfigError
from d7yfs.host import libc

_CAP_DAC_READ_SEARCH, _CAP_KILL, _CAP_SETGID, _CAP_SETUID, _CAP_SETPCAP, CAP_SYS_ADMIN = 2, 5, 6, 7, 8, 21
SUPERVISING = (CAP_SYS_ADMIN, _CAP_SETUID, _CAP_SETGID, _CAP_SETPCAP, _CAP_KILL, _CAP_DAC_READ_SEARCH)
"""The capabilities that a supervisor keeps (linux/capability.h). SYS_ADMIN mounts, unmounts and registers cached files.
SETUID, SETGID and SETPCAP start workers of another user, KILL ends them. DAC_READ_SEARCH reaches mount
points below directories of other users; with SETUID it could do that anyway."""

_PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 24, 38, 47, 4  # linux/prctl.h
_CAPABILITY_VERSION = 0x20080522  # _LINUX_CAPABILITY_VERSION_3
_CAPABILITIES = 64
_NO_HOME = "/nonexistent"
_FAILED = 127
_OF_A_SESSION = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME")

_mounter: tuple[int, int] | None = None


class WorkerUser(NamedTuple):
    """The user as whom workers run."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str

    @classmethod
    def find(cls, text: str) -> Self:
        """The user with this name or number. A number without an account is a user without groups,
        whose own group has that number, too. Raises ConfigError."""
        import pwd  # only here: the supervisor is small without

        is_number = text.isdecimal()
        try:
            entry = pwd.getpwuid(int(text)) if is_number else pwd.getpwnam(text)
            groups = tuple(os.getgrouplist(entry.pw_name, entry.pw_gid))
            found = cls(entry.pw_uid, entry.pw_gid, groups, entry.pw_name, entry.pw_dir)
        except (KeyError, OverflowError):
            if not is_number or int(text) >= (1 << 32) - 1:
                raise ConfigError(
                    f"--worker-user: there is no user {text!r}",
                    hint=f"make it: useradd --system --shell /usr/sbin/nologin {text}" if not is_number else "",
                ) from None
            found = cls(int(text), int(text), (), text, _NO_HOME)
        if not found.uid:
            raise ConfigError(
                f"--worker-user: {text} is root, who has every privilege", hint="name another user, or leave it out"
            )
        return found


def mounter() -> tuple[int, int]:
    """Uid and gid of the user who mounts: this process's, unless it is a worker of another user."""
    return _mounter if _mounter is not None else (os.geteuid(), os.getegid())


def note_mounter(uid: int, gid: int) -> None:
    """Remember who mounts, in a worker that runs as another user."""
    global _mounter  # it is as global as the user of the process
    _mounter = uid, gid


def is_mounter_root() -> bool:
    """True if root mounts."""
    return mounter()[0] == 0


def capabilities(kind: str, status: Path = Path("/proc/self/status")) -> int:
    """The capabilities of this process in its user namespace, one bit each: those permitted (CapPrm) or
    effective (CapEff). Raises OSError, ValueError and IndexError if that cannot be told."""
    return int(status.read_text().partition(f"{kind}:")[2].split()[0], 16)


def become(user: WorkerUser, environ: MutableMapping[str, str]) -> None:
    """Make this process one of `user` for good, without capabilities and the means to get any. For
    root, with one thread. `environ` gets the user's home. Raises OSError."""
    note_mounter(os.geteuid(), os.getegid())
    _bound(())
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    _set_capabilities(())
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    for name in _OF_A_SESSION:
        environ.pop(name, None)
    environ.update({"HOME": user.home, "USER": user.name, "LOGNAME": user.name})


def keep_for_supervising() -> None:
    """Drop every capability but those of a supervisor, here and in all children. Raises OSError."""
    held = capabilities("CapPrm")
    kept = [each for each in SUPERVISING if held >> each & 1]
    _bound(kept)
    _set_capabilities(kept)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def spawn(user: WorkerUser, command: list[str], environ: MutableMapping[str, str]) -> int:
    """Start `command` as `user` without capabilities, in a process group of its own and in `/`; returns
    its pid. For a process with one thread. Raises OSError, also if it cannot be executed."""
    told_fd, tell_fd = os.pipe()
    pid = os.fork()
    if not pid:
        number = errno.EIO
        try:
            os.setpgid(0, 0)
            become(user, environ)
            os.chdir("/")
            os.execve(command[0], command, environ)  # noqa: S606
        except OSError as error:
            number = error.errno or number
        finally:
            os.write(tell_fd, str(number).encode())
            os._exit(_FAILED)
    os.close(tell_fd)
    with os.fdopen(told_fd, "rb") as pipe:
        said = pipe.read()
    if said:
        os.waitpid(pid, 0)
        raise OSError(int(said), os.strerror(int(said)))
    return pid


def _bound(kept: Collection[int]) -> None:
    """Let neither this process nor any program that it executes gain other capabilities."""
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    for number in range(_CAPABILITIES):
        if number not in kept:
            try:
                _prctl(_PR_CAPBSET_DROP, number)
            except OSError as error:
                if error.errno != errno.EINVAL:  # this kernel has no such capability
                    raise


def _set_capabilities(kept: Collection[int]) -> None:
    """capset(2): what is permitted and effective; nothing is inheritable."""
    bits = sum(1 << each for each in kept)
    low, high = bits & 0xFFFFFFFF, bits >> 32
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    data = (ctypes.c_uint32 * 6)(low, low, 0, high, high, 0)
    libc.call("capset", header, data)


def _prctl(option: int, argument: int) -> None:
    libc.call("prctl", option, ctypes.c_ulong(argument), 0, 0, 0)
