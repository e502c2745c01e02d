"""`d7yfs mount`: become the daemon, or start one and wait until its mount answers."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from d7yfs.cli import exit_status, report, ungrouped
from d7yfs.cli.mount_helper import UNLESS_MOUNTED, translate_options
from d7yfs.cli.options import Command, Given, settings_options
from d7yfs.cli.terminal import say
from d7yfs.config.sources import Settings
from d7yfs.errors import AccessDenied, ConfigError, D7yfsError, MountError
from d7yfs.host import descriptor_store, kernel, mount_table, privileges, process
from d7yfs.host.descriptor_store import StoredSession
from d7yfs.host.fuse_helper import HandedMount
from d7yfs.host.handed_session import HandedSession
from d7yfs.host.launch import Readiness, daemon_command, fork_daemon, launch
from d7yfs.host.privileges import WorkerUser
from d7yfs.supervisor.plan import WORKER_VARIABLE, Plan, Split

if TYPE_CHECKING:
    from d7yfs.supervisor.link import SupervisorLink

_KEYS_OF_A_SERVICE = "; variables of the service d7yfs@NAME go into /etc/d7yfs/NAME.env, as KEY=value lines (mode 0600)"


class MountCommand(Command):
    """A command that takes the options of mount(8), too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read `-o OPTION[,OPTION]…` as the flags that it stands for."""
        end = args.index("--") if "--" in args else len(args)
        spelled: list[str] = []
        rest = iter(args[:end])
        for each in rest:
            if each.startswith("-o"):
                spelled += translate_options([each[2:] or next(rest, "")])
            else:
                spelled.append(each)
        return super().parse_args(ctx, spelled + args[end:])


@click.command(cls=MountCommand)
@click.argument("arguments", nargs=-1, metavar="[NAME=]URL... [MOUNTPOINT]")
@click.option(
    "-o", metavar="OPTION[,OPTION]…", expose_value=False, help="Settings as in fstab: ro,allow_other,proxy=URL."
)
@click.option("-v", "--verbose", is_flag=True, help="The same as --log-level debug.")
@click.option(UNLESS_MOUNTED, is_flag=True, hidden=True)  # of mount(8)'s helper
@settings_options()
@click.pass_context
def mount(ctx: click.Context, arguments: tuple[str, ...], verbose: bool, unless_mounted: bool, given: Given) -> None:
    """Mount model repositories as a directory.

    One URL becomes the directory itself; several, each as NAME=URL, become its top-level
    directories. Without --foreground, the command returns when the mount answers, or says why it
    failed.

    \b
    URL: s3://bucket[/prefix], s3://host:port/bucket[/prefix] (plain http),
         s3://http://host:port/..., s3://https://host:port/...;
         gs://, oss:// and obs:// likewise; as://account/container[/prefix]

    \b
    d7yfs mount s3://models/triton /mnt/models
    d7yfs mount llm=s3://a/x vision=s3://b/y /mnt/models
    d7yfs mount --config /etc/d7yfs/config.toml --foreground
    """
    if verbose:
        given = given._replace(flags={"log_level": "debug", **given.flags})
    handed = HandedSession.take(os.environ)
    link = _take_link(handed)
    readiness = link.readiness if link is not None else Readiness(os.environ)
    # A daemon leaves its working directory; relative paths must keep their meaning.
    here = link.here if link is not None else Path.cwd()
    load = partial(given.load, *split_arguments(arguments), here=here)
    keys_hint = _KEYS_OF_A_SERVICE if readiness.is_notified else ""
    if given.credentials is not None:
        keys_hint = f"; variables were read from {here / given.credentials} (--credentials)"
    try:
        settings = load(quiet=link is not None or readiness.in_background)
        obstacle = _find_obstacle(settings)
        if handed is not None and link is None and not settings.config.foreground:
            raise MountError("a session is handed over to this process", hint="a worker runs with --foreground")
        # Only with a supervisor: where systemd has a session, the command stays in the foreground.
        session = _take_stored(settings, readiness) if handed is None and not obstacle else None
        is_command = handed is None and not readiness.in_background
        if is_command and session is None:
            if unless_mounted and _is_mounted(settings):
                return
            _prepare_mountpoint(settings)
        split = _prepare_split(settings, obstacle) if is_command else None
    except D7yfsError as error:
        readiness.tell_failed(error)
        raise
    config = settings.config
    if handed is not None or readiness.in_background or (config.foreground and obstacle):
        ctx.exit(_serve(settings, readiness, partial(load, quiet=True), handed, link, obstacle, keys_hint))
    if obstacle:
        said: dict[str, Any] | None = launch(daemon_command(sys.argv[1:]), _tell_wait)
    else:
        said = None if config.foreground else fork_daemon(_tell_wait)
    if said is None:
        process.pause_collector()
        from d7yfs.supervisor.start import become_supervised  # with trio, for which no waiting command should pay

        standby = config.takeover in ("auto", "standby")
        plan = Plan(
            *(settings.require_mountpoint(), config.mount_flags, tuple(sys.argv[1:]), str(here), standby),
            split=split,
            resumed=session.generation if session is not None else 0,
        )
        link = become_supervised(plan, os.environ, session.stored if session is not None else None)
        if split is not None:
            try:
                settings = _become_worker(split.user, partial(load, quiet=True))
            except D7yfsError as error:
                link.readiness.tell_failed(error)
                ctx.exit(exit_status(error) if link.readiness.in_background else report(error))
        ctx.exit(_serve(settings, link.readiness, partial(load, quiet=True), link.handed, link, "", keys_hint))
    for warning in said["warnings"]:
        say(f"d7yfs: warning: {warning}", err=True)
    say(said["ready"])


def _tell_wait(text: str) -> None:
    say(f"d7yfs: {text}", err=True)


def _find_obstacle(settings: Settings) -> str:
    """The reason why nobody takes over when the daemon dies; empty if somebody does. Raises
    ConfigError."""
    config = settings.config
    if config.takeover == "off":
        settings.require_mountpoint()
        return "--takeover off"
    is_handed = HandedMount.is_expected(config.fuse_helper, settings.require_mountpoint())
    obstacle = kernel.takeover_obstacle(config.fuse_engine, is_handed=is_handed)
    if obstacle and config.takeover != "auto":
        refusal = f"--takeover {config.takeover} is not possible: {obstacle}"
        raise settings.locate(ConfigError(refusal, hint="--takeover off, or auto", settings=("takeover",)))
    return obstacle


class _Resumed(NamedTuple):
    """A connection to go on with, and the last generation that served it."""

    stored: StoredSession
    generation: int


def _take_stored(settings: Settings, readiness: Readiness) -> _Resumed | None:
    """The session that systemd kept of a supervisor that was killed, if it can go on. Else its mount is
    a dead one."""
    point, is_given = settings.require_mountpoint(), "LISTEN_FDS" in os.environ
    if not is_given or (stored := StoredSession.take(os.environ, point)) is None:
        return None
    from d7yfs.fuse.journal import SessionJournal  # with the rest of the file system

    mount = mount_table.mounted_at(point)
    known = SessionJournal(stored.journal_fd).load()
    if known.generation and mount is not None and mount.source == settings.config.mount_source:
        return _Resumed(stored, known.generation)
    for message in descriptor_store.removing(point):
        readiness.notify(message)
    mount_table.abort(point)
    for fd in stored:
        os.close(fd)
    return None


def _is_mounted(settings: Settings) -> bool:
    """True if the same repositories are mounted there, and answer."""
    mount = mount_table.mounted_at(point := settings.require_mountpoint())
    is_same = mount is not None and (mount.fstype, mount.source) == (mount_table.FSTYPE, settings.config.mount_source)
    return is_same and mount_table.stat_errno(point) == 0


def _prepare_mountpoint(settings: Settings) -> None:
    """Make sure that the mount can be made, unless another program makes it. Raises MountError."""
    from d7yfs.control import control_socket

    point = settings.require_mountpoint()
    if HandedMount.is_expected(settings.config.fuse_helper, point):
        return
    if mount_table.prepare_mountpoint(point, partial(control_socket.is_abandoned, control_socket.socket_path(point))):
        say(f"d7yfs: warning: {point} was a dead mount; cleaned up", err=True)


def _prepare_split(settings: Settings, obstacle: str) -> Split | None:
    """The needs of a supervisor whose workers run as `--worker-user`; None without that option. Does for
    them what only root can. Raises D7yfsError."""
    config = settings.config
    if not config.worker_user:
        return None
    from d7yfs import logs
    from d7yfs.cache import private_directory
    from d7yfs.control import control_socket

    about = ("worker_user",)
    if os.geteuid():
        refusal = ConfigError(
            "--worker-user is for mounts of root's", hint="run as root, or leave it out", settings=about
        )
        raise settings.locate(refusal)
    if obstacle:
        hint = "leave it out, or remove the obstacle"
        raise settings.locate(ConfigError(f"--worker-user is not possible: {obstacle}", hint=hint, settings=about))
    user = WorkerUser.find(config.worker_user)
    if not config.foreground and config.log_file is None and not logs.SYSTEM_LOG.is_socket():
        raise ConfigError("there is no system log for --worker-user", hint="name a file with --log-file")
    path = control_socket.socket_path(settings.require_mountpoint())
    control_socket.prepare_runtime_directory()
    private_directory.make_for(config.cache_dir, user.uid, user.gid)
    if config.log_file is not None and not config.log_file.parent.exists():
        private_directory.make_for(config.log_file.parent, user.uid, user.gid)
    return Split(user, control_socket.listen(path).detach(), str(path), config.cache_dir.stat().st_dev)


def _become_worker(user: WorkerUser, load: Callable[[], Settings]) -> Settings:
    """Run as `user` from now on; returns the settings as that user reads them. Raises D7yfsError."""
    try:
        privileges.become(user, os.environ)
    except OSError as error:
        raise MountError(
            f"a worker cannot run as {user.name}: {error.strerror}",
            hint="that needs CAP_SETUID, CAP_SETGID and CAP_SETPCAP; or leave --worker-user out",
        ) from error
    for path, mode in ((Path(sys.executable), os.X_OK), (Path(__file__), os.R_OK)):
        if not os.access(path, mode):
            raise MountError(f"user {user.name} cannot use {path}", hint="install d7yfs where every user can read it")
    try:
        settings = load()
    except ConfigError as error:
        raise ConfigError(f"as user {user.name} (--worker-user): {error.message}", hint=error.hint) from error
    log_file = settings.config.log_file
    if log_file is not None and not os.access(log_file.parent, os.W_OK | os.X_OK):
        raise MountError(
            f"user {user.name} (--worker-user) cannot make files in {log_file.parent}",
            hint="name a log file in a directory that does not exist yet, or that is this user's",
        )
    return settings


def _take_link(handed: HandedSession | None) -> SupervisorLink | None:
    """The link to the supervisor that started this process, if one did."""
    if handed is None or WORKER_VARIABLE not in os.environ:
        return None
    from d7yfs.supervisor.link import SupervisorLink  # with trio, for which no waiting command should pay

    return SupervisorLink.take(os.environ, handed)


def split_arguments(arguments: tuple[str, ...]) -> tuple[tuple[str, ...], Path | None]:
    """Repositories first, the mount point last; only a repository contains `://`."""
    if arguments and "://" not in arguments[-1]:
        return arguments[:-1], Path(arguments[-1])
    return arguments, None


def _serve(
    settings: Settings,
    readiness: Readiness,
    read_again: Callable[[], Settings],
    handed: HandedSession | None,
    link: SupervisorLink | None,
    obstacle: str,
    keys_hint: str,
) -> int:
    """Run the daemon in this process; return the exit status. `keys_hint` is for a refusal of keys."""
    process.pause_collector()
    # These imports cost start-up time that the waiting command need not pay.
    import trio

    from d7yfs import logs
    from d7yfs.control import control_socket
    from d7yfs.daemon import run
    from d7yfs.supervisor.link import Role

    config = settings.config
    try:
        background, log_file = None, config.log_file
        is_split = link is not None and link.is_split  # then that directory is root's
        if readiness.in_background:
            if not is_split:
                control_socket.prepare_runtime_directory()
            point = settings.require_mountpoint()
            background = control_socket.socket_path(point).with_suffix(".log")
            if log_file is None and not privileges.is_mounter_root():
                log_file = logs.file_of_user(point, os.environ)
        try:
            logs.configure(config.log_level, config.log_format, log_file, background=background)
        except OSError as error:
            raise MountError(
                f"the log file {error.filename} cannot be written: {error.strerror}", hint="see --log-file"
            ) from error
        with ungrouped():
            if not link and config.takeover == "auto":
                logging.getLogger(__name__).info("nobody takes over if this process dies: %s", obstacle)
            stderr = log_file or (background if not is_split else None)
            trio.run(run, settings, read_again, Role(readiness, handed, link, obstacle, stderr))
    except D7yfsError as error:
        if isinstance(error, AccessDenied):
            error.hint += keys_hint
        readiness.tell_failed(error)
        return exit_status(error) if readiness.in_background else report(error)
    return 0
