"""Mounts of one cache directory with different credentials: the store alone says who reads what."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.mount.conftest import MIB, bytes_of
from tests.mount.mounted import Mounted, Mounter, run, until
from tests.servers.http11 import Answer, Request
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount]

OWNER, STRANGER = "AKIAOWNER00000000000", "AKIASTRANGER00000000"
ANONYMOUS = ""
_KEY_ID = re.compile(r"Credential=([A-Z0-9]+)/")
_DENIED = b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class Policies(S3Faults):
    """A store that says of each key whether it may list, and whether it may read objects.

    As with S3, the right to read an object governs HEAD as well.
    """

    def __init__(self) -> None:
        super().__init__({"b/small": bytes_of(1, 1000), "b/large": bytes_of(2, 6 * MIB)})
        self.may_list = {OWNER, STRANGER, ANONYMOUS}
        self.may_get = {OWNER}
        self.is_away = False

    async def answer(self, request: Request) -> Answer:
        if self.is_away:
            return Answer(503, {"Content-Length": "0"})
        found = _KEY_ID.search(request.headers.get("authorization", ""))
        key_id = found[1] if found else ANONYMOUS
        if key_id not in (self.may_list if "list-type=2" in request.target else self.may_get):
            return Answer(403, {"Content-Type": "application/xml"}, b"" if request.method == "HEAD" else _DENIED)
        return await super().answer(request)

    def allow(self, key_id: str, *, lists: bool = True, reads: bool = True) -> None:
        for allowed, keys in ((lists, self.may_list), (reads, self.may_get)):
            (keys.add if allowed else keys.discard)(key_id)

    def object_requests(self) -> list[str]:
        """The methods of all requests for objects."""
        return [each.method for each in self.requests if "list-type" not in each.target and each.key.startswith("b/")]


@pytest.fixture
def store() -> Iterator[InThread[Policies]]:
    with InThread(Policies()) as running:
        yield running


def write_credentials(path: Path) -> None:
    """Write the profiles `owner` and `stranger`."""
    profiles = (("owner", OWNER), ("stranger", STRANGER))
    path.write_text(
        "".join(f"[{name}]\naws_access_key_id = {key_id}\naws_secret_access_key = s\n" for name, key_id in profiles)
    )


def mount_both(mounter: Mounter, store: InThread[Policies], path: Path) -> Mounted:
    """A mount of the store's files twice, as `owner` and as `stranger`, each with its own key."""
    credentials, settings = path / "credentials", path / "d7yfs.toml"
    write_credentials(credentials)
    url = url_of(store)
    settings.write_text(
        "".join(f'[repositories.{name}]\nurl = "{url}"\nprofile = "{name}"\n' for name in ("owner", "stranger"))
    )
    return mounter.mount("--config", str(settings), env={"AWS_SHARED_CREDENTIALS_FILE": str(credentials)})


def url_of(store: InThread[Policies]) -> str:
    return f"s3://127.0.0.1:{store.server.port}/b"


def keys(key_id: str) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": key_id, "AWS_SECRET_ACCESS_KEY": "5ecre7-of-" + key_id}


@pytest.fixture
def owner(mounter: Mounter, store: InThread[Policies]) -> Mounted:
    """A mount that has read all files into the cache."""
    mounted = mounter.mount(url_of(store), "--verify", "off", env=keys(OWNER))
    assert read_all(mounted) == expected(store)
    assert store.server.object_requests().count("HEAD") == 0, "a GET is proof enough"
    return mounted


def read_all(mounted: Mounted, directory: str = ".") -> list[bytes]:
    return [mounted.read_anew(f"{directory}/{name}") for name in ("large", "small")]


def expected(store: InThread[Policies]) -> list[bytes]:
    return [store.server.objects[f"b/{name}"] for name in ("large", "small")]


def assert_refused(mounted: Mounted, directory: str = ".") -> None:
    for name in ("large", "small"):
        with pytest.raises(PermissionError):
            mounted.read_anew(f"{directory}/{name}")
    with pytest.raises(PermissionError):
        mounted.pread(f"{directory}/large", 5 * MIB, 100)


