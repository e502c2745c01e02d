"""`d7yfs cache` as a user types it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from d7yfs.cli import main
from d7yfs.config.schema import Anonymous, RepositoryConfig
from d7yfs.config.url import RepositoryUrl
from d7yfs.objects import StoreIdentity
from d7yfs.origins import open_origin
from tests.cache.doubles import MIB, ORIGIN, backing, directory, fill, version

WEIGHTS, CONFIG = version(2 * MIB + 5, "llm/weights.bin"), version(3 * MIB, "llm/config.json")
URL = "s3://http://127.0.0.1:9/models"


def cache(*arguments: str | Path, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(main, ["cache", *map(str, arguments)], env=env)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A cache directory with a complete file and a third of another."""
    made = tmp_path / "cache"
    within = directory(made)
    with backing(WEIGHTS, within) as weights, backing(CONFIG, within) as config:
        fill(weights)
        fill(config, 1)
    return made


def spoil(path: Path) -> None:
    (data,) = (each for each in path.rglob("*.data") if each.stat().st_size == WEIGHTS.size_bytes)
    with data.open("r+b") as file:
        file.write(b"spoilt")


def test_ls(path: Path) -> None:
    done = cache("ls", "--cache-dir", path)
    assert done.exit_code == 0
    config, weights, total = done.stdout.splitlines()
    assert re.fullmatch(rf" +1 MiB +33%  \d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\dZ +{URL}/llm/config.json", config)
    assert re.fullmatch(rf" +2 MiB +100%  \S+ +{URL}/llm/weights.bin", weights)
    assert total == f"2 files, 3 MiB cached, 3.02 MiB on disk in {path}"


def test_ls_of_what_is_in_use_and_below_a_url(path: Path) -> None:
    with backing(WEIGHTS, directory(path)):
        done = cache("ls", f"{URL}/llm/weights.bin", "--cache-dir", path)
    assert len(done.stdout.splitlines()) == 2
    assert "Z  in use  s3://" in done.stdout


def test_ls_as_json(path: Path) -> None:
    told = json.loads(cache("ls", "--json", "--cache-dir", path).stdout)
    assert told["directory"] == str(path)
    config, weights = told["files"]
    assert (config["size_bytes"], config["cached_bytes"], config["in_use"]) == (3 * MIB, MIB, False)
    assert weights["name"] == f"{URL}/llm/weights.bin"
    assert weights["validator"] == WEIGHTS.validator


def test_the_directory_comes_from_flag_variable_file_or_default(path: Path, tmp_path: Path) -> None:
    config = tmp_path / "d7yfs.toml"
    config.write_text('cache_dir = "cache"\nsource = "s3://b"\n')
    ways: list[tuple[list[str | Path], dict[str, str]]] = [
        (["--cache-dir", path], {}),
        ([], {"D7YFS_CACHE_DIR": str(path)}),
        (["--config", config], {}),
        ([], {"D7YFS_CONFIG": str(config)}),
        (["--cache-dir", path], {"D7YFS_CACHE_DIR": "/nowhere"}),
        ([], {"D7YFS_CACHE_DIR": str(path), "D7YFS_CONFIG": "/absent.toml"}),
    ]
    for arguments, env in ways:
        done = cache("ls", *arguments, env=env)
        assert (done.exit_code, len(done.stdout.splitlines())) == (0, 3), (arguments, env)
    assert cache("ls", "--config", "/absent.toml").exit_code == 2


def test_an_empty_directory(tmp_path: Path) -> None:
    done = cache("ls", "--cache-dir", tmp_path / "absent")
    assert (done.exit_code, done.stdout) == (0, f"0 files, 0 B cached, 0 B on disk in {tmp_path / 'absent'}\n")
    assert cache("verify", "--cache-dir", tmp_path).exit_code == 0


