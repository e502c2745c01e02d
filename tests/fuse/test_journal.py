"""The journal of a connection: whatever moment its writer is killed at, a reader finds what was
written.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from d7yfs.errors import MountError
from d7yfs.fuse import keyed_log
from d7yfs.fuse.journal import AgreedTerms, Journaled, SessionJournal
from d7yfs.fuse.keyed_log import KeyedLog
from d7yfs.fuse.succession import Succession
from d7yfs.fuse.wire import InitFlag
from d7yfs.host import kernel
from d7yfs.host.handed_session import HandedSession
from d7yfs.objects import WITHOUT_AGENT, ObjectVersion
from d7yfs.tree.inode_table import fingerprint
from d7yfs.tree.nodes import Directory, File

Model = dict[tuple[int, int], bytes]


@pytest.fixture
def fd() -> Iterator[int]:
    made = os.memfd_create("test")
    yield made
    os.close(made)


class Write(NamedTuple):
    offset: int
    data: bytes


class Step(NamedTuple):
    """One change: of a kind and number, to this content or to none."""

    kind: int
    number: int
    content: bytes | None


STEPS = st.lists(
    st.builds(Step, st.integers(1, 3), st.integers(0, 6), st.none() | st.binary(max_size=40)), min_size=1, max_size=12
)
FLUSHES = st.lists(STEPS, max_size=12)


def content_of(data: bytes) -> Model:
    """The values that a successor finds in a file with these bytes."""
    fd = os.memfd_create("image")
    try:
        os.write(fd, data)
        loaded = KeyedLog(fd).load()
        assert loaded == KeyedLog(fd).load(), "loading changes nothing"
        return {(kind, number): content for kind, found in loaded.items() for number, content in found.items()}
    finally:
        os.close(fd)


def taken(step: Step, log: KeyedLog, model: Model) -> Model:
    """The model after one more step, which the log takes, too."""
    changed = {key: content for key, content in model.items() if key != step[:2]}
    if step.content is None:
        log.strike(*step[:2])
        return changed
    log.put(step.kind, step.number, step.content)
    return {**changed, step[:2]: step.content}


@given(FLUSHES, st.data())
@settings(deadline=None, max_examples=150)
def test_killed_at_any_moment(flushes: list[list[Step]], data: st.DataObject) -> None:
    """After each write, and with any part of the next one, the log says what was written so far."""
    fd, writes = os.memfd_create("test"), list[Write]()

    def written(fd: int, view: bytes, offset: int) -> int:
        writes.append(Write(offset, bytes(view)))
        return pwrite(fd, view, offset)

    pwrite = os.pwrite
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keyed_log, "_SLACK", 3)
        patch.setattr(keyed_log, "_CHUNK_BYTES", 100)
        patch.setattr(os, "pwrite", written)
        log = KeyedLog(fd)
        log.load()
        model: Model = {}
        for steps in flushes:
            before = os.pread(fd, os.fstat(fd).st_size, 0)
            models, writes[:] = [model], []
            for step in steps:
                model = taken(step, log, model)
                models.append(model)
            log.flush()
            for number, write in enumerate(writes):
                # The first write has the steps; later ones shorten the log. The header is 16 bytes
                # in one page, which the kernel copies at once.
                cut = data.draw(st.integers(0, len(write.data))) if write.offset else len(write.data)
                image = put_into(before, Write(write.offset, write.data[:cut]))
                if number:
                    assert content_of(image) == model
                else:
                    assert content_of(image) in models
                before = put_into(before, write)
                assert content_of(before) == model
    assert content_of(os.pread(fd, os.fstat(fd).st_size, 0)) == model
    os.close(fd)


def put_into(image: bytes, write: Write) -> bytes:
    image = image.ljust(write.offset, b"\0")
    return image[: write.offset] + write.data + image[write.offset + len(write.data) :]


@given(STEPS, STEPS)
def test_a_successor_goes_on_behind_a_torn_end(first: list[Step], second: list[Step]) -> None:
    fd = os.memfd_create("test")
    log, model = KeyedLog(fd), Model()
    log.load()
    for step in first:
        model = taken(step, log, model)
    log.flush()
    os.pwrite(fd, b"\x09\0\0\0torn and more of an older record", os.fstat(fd).st_size)
    log = KeyedLog(fd)
    log.load()
    for step in second:
        model = taken(step, log, model)
    log.flush()
    assert content_of(os.pread(fd, os.fstat(fd).st_size, 0)) == model
    os.close(fd)


def test_the_log_stays_short(fd: int) -> None:
    """A million bytes come and go; the file keeps the memory of what counts, and little more."""
    log = KeyedLog(fd)
    log.load()
    for number in range(20_000):
        log.put(1, number, b"x" * 200)
        if number >= 500:
            log.strike(1, number - 500)
        log.flush()
    held_bytes = os.fstat(fd).st_blocks * 512
    assert held_bytes < 4 * 500 * 217 + (512 << 10)
    assert sorted(KeyedLog(fd).load()[1]) == list(range(19_500, 20_000))


def test_a_file_of_something_else_is_an_empty_journal(fd: int) -> None:
    os.write(fd, b"something else, and long enough for a header")
    assert KeyedLog(fd).load() == {}
    assert SessionJournal(fd).load() == Journaled()


def test_a_journal_that_cannot_grow_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
    log = KeyedLog(fd)
    log.load()
    log.put(1, 1, b"known")
    log.flush()
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW)
    for number in range(2, 5000):
        log.put(1, number, b"lost")
        log.flush()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert os.fstat(fd).st_size == 0, "better none than one that lacks files"
    os.close(fd)


VERSION = ObjectVersion('a/"ü\udcff" b', 1 << 45, '"etag"', 1_700_000_000_123_456_789, "v1", "GLACIER", "gzip", "")


def test_a_version_that_is_served_with_an_edit_comes_back_so(fd: int) -> None:
    journal = SessionJournal(fd)
    journal.load()
    edited = replace(VERSION, edit=WITHOUT_AGENT)
    for inode, version in ((5, edited), (6, VERSION)):
        journal.remembered(File(inode, "", version, 7))
    journal.flush()
    found = {node.inode: node.version for node in SessionJournal(fd).load().nodes if isinstance(node, File)}
    assert found == {5: edited, 6: VERSION}
    assert edited.identity != VERSION.identity
    assert edited.is_stored_as(VERSION)


def test_everything_comes_back(fd: int) -> None:
    journal = SessionJournal(fd)
    assert journal.load() == Journaled()
    journal.begin(3)
    terms = AgreedTerms(int(InitFlag.HAS_RESEND | InitFlag.PASSTHROUGH), "s3://b", 0)
    journal.greeted(terms)
    journal.located({"": "a/"})
    directory, file = Directory(7, "", "a/", 5), File(1 << 40, "", VERSION, 7)
    directory.children = {"name": file}
    journal.begun(1234)
    journal.keep([directory])
    for node in (file, Directory(9, "", "gone/", 5)):
        journal.remembered(node)
    journal.forgotten(7)
    journal.forgotten(9)
    journal.gone(9)
    journal.changed(Directory(9, "", "gone/", 6))
    for node in (Directory(11, "", "closed/", 5), Directory(12, "", "again/", 5)):
        journal.remembered(node)
        journal.forgotten(node.inode)
    journal.changed(Directory(11, "", "closed/", 6))
    journal.remembered(Directory(12, "", "again/", 5))
    names = ("one", "zwei", "três", "\udcff")
    for handle in (21, 22, 23, 24):
        journal.reading(handle, names)
    journal.reading(24, ())
    journal.stopped_reading(22)
    journal.opened(31, file.inode, 5)
    journal.opened(32, file.inode, 5)
    journal.released(31)
    journal.flush()

    for _ in range(2):
        journal = SessionJournal(fd)
        known = journal.load()
        assert (known.generation, known.terms, known.tops) == (3, terms, {"": "a/"})
        assert known.first_sight_ns == 1234
        assert known.open_files == {32: (file.inode, 5)}
        assert known.readers == {21: names, 23: names}
        again, closed, _ = sorted((each for each in known.nodes if isinstance(each, Directory)), key=_number)
        assert (closed.inode, closed.mtime_ns) == (11, 6)
        assert [inode for inode in (7, 9, 11, 12, file.inode) if inode in known.forgotten] == [11]
        assert (again.inode, again.repository, again.prefix, again.mtime_ns) == (7, "", "a/", 5)
        assert again.fingerprint == fingerprint(directory.children)
        (found,) = (each for each in known.nodes if isinstance(each, File))
        assert (found.inode, found.repository, found.version, found.parent) == (1 << 40, "", VERSION, 7)
    journal.stopped_reading(21)
    journal.stopped_reading(23)
    journal.flush()
    assert SessionJournal(fd).load().readers == {}


def _number(node: Directory) -> int:
    return node.inode


AGREED = AgreedTerms(int(InitFlag.HAS_RESEND), "s3://b", 0)


@pytest.mark.parametrize(
    ("terms", "said"),
    [
        (AgreedTerms(0, "s3://b", 0), "does not send requests again"),
        (AgreedTerms(AGREED.flags, "s3://b", 15), "after 15 s without an answer"),
        (AgreedTerms(AGREED.flags, "s3://other", 0), "it shows s3://other"),
    ],
)
def test_a_connection_that_nobody_can_take_over(fd: int, terms: AgreedTerms, said: str) -> None:
    journal = SessionJournal(fd)
    journal.load()
    journal.greeted(terms)
    journal.begin(1)
    with pytest.raises(MountError, match=said):
        Succession.begin(HandedSession(-1, fd, 2), "s3://b")


def test_no_generation_comes_twice(fd: int) -> None:
    Succession.begin(HandedSession(-1, fd, 2), "s3://b")
    with pytest.raises(MountError, match="generation 2 of the workers cannot follow generation 2"):
        Succession.begin(HandedSession(-1, fd, 2), "s3://b")
    assert Succession.begin(HandedSession(-1, fd, 3), "s3://b").follows


def test_the_kernels_limits_on_a_request(tmp_path: Path) -> None:
    assert kernel.request_timeout_s(tmp_path) == 0
    (tmp_path / "default_request_timeout").write_text("0\n")
    (tmp_path / "max_request_timeout").write_text("0\n")
    assert kernel.request_timeout_s(tmp_path) == 0
    (tmp_path / "max_request_timeout").write_text("60\n")
    assert kernel.request_timeout_s(tmp_path) == 60
    (tmp_path / "default_request_timeout").write_text("15\n")
    assert kernel.request_timeout_s(tmp_path) == 15


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"D7YFS_SESSION_FD": "3"}, "a supervisor sets them all"),
        ({"D7YFS_SESSION_FD": "x", "D7YFS_JOURNAL_FD": "4", "D7YFS_GENERATION": "1"}, "SESSION_FD=x"),
        ({"D7YFS_SESSION_FD": "987", "D7YFS_JOURNAL_FD": "988", "D7YFS_GENERATION": "1"}, "Bad file descriptor"),
    ],
)
def test_a_session_that_is_not_there(variables: dict[str, str], said: str) -> None:
    with pytest.raises(MountError) as caught:
        HandedSession.take(variables)
    assert said in f"{caught.value} {caught.value.hint}"


def test_a_session_is_taken_once(fd: int) -> None:
    other = os.memfd_create("other")
    os.set_inheritable(fd, True)
    environ = {**HandedSession(other, fd, 4).variables, "HOME": "/"}
    assert HandedSession.take(environ) == HandedSession(other, fd, 4)
    assert environ == {"HOME": "/"}
    assert not os.get_inheritable(fd), "its children do not get the connection"
    assert HandedSession.take(environ) is None
    with pytest.raises(MountError, match="out of range"):
        HandedSession.take({**HandedSession(other, fd, 0).variables})
    os.close(other)
