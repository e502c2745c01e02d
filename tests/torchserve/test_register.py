"""`d7yfs torchserve` against a real TorchServe whose model store is a mount."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.mount.mounted import Mounter, run
from tests.servers.torchserve import TorchServe, TorchServeError
from tests.torchserve.conftest import Start
from tests.torchserve.models import Models, served_from, weights_of


def d7yfs(server: TorchServe, command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return run("torchserve", command, "--ts-config", server.config, *arguments, timeout_s=180)


def listed(server: TorchServe, *arguments: str | Path) -> dict[tuple[str, str], tuple[str, int]]:
    """Archive and ready workers by name and version."""
    done = d7yfs(server, "list", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return {(row["name"], row["version"]): (row["url"], row["workers"]) for row in json.loads(done.stdout)}


def test_register_list_infer_unregister(models: Models, mounter: Mounter, start: Start) -> None:
    weights = {name: weights_of(number) for number, name in enumerate(("one", "flat", "inner"))}
    models.put("one.mar", weights["one"])
    models.put("flat", weights["flat"])
    models.put("outer.mar", weights["inner"], name="inner", version="2.5")
    mounted = mounter.mount(models.url, env=models.bucket.env)
    server = start(mounted.point)
    assert listed(server) == {}

    done = d7yfs(server, "register", "--model", "all", "--initial-workers", "1", "--synchronous")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "registered   flat: version 1.0, 1 worker",
        "registered   one: version 1.0, 1 worker",
        "registered   outer: version 2.5 as inner, 1 worker",
    ]
    assert listed(server) == {
        ("flat", "1.0"): ("flat", 1),
        ("inner", "2.5"): ("outer.mar", 1),
        ("one", "1.0"): ("one.mar", 1),
    }
    for name, content in weights.items():
        served_from(server, name, content)

    done = d7yfs(server, "register", "--model", "one")
    assert done.returncode == 0
    assert "present      one: Model version 1.0 is already registered for model one" in done.stdout

    done = d7yfs(server, "unregister", "--model", "outer,flat")
    assert (done.returncode, done.stdout) == (0, "unregistered inner\nunregistered flat\n")
    assert listed(server) == {("one", "1.0"): ("one.mar", 1)}
    with pytest.raises(TorchServeError, match="404"):
        server.infer("inner", [0])
    done = d7yfs(server, "unregister", "--model", "flat")
    assert (done.returncode, done.stdout) == (1, "failed       flat: is not registered\n")


def test_one_without_workers_gets_them_later(models: Models, mounter: Mounter, start: Start) -> None:
    models.put("one.mar", weights_of(1), name="inner")
    mounted = mounter.mount(models.url, env=models.bucket.env)
    server = start(mounted.point)
    done = d7yfs(server, "register", "--model", "one")
    assert done.returncode == 0
    assert "serves nothing until it has workers" in done.stdout
    with pytest.raises(TorchServeError, match="no worker"):
        server.infer("inner", [0])
    done = d7yfs(server, "register", "--model", "one", "--initial-workers", "1")
    assert done.returncode == 0, done.stdout
    words = "present      one: Model version 1.0 is already registered for model inner; now 1 worker"
    assert done.stdout.splitlines()[0] == words
    served_from(server, "inner", weights_of(1))
    assert server.manage("PUT", "/models/inner", min_worker="2", synchronous="true")[0] == 200
    assert d7yfs(server, "register", "--model", "one", "--initial-workers", "1").returncode == 0
    assert listed(server) == {("inner", "1.0"): ("one.mar", 2)}, "a second register must not change the workers"


def test_versions_come_and_go_together(models: Models, mounter: Mounter, start: Start) -> None:
    models.put("a.mar", weights_of(1), name="a")
    models.put("a-v2.mar", weights_of(2), name="a", version="2.0")
    mounted = mounter.mount(models.url, env=models.bucket.env)
    server = start(mounted.point)
    assert d7yfs(server, "register", "--model", "all").returncode == 0
    assert listed(server) == {("a", "1.0"): ("a.mar", 0), ("a", "2.0"): ("a-v2.mar", 0)}
    done = d7yfs(server, "unregister", "--model", "all")
    assert done.returncode == 0, done.stdout
    assert listed(server) == {}


def test_one_that_fails_does_not_keep_the_others(models: Models, mounter: Mounter, start: Start) -> None:
    models.put("broken.mar", weights_of(1), handler="raise RuntimeError('broken on purpose')\n")
    models.put("good.mar", weights_of(2))
    models.bucket.put(f"{models.prefix}/junk.mar", b"no archive")
    mounted = mounter.mount(models.url, env=models.bucket.env)
    server = start(mounted.point)
    flags = ("--initial-workers", "1", "--startup-timeout", "5")
    done = d7yfs(server, "register", "--model", "all", *flags, "--json")
    assert done.returncode == 1
    results = {row["model"]: row["result"] for row in json.loads(done.stdout)}
    assert results == {"broken": "failed", "good": "registered", "junk": "failed"}
    served_from(server, "good", weights_of(2))


def test_the_plugins_file_mounts_and_registers(models: Models, mounter: Mounter, start: Start, ground: Path) -> None:
    """One unchanged file of the earlier plugin serves both commands; only the store's address must
    be given.
    """
    models.put("one.mar", weights_of(1))
    models.put("two.mar", weights_of(2))
    reader = models.bucket.server.reader
    file = ground / "s3.json"
    file.write_text(f"""{{
      "accessKeyId": "{reader.key_id}",
      "secretAccessKey": "{reader.secret_key}",
      "region": "us-east-1",
      "bucketName": "{models.bucket.name}",
      "key": "{models.prefix}",

      // what to load
      "load_model": "two",
      "minWorker": "1",
    }}""")
    endpoint = ("--endpoint-url", f"http://127.0.0.1:{models.bucket.server.port}")
    mounted = mounter.mount("--torchserve-config", str(file), *endpoint)
    server = start(mounted.point)
    done = d7yfs(server, "register", "--config", file)
    assert done.returncode == 0, done.stdout + done.stderr
    assert listed(server) == {("two", "1.0"): ("two.mar", 1)}
    served_from(server, "two", weights_of(2))
    assert reader.secret_key not in mounted.log() + mounted.said + done.stdout + done.stderr


def test_a_token_is_needed_and_the_key_file_has_it(models: Models, mounter: Mounter, start: Start) -> None:
    models.put("one.mar", weights_of(1))
    mounted = mounter.mount(models.url, env=models.bucket.env)
    server = start(mounted.point, token=True)
    done = d7yfs(server, "register", "--model", "one")
    assert done.returncode == 1
    assert "wants a token" in done.stderr
    token = ("--token-file", server.key_file)
    done = d7yfs(server, "register", "--model", "one", "--initial-workers", "1", *token)
    assert done.returncode == 0, done.stdout + done.stderr
    assert listed(server, *token) == {("one", "1.0"): ("one.mar", 1)}
    served_from(server, "one", weights_of(1), token=server.keys()["inference"])
    old = server.directory / "old_token"
    old.write_text("not-it")
    done = d7yfs(server, "unregister", "--model", "one", "--token-file", old)
    assert done.returncode == 1
    assert "refuses the token" in done.stderr
    assert d7yfs(server, "unregister", "--model", "one", *token).returncode == 0


def test_a_model_api_that_is_turned_off_is_explained(models: Models, mounter: Mounter, start: Start) -> None:
    models.put("one.mar", weights_of(1))
    mounted = mounter.mount(models.url, env=models.bucket.env)
    server = start(mounted.point, model_api=False)
    done = d7yfs(server, "register", "--model", "one")
    assert done.returncode == 1
    assert "--enable-model-api" in done.stderr
    assert listed(server) == {}


def test_an_archive_below_the_model_store_is_told_apart(models: Models, mounter: Mounter, start: Start) -> None:
    """TorchServe does not find a deeper archive by any spelling, as `register` claims."""
    models.put("one.mar", weights_of(1))
    body = models.bucket.client.get_object(Bucket=models.bucket.name, Key=f"{models.prefix}/one.mar")["Body"].read()
    models.bucket.put(f"{models.prefix}/sub/deep.mar", body)
    mounted = mounter.mount(models.url, env=models.bucket.env)
    server = start(mounted.point)
    for url in ("deep.mar", "sub/deep.mar", str(mounted.point / "sub/deep.mar")):
        status, said = server.manage("POST", "/models", url=url)
        assert status == 404, (url, said)
    done = d7yfs(server, "register", "--model", "deep")
    assert done.returncode == 2
    assert f"name {mounted.point}/sub" in done.stderr
    done = d7yfs(server, "register", "--model", "deep", mounted.point / "sub")
    assert done.returncode == 2
    assert "is not TorchServe's model store" in done.stderr


def test_tarballs_are_archives_too(models: Models, mounter: Mounter, start: Start) -> None:
    models.put("packed.tar.gz", weights_of(1))
    mounted = mounter.mount(models.url, env=models.bucket.env)
    server = start(mounted.point)
    done = d7yfs(server, "register", "--model", "all", "--initial-workers", "1")
    assert (done.returncode, done.stdout) == (0, "registered   packed: version 1.0, 1 worker\n"), done.stderr
    served_from(server, "packed", weights_of(1))
    assert listed(server) == {("packed", "1.0"): ("packed.tar.gz", 1)}
    assert d7yfs(server, "unregister", "--model", "packed.tar.gz").returncode == 0
    assert listed(server) == {}


def test_another_name_of_a_tarball(models: Models, mounter: Mounter, start: Start) -> None:
    models.put("made.tar.gz", weights_of(1))
    body = models.bucket.client.get_object(Bucket=models.bucket.name, Key=f"{models.prefix}/made.tar.gz")["Body"].read()
    models.bucket.put(f"{models.prefix}/packed.tgz", body)
    mounted = mounter.mount(models.url, env=models.bucket.env)
    server = start(mounted.point)
    done = d7yfs(server, "register", "--model", "packed", "--initial-workers", "1")
    assert (done.returncode, done.stdout) == (0, "registered   packed: version 1.0 as made, 1 worker\n"), done.stderr
    served_from(server, "made", weights_of(1))


def test_the_command_lines_store_outdoes_the_files(
    models: Models, mounter: Mounter, start: Start, ground: Path
) -> None:
    """A configuration that names another directory does not matter; a wrong directory on the
    command line is refused.
    """
    models.put("one.mar", weights_of(1))
    mounted = mounter.mount(models.url, env=models.bucket.env)
    other = ground / "other"
    other.mkdir()
    (other / "one.mar").write_bytes(b"no archive")
    server = start(mounted.point, configured_store=other)
    done = d7yfs(server, "register", "--model", "one", other)
    assert done.returncode == 2
    assert f"has --model-store {mounted.point}" in done.stderr
    done = d7yfs(server, "register", "--model", "one", "--initial-workers", "1", mounted.point)
    assert (done.returncode, done.stderr) == (0, "")
    served_from(server, "one", weights_of(1))
    assert d7yfs(server, "unregister", "--model", "one").returncode == 0
    done = run("torchserve", "register", "--management", server.management, "--model", "one", timeout_s=180)
    assert (done.returncode, done.stderr) == (0, ""), "the process alone must be enough to find the store"


def test_it_stops_and_is_unmounted(models: Models, mounter: Mounter, start: Start) -> None:
    """A model mapped from the mount does not outlive its server."""
    models.put("flat", weights_of(1))
    mounted = mounter.mount(models.url, env=models.bucket.env)
    server = start(mounted.point, models=["flat"])
    served_from(server, "flat", weights_of(1))
    server.stop()
    done = run("umount", mounted.point)
    assert done.returncode == 0, done.stderr