def test_a_key_that_may_list_and_not_read_reads_nothing_that_another_key_has_cached(
    mounter: Mounter, store: InThread[Policies], owner: Mounted
) -> None:
    stranger = mounter.mount(url_of(store), env=keys(STRANGER), cache_dir=owner.cache_dir)
    assert stranger.names() == ["large", "small"]
    assert_refused(stranger)
    assert read_all(owner) == expected(store)


@pytest.mark.parametrize("lists", [True, False])
def test_exact_names_read_nothing_that_another_key_has_cached(
    mounter: Mounter, store: InThread[Policies], owner: Mounted, lists: bool
) -> None:
    store.do(partial(store.server.allow, STRANGER, lists=lists, reads=False))
    stranger = mounter.mount(url_of(store), "--listing", "exact", env=keys(STRANGER), cache_dir=owner.cache_dir)
    for name in ("large", "small"):
        with pytest.raises(OSError):  # noqa: PT011  # an error of names, or of a path that may be a directory
            stranger.read(name)


def test_an_anonymous_mount_reads_nothing_that_a_key_has_cached(
    mounter: Mounter, store: InThread[Policies], owner: Mounted
) -> None:
    assert_refused(mounter.mount(url_of(store), "--anonymous", cache_dir=owner.cache_dir))


def test_bytes_that_another_daemon_brings_meanwhile_are_no_grant(mounter: Mounter, store: InThread[Policies]) -> None:
    stranger = mounter.mount(url_of(store), env=keys(STRANGER))
    assert_refused(stranger)
    owner = mounter.mount(url_of(store), env=keys(OWNER), cache_dir=stranger.cache_dir)
    with (stranger.point / "small").open("rb") as held:
        assert read_all(owner) == expected(store)
        with pytest.raises(PermissionError):
            held.read()
    assert_refused(stranger)


def test_a_refused_repository_reads_nothing_that_another_one_of_its_mount_has_open(
    mounter: Mounter, store: InThread[Policies], tmp_path: Path
) -> None:
    mounted = mount_both(mounter, store, tmp_path)
    with (mounted.point / "owner/small").open("rb") as held:
        assert held.read() == store.server.objects["b/small"]
        with pytest.raises(PermissionError):
            mounted.read("stranger/small")
    assert mounted.read_anew("owner/small") == store.server.objects["b/small"]


def test_names_learnt_before_a_key_was_revoked_read_nothing_that_others_have_cached(
    mounter: Mounter, store: InThread[Policies], owner: Mounted
) -> None:
    store.do(partial(store.server.allow, STRANGER))
    stranger = mounter.mount(url_of(store), "--metadata-ttl", "0", env=keys(STRANGER), cache_dir=owner.cache_dir)
    assert stranger.names() == ["large", "small"]
    store.do(partial(store.server.allow, STRANGER, lists=False, reads=False))
    assert_refused(stranger)


def test_a_repository_that_is_refused_takes_nothing_from_another_that_has_the_same_file_open(
    mounter: Mounter, store: InThread[Policies], tmp_path: Path
) -> None:
    mounted = mount_both(mounter, store, tmp_path)
    with contextlib.ExitStack() as held:
        for name in ("large", "small"):
            held.enter_context((mounted.point / "stranger" / name).open("rb"))
        assert_refused(mounted, "stranger")
        assert read_all(mounted, "owner") == expected(store)
        fetched = [each["fetched"]["direct_bytes"] for each in mounted.status()["repositories"]]
        assert fetched == [sum(map(len, expected(store))), 0]
        # The bytes are there, and for the refused one they are as far as before.
        assert_refused(mounted, "stranger")
        store.do(partial(store.server.allow, STRANGER))
        before = len(store.server.object_requests())
        until(lambda: _is_read(mounted, "stranger", store), "the end of the last refusal")
        assert "GET" not in store.server.object_requests()[before:], "the pair on disk is shared"


