"""Runs a command under a system call filter, like systemd's `SystemCallFilter=`: python
syscall_filter.py SET… -- COMMAND…

SETs are systemd's (`systemd-analyze syscall-filter`). A system call outside of them fails with
EPERM. The kernel enforces the filter, which libseccomp loads, as in systemd.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
import sys

_ALLOW = 0x7FFF0000
_FAIL_WITH_EPERM = 0x00050000 | errno.EPERM
_UNKNOWN = -1
"""SCMP_ACT_ALLOW, SCMP_ACT_ERRNO and __NR_SCMP_ERROR in seccomp.h."""


def calls(names: list[str]) -> set[str]:
    """The system calls of these sets, and of the sets that they name."""
    shown = subprocess.run(
        ["systemd-analyze", "--no-pager", "syscall-filter"], capture_output=True, text=True, check=True
    )
    sets: dict[str, list[str]] = {}
    current: list[str] = []
    for line in shown.stdout.splitlines():
        word = line.strip()
        if line.startswith("@"):
            current = sets[word] = []
        elif word and not word.startswith("#"):
            current.append(word)
    found: set[str] = set()
    pending = list(names)
    while pending:
        for each in sets[pending.pop()]:
            (pending.append if each.startswith("@") else found.add)(each)
    return found


def load(allowed: set[str]) -> None:
    """Restrict this process and its children to these system calls."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(_FAIL_WITH_EPERM))
    for name in allowed:
        number = library.seccomp_syscall_resolve_name(name.encode())
        if number != _UNKNOWN and library.seccomp_rule_add(context, _ALLOW, number, 0):
            raise OSError(f"{name} cannot be allowed")
    if library.seccomp_load(context):
        raise OSError("the filter cannot be loaded")


if __name__ == "__main__":
    at = sys.argv.index("--")
    load(calls(sys.argv[1:at]))
    os.execvp(sys.argv[at + 1], sys.argv[at + 1 :])
