"""Arguments of mount(8) as arguments of `d7yfs mount`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import click
import pytest

from d7yfs.cli import mount_helper
from d7yfs.cli.mount_helper import split_options, translate
from d7yfs.errors import UsageError

URL = "s3://models/triton"


def options(text: str, *more: str) -> list[str]:
    """The flags for one -o list, in the form in which mount(8) calls its helpers."""
    translated = translate([URL, "/mnt", *more, "-o", text])
    assert translated[0] == "mount"
    assert translated[-3:] == ["--", URL, "/mnt"]
    return translated[1:-3]


@pytest.mark.parametrize(
    ("text", "flags"),
    [
        ("rw", []),
        ("ro", []),
        ("", []),
        (
            "rw,nosuid,nodev,nofail,_netdev,relatime,nosymfollow,x-systemd.automount,X-mount.mkdir,comment=x",
            [],
        ),
        ("noexec", ["--noexec"]),
        ("user", ["--noexec"]),
        ("rw,noexec,nosuid,nodev,user=joe", ["--noexec"]),
        ("users,proxy=http://h:1", ["--proxy", "http://h:1", "--noexec"]),
        ("users,exec", []),
        ("exec,user", ["--noexec"]),
        ("noexec=true", ["--noexec"]),
        ("defaults,noauto", []),
        (
            "ro,allow_other,proxy=http://127.0.0.1:4001",
            ["--allow-other", "--proxy", "http://127.0.0.1:4001"],
        ),
        ("ro,for=triton,hide_agents", ["--for", "triton", "--hide-agents"]),
        ("cache-size=5G,cache_dir=/c", ["--cache-size", "5G", "--cache-dir", "/c"]),
        ("config=/etc/d7yfs/config.toml", ["--config", "/etc/d7yfs/config.toml"]),
        ("torchserve_config=/etc/s3.json", ["--torchserve-config", "/etc/s3.json"]),
        ("ro,credentials=/etc/d7yfs/models.env", ["--credentials", "/etc/d7yfs/models.env"]),
        ("torchserve-config=/etc/s3.json", ["--torchserve-config", "/etc/s3.json"]),
        ("uid=1000,gid=1000,file_mode=0440", ["--uid", "1000", "--gid", "1000", "--file-mode", "0440"]),
        ("no_fallback", ["--no-fallback"]),
        ("nofallback", ["--no-fallback"]),
        ("fallback=false", ["--no-fallback"]),
        ("no_fallback=false", ["--fallback"]),
        ("insecure_skip_tls_verify", ["--insecure-skip-tls-verify"]),
        ("verify-tls=no", ["--insecure-skip-tls-verify"]),
        ("anonymous=true,noallow_other", ["--anonymous", "--no-allow-other"]),
        ('region="a,b",profile=c\\,d', ["--region", "a,b", "--profile", "c,d"]),
        ("region=a=b", ["--region", "a=b"]),
        (",,ro,,", []),
    ],
)
def test_options(text: str, flags: list[str]) -> None:
    assert options(text) == flags


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("cache_sise=1G", "'cache_sise' is unknown", "did you mean cache_size?"),
        ("zzzzzz", "'zzzzzz' is unknown", "allowed: config, torchserve_config, credentials, ro, endpoint_url"),
        ("proxy", "'proxy' needs a value", "proxy=URL"),
        ("proxy=", "'proxy' needs a value", "proxy=URL"),
        ("config", "'config' is unknown", ""),
        ("anonymous=maybe", "anonymous='maybe' is neither true nor false", ""),
        ("remount,ro", "'remount' is not supported", "mount it again"),
        ("foreground", "'foreground' is not supported", "d7yfs mount --foreground"),
    ],
)
def test_refused(text: str, what: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        options(text)
    assert what in caught.value.message
    assert hint in caught.value.hint


def test_switches() -> None:
    assert options("rw", "-s", "-n") == []
    assert options("rw,unknown=1", "-s") == []
    assert options("rw", "-v") == ["--log-level", "debug"]
    assert options("rw,log_level=error", "-v") == ["--log-level", "error"]
    assert options("rw", "-t", "d7yfs") == []
    assert translate(["-o", "ro", URL, "/mnt"]) == ["mount", "--", URL, "/mnt"]
    assert translate([URL, "/mnt", "-o", "region=a", "-o", "uid=1"])[1:-3] == ["--region", "a", "--uid", "1"]
    assert translate([URL, "/mnt", "-f", "-o", "ro"]) == []
    with pytest.raises(UsageError, match="unknown"):
        translate([URL, "/mnt", "-f", "-o", "unknown"])


@pytest.mark.parametrize("argv", [[], [URL], [URL, "/mnt", "/other"], [URL, "/mnt", "-x"], [URL, "/mnt", "-N", "/ns"]])
def test_wrong_calls(argv: list[str]) -> None:
    with pytest.raises(UsageError) as caught:
        translate(argv)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("source", "sources"),
    [
        ("llm=s3://a/x", ["llm=s3://a/x"]),
        ("llm=s3://a/x;vision=s3://b/y;z", ["llm=s3://a/x", "vision=s3://b/y;z"]),
        ("s3://a/x;y=z", ["s3://a/x;y=z"]),
        ("none", []),
    ],
)
def test_sources(source: str, sources: list[str]) -> None:
    again = [] if sources else ["--unless-mounted"]
    assert translate([source, "/mnt", "-o", "rw"]) == ["mount", *again, "--", *sources, "/mnt"]


def test_split_options() -> None:
    assert list(split_options('a,b=1,c="x,y",d=\\",e=p\\,q,f="open')) == [
        "a",
        "b=1",
        "c=x,y",
        'd="',
        "e=p,q",
        'f="open',
    ]
    assert list(split_options("a=\\x\\\\y,b")) == ["a=\\x\\y", "b"]


def test_main_shows_errors_without_traceback(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["mount.d7yfs", URL, "/mnt", "-o", "cache_sise=1G"])
    with pytest.raises(SystemExit) as caught:
        mount_helper.main()
    assert caught.value.code == 2
    assert capsys.readouterr().err.startswith("d7yfs: error: mount option 'cache_sise' is unknown\nhint: ")


def test_main_hands_over_to_the_mount_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in sys.argv, from which the command starts its daemon."""

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("arguments", nargs=-1)
    def mount(arguments: tuple[str, ...]) -> None:
        click.echo(f"{list(arguments)} {sys.argv[1:]}")

    monkeypatch.setitem(sys.modules, "d7yfs.cli.mount", SimpleNamespace(mount=mount))
    monkeypatch.setattr(sys, "argv", ["/sbin/mount.d7yfs", URL, "/mnt", "-o", "rw,region=r"])
    with pytest.raises(SystemExit) as caught:
        mount_helper.main()
    assert caught.value.code == 0
    arguments = ["--region", "r", "--", URL, "/mnt"]
    assert capsys.readouterr().out == f"{arguments[:2] + arguments[3:]} {['mount', *arguments]}\n"