def test_verify(path: Path) -> None:
    done = cache("verify", "--md5", "--cache-dir", path)
    assert done.exit_code == 0
    assert done.stdout.startswith("2 files, 4 blocks: 0 bad, 0 MD5 sums compared, in ")
    assert "\nnot comparable: 2 files, because the ETag is no MD5: " in done.stdout


def test_verify_finds_what_is_bad_once(path: Path) -> None:
    spoil(path)
    done = cache("verify", "--cache-dir", path)
    assert done.exit_code == 1
    assert f"{URL}/llm/weights.bin: 1 bad block, to be fetched again\n" in done.stdout
    assert "4 blocks: 1 bad" in done.stdout
    assert cache("verify", "--cache-dir", path).exit_code == 0


def test_verify_as_json_and_in_use(path: Path) -> None:
    spoil(path)
    with backing(WEIGHTS, directory(path)):
        done = cache("verify", URL, "--json", "--cache-dir", path)
    assert done.exit_code == 1
    _, weights = json.loads(done.stdout)
    assert weights == {
        "schema": 1,
        "name": f"{URL}/llm/weights.bin",
        "validator": WEIGHTS.validator,
        "in_use": True,
        "checked_blocks": 3,
        "bad_blocks": [0],
        "md5": None,
        "not_comparable": "",
    }
    spoil(path)


def test_drop_below_a_url(path: Path) -> None:
    done = cache("drop", f"{URL}/llm/config.json", "--cache-dir", path)
    assert (done.exit_code, done.stdout) == (0, "1 file dropped, 1.01 MiB freed\n")
    assert "weights.bin" in cache("ls", "--cache-dir", path).stdout


def test_drop_all_but_what_is_in_use(path: Path) -> None:
    with backing(WEIGHTS, directory(path)):
        done = cache("drop", "--all", "--cache-dir", path)
        assert done.exit_code == 1
        assert done.stdout == f"in use, kept: {URL}/llm/weights.bin\n1 file dropped, 1.01 MiB freed\n"
    assert cache("drop", "--all", "--cache-dir", path).exit_code == 0
    assert not [each for each in path.rglob("*") if each.is_file()]


@pytest.mark.parametrize("arguments", [["drop"], ["drop", "--all", URL], ["drop", "ftp://b"], ["ls", "nonsense"]])
def test_what_cannot_be(path: Path, arguments: list[str]) -> None:
    done = cache(*arguments, "--cache-dir", path)
    assert done.exit_code == 2
    assert done.stderr.startswith("d7yfs: error: ")
    assert len(list(path.rglob("*.map"))) == 2


# --- every provider's URLs ---

MOUNTED = [
    "s3://models",
    "s3://127.0.0.1:9000/models",
    "s3://https://minio.example/models",
    "gs://models",
    "gs://https://localhost:4443/models",
    "as://account/models",
    "az://account/models",
    "as://account.blob.core.chinacloudapi.cn/models",
    "as://http://127.0.0.1:10000/account/models",
    "oss://models",
    "oss://models.oss-cn-hangzhou.aliyuncs.com",
    "oss://https://oss.example.com/models",
    "obs://models",
    "obs://https://obs.corp.example/models",
]
KEYS = ["llm/a b?c#d%20", "llm//a", "llm/a/", "llm/a\nb", "llm/a\x1b[2J", "llm/\udcff", "llm/\u6a21", "llmx", "/llm"]


def identity_of(url: str) -> StoreIdentity:
    return open_origin(RepositoryConfig(url=RepositoryUrl.parse(url), region="eu-1"), Anonymous()).identity


def keep(path: Path, store: StoreIdentity, *keys: str) -> None:
    for key in keys:
        directory(path).open(store, version(5, key)).close()


def names(path: Path, *url: str) -> list[str]:
    done = cache("ls", "--json", *url, "--cache-dir", path)
    assert done.exit_code == 0, done.stderr
    return [each["name"] for each in json.loads(done.stdout)["files"]]


