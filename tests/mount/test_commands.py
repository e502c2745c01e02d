"""Commands about several mounts or many paths: one that fails does not hide the answers of the
others.
"""

from __future__ import annotations

import json
import signal
from functools import partial

import pytest

from tests.mount.conftest import Bucket, faulty_url
from tests.mount.mounted import COMMAND_TIMEOUT_S, Mounter, in_background, run
from tests.servers import faults
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = pytest.mark.mount


@pytest.mark.store
def test_a_daemon_that_hangs_takes_nothing_from_what_the_others_say(mounter: Mounter, bucket: Bucket) -> None:
    hangs = mounter.mount(bucket.url("library"), "--takeover", "off", env=bucket.env)
    well = mounter.mount(bucket.url("library"), env=bucket.env)
    hangs.kill(signal.SIGSTOP)
    try:
        text = in_background(lambda: run("status"))
        asked = [in_background(partial(run, command, "--json")) for command in ("status", "log-level", "reload")]
        refreshed = in_background(partial(run, "refresh", "--json", hangs.point, well.point))
        stat = in_background(partial(run, "stat", hangs.point / "one.bin"))
        for done in [each.result(COMMAND_TIMEOUT_S) for each in asked]:
            assert done.returncode == 1
            said = [each["mountpoint"] for each in json.loads(done.stdout)]
            assert str(well.point) in said
            assert str(hangs.point) not in said
            assert f"d7yfs: error: no daemon answers for {hangs.point}: timed out\n" in done.stderr
            assert str(well.point) not in done.stderr
            assert "Traceback" not in done.stderr
        shown = text.result(COMMAND_TIMEOUT_S)
        assert shown.returncode == 1
        assert str(well.point) in shown.stdout
        assert f"no daemon answers for {hangs.point}" in shown.stderr
        done = refreshed.result(COMMAND_TIMEOUT_S)
        assert (done.returncode, json.loads(done.stdout)["mountpoint"]) == (1, str(well.point))
        assert f"no daemon answers for {hangs.point}" in done.stderr
        done = stat.result(COMMAND_TIMEOUT_S)
        assert (done.returncode, done.stdout) == (1, "")
        assert f"no daemon answers for {hangs.point}" in done.stderr
    finally:
        hangs.kill(signal.SIGCONT)
    assert run("status", hangs.point).returncode == 0


def test_refresh_goes_on_with_the_other_mounts(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    with InThread(S3Faults({"b/m/file": b"1"})) as store:
        faulty.do(lambda: faulty.server.put("b/m/file", b"1"))
        bad = mounter.mount(faulty_url(faulty, "m"), "--anonymous")
        good = mounter.mount(faulty_url(store, "m"), "--anonymous")
        assert bad.names() == good.names() == ["file"]
        faulty.do(lambda: faulty.server.script(faults.status(403), key="b", forever=True))
        store.do(lambda: store.server.put("b/m/new", b"2"))
        done = run("refresh", "--json", bad.point, good.point)
        assert done.returncode == 1
        answer = json.loads(done.stdout)
        assert (answer["mountpoint"], answer["state"], answer["added"]) == (str(good.point), "done", 1)
        assert done.stderr.startswith("d7yfs: error: ")
        assert good.names() == ["file", "new"]

        done = run("warm", bad.point / "absent", good.point)
        assert done.returncode == 1
        assert done.stdout.startswith("warm: 2 files")
        assert done.stderr.startswith("d7yfs: error: ")


def test_as_many_paths_as_a_command_line_holds(mounter: Mounter, faulty: InThread[S3Faults]) -> None:
    names = [f"{number:03}-{'x' * 240}" for number in range(400)]
    for name in names:
        faulty.do(lambda name=name: faulty.server.put(f"b/m/{name}/f", b"1"))
    mounted = mounter.mount(faulty_url(faulty, "m"), "--anonymous")
    assert mounted.names() == names
    paths = [mounted.point / name for name in names]
    assert sum(len(str(path)) for path in paths) > 100_000
    done = run("refresh", "--json", *paths)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["directories"] == len(names)
    done = run("warm", "--json", *paths)
    assert done.returncode == 0, done.stderr
    last = json.loads(done.stdout.splitlines()[-1])
    assert (last["state"], last["files_done"], len(last["paths"])) == ("done", len(names), 100)