@pytest.mark.mount
def test_mount_itself_calls_it_in_this_form(tmp_path: Path) -> None:
    """The real mount(8); its helper stands on a tmpfs over /usr/sbin in a mount namespace that ends with the test."""
    helper = tmp_path / "helper"
    root = Path(mount_helper.__file__).parents[2]
    helper.write_text(
        f"#!{sys.executable}\nimport json, sys; sys.path.insert(0, {str(root)!r})\n"
        "from d7yfs.cli.mount_helper import translate\nprint(json.dumps([sys.argv[1:], translate(sys.argv[1:])]))\n"
    )
    helper.chmod(0o755)
    script = """
        mount -t tmpfs none "$(readlink -f /sbin)" && cp "$1" /sbin/mount.d7yfs && mkdir "$1.d" &&
        mount -t d7yfs "$2" "$1.d" &&
        mount -t d7yfs "$2" "$1.d" -v -o 'defaults,noauto,nofail,_netdev,nosuid,x-a=1,region="a,b",profile=c\\,d'
    """
    result = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script, "sh", str(helper), URL], capture_output=True, text=True, check=True
    )
    (plain, first), (full, second) = [json.loads(line) for line in result.stdout.splitlines()]
    assert plain == [URL, f"{helper}.d", "-o", "rw"]
    assert first == ["mount", "--", URL, f"{helper}.d"]
    assert full[2:4] == ["-v", "-o"]
    assert second[1:-3] == ["--region", "a,b", "--profile", "c,d", "--log-level", "debug"]