@pytest.fixture(params=MOUNTED)
async def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Path]:
    """The URL of a mount and a cache with odd keys of its store, and with one of a store of each other kind."""
    url: str = request.param
    path, mine = tmp_path / "cache", identity_of(url)
    keep(path, mine, *KEYS)
    for other in {identity_of(each) for each in MOUNTED} - {mine}:
        keep(path, other, "llm/b")
    return url, path


async def test_what_ls_prints_names_that_very_object(mounted: tuple[str, Path]) -> None:
    _, path = mounted
    found = names(path)
    assert len(set(found)) == len(found)
    for name in found:
        assert names(path, name) == [name]
        verified = cache("verify", "--json", name, "--cache-dir", path)
        assert (verified.exit_code, [each["name"] for each in json.loads(verified.stdout)]) == (0, [name])
    for count, name in enumerate(found, 1):
        done = cache("drop", name, "--cache-dir", path)
        assert (done.exit_code, done.stdout.partition(",")[0]) == (0, "1 file dropped"), name
        assert names(path) == found[count:]


async def test_a_bucket_and_a_prefix(mounted: tuple[str, Path]) -> None:
    url, path = mounted
    everything = len(names(path))
    assert len(names(path, f"{url}/llm")) == len(KEYS) - 2
    done = cache("drop", f"{url}/llm/", "--cache-dir", path)
    assert (done.exit_code, done.stdout.partition(",")[0]) == (0, f"{len(KEYS) - 2} files dropped")
    assert cache("verify", url, "--cache-dir", path).stdout.startswith("2 files, ")
    assert cache("drop", url, "--cache-dir", path).stdout.startswith("2 files dropped")
    assert len(names(path)) == everything - len(KEYS)
    assert cache("drop", url, "--cache-dir", path).exit_code == 1


@pytest.mark.parametrize("command", ["drop", "verify"])
@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_url_of_which_nothing_is_cached(path: Path, command: str, as_json: list[str]) -> None:
    done = cache(command, *as_json, f"{URL}/other", "--cache-dir", path)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"nothing of {URL}/other is in the cache {path}" in done.stderr
    assert "d7yfs cache ls" in done.stderr
    assert len(names(path)) == 2


def test_the_same_bucket_elsewhere_is_named_and_left_alone(path: Path) -> None:
    done = cache("drop", "s3://models", "--cache-dir", path)
    assert (done.exit_code, done.stdout) == (1, "")
    assert f"at other endpoints: {URL}\n" in done.stderr
    assert len(names(path)) == 2


def test_a_key_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    keep(tmp_path, ORIGIN, "a\nb\x1b[2J")
    done = cache("ls", "--cache-dir", tmp_path)
    assert done.stdout.splitlines()[0].endswith("/a%0Ab%1B%5B2J")
    assert len(done.stdout.splitlines()) == 2


# --- what earlier versions have left ---


def test_an_earlier_format_is_not_shown_and_goes_with_all(path: Path) -> None:
    (path / "v2").rename(path / "v1")
    assert names(path) == []
    assert cache("verify", "--cache-dir", path).stdout.startswith("0 files")
    assert cache("drop", URL, "--cache-dir", path).exit_code == 1
    done = cache("drop", "--all", "--cache-dir", path)
    assert (done.exit_code, done.stdout) == (0, "2 files dropped, 3.02 MiB freed\n")
    assert not list(path.iterdir())


def test_an_earlier_format_in_use_is_kept_and_named(path: Path) -> None:
    with backing(WEIGHTS, directory(path)) as weights:
        map_path = weights._files.map_path  # type: ignore[union-attr]
        (path / "v2").rename(path / "v1")
        done = cache("drop", "--all", "--json", "--cache-dir", path)
        assert done.exit_code == 1
        told = json.loads(done.stdout)
        assert (told["files"], told["kept_files"]) == (1, 1)
        assert told["kept"] == [str(map_path).replace("/v2/", "/v1/")]
    assert cache("drop", "--all", "--cache-dir", path).exit_code == 0