def _is_read(mounted: Mounted, directory: str, store: InThread[Policies]) -> bool:
    with contextlib.suppress(PermissionError):
        return read_all(mounted, directory) == expected(store)
    return False


def test_other_credentials_of_a_reload_are_granted_nothing_by_the_former_ones(
    mounter: Mounter, store: InThread[Policies], tmp_path: Path
) -> None:
    credentials = tmp_path / "credentials"

    write_credentials(credentials)
    settings = tmp_path / "d7yfs.toml"

    def choose(name: str) -> None:
        settings.write_text(f'[repositories.models]\nurl = "{url_of(store)}"\nprofile = "{name}"\n')

    choose("owner")
    mounted = mounter.mount("--config", str(settings), env={"AWS_SHARED_CREDENTIALS_FILE": str(credentials)})
    with (mounted.point / "models/small").open("rb") as held:
        assert read_all(mounted, "models") == expected(store)
        choose("stranger")
        assert run("reload", mounted.point).returncode == 0
        assert_refused(mounted, "models")
        # A key's id is no secret: with another secret it is not believed by its record alone.
        store.do(partial(store.server.allow, OWNER, reads=False))
        choose("owner")
        assert run("reload", mounted.point).returncode == 0
        assert_refused(mounted, "models")
        store.do(partial(store.server.allow, OWNER))

        def reads() -> bool:
            with contextlib.suppress(PermissionError):
                return held.read() == store.server.objects["b/small"]
            return False

        until(reads, "the end of the last refusal")


def test_what_a_key_was_granted_needs_no_request_at_its_next_mount_and_no_store(
    mounter: Mounter, store: InThread[Policies], owner: Mounted
) -> None:
    again = mounter.mount(url_of(store), env=keys(OWNER), cache_dir=owner.cache_dir)
    assert again.names() == ["large", "small"]
    before = len(store.server.object_requests())
    store.server.is_away = True
    assert read_all(again) == expected(store)
    assert len(store.server.object_requests()) == before


def test_another_key_that_may_read_costs_one_head_for_each_file_and_none_later(
    mounter: Mounter, store: InThread[Policies], owner: Mounted
) -> None:
    store.do(partial(store.server.allow, STRANGER))
    other = mounter.mount(url_of(store), env=keys(STRANGER), cache_dir=owner.cache_dir)
    before = len(store.server.object_requests())
    assert read_all(other) == read_all(other) == expected(store)
    assert store.server.object_requests()[before:] == ["HEAD", "HEAD"]
    again = mounter.mount(url_of(store), env=keys(STRANGER), cache_dir=owner.cache_dir)
    assert read_all(again) == expected(store)
    assert store.server.object_requests()[before:] == ["HEAD", "HEAD"]


def test_bytes_that_were_brought_anonymously_need_no_proof_of_an_anonymous_mount(
    mounter: Mounter, store: InThread[Policies]
) -> None:
    store.do(partial(store.server.allow, ANONYMOUS))
    first = mounter.mount(url_of(store), "--anonymous")
    assert read_all(first) == expected(store)
    again = mounter.mount(url_of(store), "--anonymous", cache_dir=first.cache_dir)
    before = len(store.server.object_requests())
    assert read_all(again) == expected(store)
    assert len(store.server.object_requests()) == before


def test_an_operator_may_share_the_cache(mounter: Mounter, store: InThread[Policies], owner: Mounted) -> None:
    shared = mounter.mount(url_of(store), "--cache-trust", "shared", env=keys(STRANGER), cache_dir=owner.cache_dir)
    assert read_all(shared) == expected(store)


def test_no_record_names_a_key(store: InThread[Policies], owner: Mounted) -> None:
    (key,) = owner.cache_dir.rglob("grants.key")
    assert key.stat().st_mode & 0o777 == 0o600
    for path in owner.cache_dir.rglob("*.map"):
        names = [name for name in os.listxattr(path) if name.startswith("user.d7yfs.")]
        assert len(names) == 1
        assert OWNER not in names[0]
