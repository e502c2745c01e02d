"""The start of a supervisor: the command that has read the settings becomes it, and its child the
first worker.

So the first worker reads the settings and imports its libraries once. Called by the command line,
in a process with one thread.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from d7yfs.host import process
from d7yfs.host.descriptor_store import StoredSession
from d7yfs.host.handed_session import HandedSession, make_session_files
from d7yfs.host.launch import READY_FD_VARIABLE, Readiness
from d7yfs.supervisor.channel import Channel
from d7yfs.supervisor.link import SupervisorLink
from d7yfs.supervisor.plan import SYSTEMD_VARIABLES, FirstWorker, Plan, supervisor_command


def become_supervised(
    plan: Plan, environ: MutableMapping[str, str], stored: StoredSession | None = None
) -> SupervisorLink:
    """Make this process a supervisor, which never returns, and return in the first worker. That still
    has to become the workers' user, if they have one. `stored`: a connection to go on with."""
    session_fd, journal_fd = stored or make_session_files()
    channel, theirs = Channel.make_pair()
    readiness = Readiness(dict(environ))
    if plan.split is not None:
        process.ask_to_be_spared()  # the workers may not
    pid = os.fork()
    if pid:
        first = FirstWorker(pid, channel.socket.fileno(), session_fd, journal_fd)
        plan_fd = plan._replace(first=first).write()
        ready_fd = environ.get(READY_FD_VARIABLE, "")
        control = [plan.split.control_fd] if plan.split is not None else []
        for fd in (plan_fd, *first[1:], *control, *([int(ready_fd)] if ready_fd else [])):
            os.set_inheritable(fd, True)
        command = supervisor_command(plan_fd)
        os.execve(command[0], command, environ)  # noqa: S606
    os.setsid()  # Ctrl-C in a terminal is the supervisor's
    channel.socket.close()
    if ready_fd := environ.pop(READY_FD_VARIABLE, ""):
        os.close(int(ready_fd))
    for name in SYSTEMD_VARIABLES:
        environ.pop(name, None)
    about = plan.describe_for_worker(theirs.fileno(), readiness)
    return SupervisorLink(Channel(theirs), HandedSession(session_fd, journal_fd, plan.resumed + 1), about)
