"""Precedence of the layers, credentials as a whole, and where each setting came from."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from d7yfs.config.schema import (
    OPTIONS,
    Anonymous,
    Credentials,
    CredentialsFile,
    Profile,
    ProviderChain,
    StaticKeys,
)
from d7yfs.config.sources import Settings, load_settings, parse_source
from d7yfs.errors import ConfigError
from d7yfs.objects import SecretStr

SECRET = "wJalrXUtnFEMI/hunter2"
URL = "s3://models/triton"


class Host:
    """A directory with the files of one host, and what its environment says."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.home = root / "triton"
        self.home.mkdir()
        self.environ: dict[str, str] = {"HOME": str(root)}

    def write(self, name: str, content: Any) -> Path:
        path = self.root / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    def load(
        self,
        *sources: str,
        toml: str | None = None,
        mountpoint: Path | None = None,
        environ: dict[str, str] | None = None,
        torchserve_path: Path | None = None,
        **flags: Any,
    ) -> Settings:
        path = self.write("config.toml", toml) if toml is not None else None
        environ = self.environ | (environ or {})
        homes = {"triton_home": self.home, "endpoint_file": self.root / "endpoint.json"}
        return load_settings(flags, sources, mountpoint, environ, path, torchserve_path=torchserve_path, **homes)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_defaults(host: Host) -> None:
    settings = host.load(URL)
    (repository,) = settings.config.repositories
    assert repository.name == ""
    assert str(repository.url) == URL
    assert repository.proxy == ""
    assert repository.fallback is True
    assert settings.credentials == {"": ProviderChain()}
    assert settings.headers == {}
    assert settings.filter == ()
    assert settings.warnings == ()
    rows = settings.explain()
    assert rows["url"] == {"value": URL, "from": "the command line"}
    assert {row["from"] for name, row in rows.items() if name != "url"} == {"default"}
    with pytest.raises(ConfigError, match="no mount point"):
        settings.require_mountpoint()


def test_no_toml_is_read_unless_named(host: Host) -> None:
    path = host.write("config.toml", 'region = "toml"')
    assert host.load(URL).config.repositories[0].region == ""
    settings = host.load(URL, environ={"D7YFS_CONFIG": str(path)})
    assert settings.config.repositories[0].region == "toml"
    with pytest.raises(ConfigError, match="cannot be read"):
        host.load(URL, environ={"D7YFS_CONFIG": str(path) + "x"})


LAYERS = ("flag", "variable", "table", "toml", "triton")


@pytest.mark.parametrize(
    "present", [subset for size in range(1, 6) for subset in itertools.combinations(LAYERS, size)], ids="+".join
)
def test_the_highest_layer_wins(host: Host, present: tuple[str, ...]) -> None:
    """Every subset of the layers, for an option of each sort: `region` of a repository, `proxy` of the Dragonfly file."""
    credential = host.write("credentials.json", {"s3": {"": {"region": "triton"}}})
    agent = host.write("agent.json", {"proxy": "triton:1"})
    environ: dict[str, str] = {}
    if "variable" in present:
        environ |= {"D7YFS_REGION": "variable", "D7YFS_PROXY": "variable:1"}
    if "triton" in present:
        environ |= {"TRITON_CLOUD_CREDENTIAL_PATH": str(credential), "TRITON_DRAGONFLY_CONFIG_PATH": str(agent)}
    toml = 'region = "toml"\nproxy = "toml:1"\n' if "toml" in present else ""
    toml += f'[repositories.llm]\nurl = "{URL}"\n'
    toml += 'region = "table"\nproxy = "table:1"\n' if "table" in present else ""
    flags: dict[str, Any] = {"region": "flag", "proxy": "flag:1"} if "flag" in present else {}

    settings = host.load(toml=toml, environ=environ, **flags)

    (repository,) = settings.config.repositories
    assert repository.region == present[0]
    assert repository.proxy == f"http://{present[0]}:1"
    where = {
        "flag": ("--region", "--proxy"),
        "variable": ("D7YFS_REGION", "D7YFS_PROXY"),
        "table": (f"{host.root}/config.toml: [repositories.llm]",) * 2,
        "toml": (f"{host.root}/config.toml",) * 2,
        "triton": (f'{credential}, key ""', str(agent)),
    }[present[0]]
    rows = settings.explain()
    assert (rows["llm.region"]["from"], rows["llm.proxy"]["from"]) == where


@pytest.mark.parametrize("present", [("flag", "variable", "toml"), ("variable", "toml"), ("toml",), ()])
def test_options_of_the_mount(host: Host, present: tuple[str, ...]) -> None:
    values = {"flag": "1GiB", "variable": "2GiB", "toml": "3GiB"}
    settings = host.load(
        URL,
        toml='cache_size = "3GiB"' if "toml" in present else "",
        environ={"D7YFS_CACHE_SIZE": "2GiB"} if "variable" in present else {},
        cache_size="1GiB" if "flag" in present else None,
    )
    where = {"flag": "--cache-size", "variable": "D7YFS_CACHE_SIZE", "toml": str(host.root / "config.toml")}
    winner = present[0] if present else ""
    assert settings.explain()["cache_size"] == {
        "value": values.get(winner, "50GiB"),
        "from": where.get(winner, "default"),
    }


def test_every_option_by_every_way(host: Host) -> None:
    """Each option has one name: as a flag, as a variable and as a key, with and without dashes."""
    texts = {
        "endpoint_url": "https://s3.example.com",
        "profile": "dev",
        "proxy": "http://h:4001",
        "ca_bundle": str(host.write("ca.pem", "")),
        "cache_dir": "/c",
        "log_file": "/l",
        "file_mode": "0400",
        "dir_mode": "0500",
        "addressing_style": "path",
        "log_level": "debug",
        "listing": "exact",
        "max_inodes": "5000",
        "log_format": "json",
        "region": "r",
        "verify": "full",
        "cache_trust": "shared",
        "signature": "v1",
        "control_proxy": "http://h:3128",
        "credentials_file": "/f",
        "p2p": "*.json=never,always",
        "dfdaemon_socket": "unix:///run/d.sock",
        "p2p_priority": "3",
        "p2p_verify": "sampled",
        "p2p_secret_file": "/s",
        "dragonfly_manager": "http://manager:8080",
        "dragonfly_manager_token_file": "/t",
        "metrics_listen": "0.0.0.0:7718",
        "fuse_helper": "/h.sock",
        "fuse_engine": "pyfuse3",
        "takeover": "cold",
        "open_wait": "0.25s",
        "tree_cache": "off",
        "offline": "serve",
        "for": "triton",
    }
    for option in OPTIONS.values():
        url = f"{(option.schemes or ('s3',))[0]}://account/models"
        text = texts.get(option.name) or (
            "true" if option.off_flag else "20s" if "TIME" in option.kind.metavar else "32"
        )
        if option.kind.metavar == "SIZE":
            text = "32MiB"
        expected = option.kind.show(option.kind.parse(text))
        for settings in (
            host.load(url, **dict[str, Any]({option.name: text})),
            host.load(url, environ={option.variable: text}),
            host.load(url, toml=f'{option.name} = "{text}"'),
            host.load(url, toml=f'{option.name.replace("_", "-")} = "{text}"'),
        ):
            holder = settings.config.repositories[0] if option.per_repository else settings.config
            assert option.kind.show(getattr(holder, option.field)) == expected
            setting = "credentials" if option.name in ("profile", "anonymous", "credentials_file") else option.name
            assert settings.explain()[setting]["from"] != "default"


def test_off_flag_is_named(host: Host) -> None:
    rows = host.load(URL, fallback=False, verify_tls=False).explain()
    assert rows["fallback"] == {"value": "false", "from": "--no-fallback"}
    assert rows["verify_tls"] == {"value": "false", "from": "--insecure-skip-tls-verify"}


def test_wrong_values_are_refused_in_every_layer(host: Host) -> None:
    with pytest.raises(ConfigError, match="--cache-size 'x' is not a size; allowed: "):
        host.load(URL, cache_size="x")
    with pytest.raises(ConfigError, match="D7YFS_CACHE_SIZE 'x' is not a size; allowed: "):
        host.load(URL, environ={"D7YFS_CACHE_SIZE": "x"}, cache_size="1G")
    with pytest.raises(ConfigError, match=r"--ca-bundle: ca_bundle '/absent.pem' is not a file"):
        host.load(URL, ca_bundle="/absent.pem")
    with pytest.raises(ConfigError, match=r"option 'cache_sice' is unknown .did you mean cache_size"):
        host.load(URL, cache_sice="1G")
    with pytest.raises(ConfigError) as caught:
        host.load(URL, environ={"D7YFS_PROXY": f"http://u:{SECRET}@h:1"})
    assert SECRET not in str(caught.value)


def test_unknown_variables_warn_but_not_those_of_kubernetes(host: Host) -> None:
    environ = {
        "D7YFS_CACHE_SISE": "1",
        "D7YFS_NO_FALLBACK": "1",
        "D7YFS_SERVICE_HOST": "10.0.0.1",
        "D7YFS_PORT": "tcp://10.0.0.1:80",
        "D7YFS_PORT_80_TCP_ADDR": "10.0.0.1",
        "D7YFS_REGION": "",
    }
    warnings = host.load(URL, environ=environ).warnings
    assert [warning.partition(";")[2] for warning in warnings] == [
        " did you mean D7YFS_CACHE_SIZE?",
        " did you mean D7YFS_FALLBACK=FALSE?",
    ]


def test_paths_become_absolute(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(host.root)
    settings = host.load(URL, mountpoint=Path("mnt"), cache_dir="cache", environ={"D7YFS_LOG_FILE": "log"})
    assert settings.require_mountpoint() == host.root / "mnt"
    assert settings.config.cache_dir == host.root / "cache"
    assert settings.config.log_file == host.root / "log"


# ------------------------------------------------------------------------------------------------------- repositories


def test_mountpoint_layers(host: Host) -> None:
    toml = 'mountpoint = "/toml"'
    environ = {"D7YFS_MOUNTPOINT": "/variable"}
    for mountpoint, variables, expected, where in (
        (Path("/argument"), environ, "/argument", "the command line"),
        (None, environ, "/variable", "D7YFS_MOUNTPOINT"),
        (None, {}, "/toml", str(host.root / "config.toml")),
    ):
        settings = host.load(URL, toml=toml, mountpoint=mountpoint, environ=variables)
        assert settings.explain()["mountpoint"] == {"value": expected, "from": where}


def test_sources_layers(host: Host) -> None:
    toml = '[repositories.toml]\nurl = "s3://toml"\nregion = "r"'
    environ = {"D7YFS_SOURCE": "a=s3://one b=s3://two/x=y"}
    settings = host.load("llm=s3://a/x", "vision=s3://b/y", toml=toml, environ=environ)
    assert [(one.name, str(one.url)) for one in settings.config.repositories] == [
        ("llm", "s3://a/x"),
        ("vision", "s3://b/y"),
    ]
    assert "[repositories.toml] is ignored, because the command line names" in settings.warnings[0]
    settings = host.load(toml=toml, environ=environ)
    assert [(one.name, str(one.url)) for one in settings.config.repositories] == [
        ("a", "s3://one"),
        ("b", "s3://two/x=y"),
    ]
    assert settings.explain()["a.url"]["from"] == "D7YFS_SOURCE"
    settings = host.load(toml=toml)
    assert settings.config.repositories[0].region == "r"
    assert settings.warnings == ()


@pytest.mark.parametrize(
    ("text", "name", "url"),
    [
        ("s3://b/x=y", "", "s3://b/x=y"),
        ("llm=s3://b/x=y", "llm", "s3://b/x=y"),
        ("größe 2=s3://b", "größe 2", "s3://b"),
    ],
)
def test_parse_source(text: str, name: str, url: str) -> None:
    found, parsed = parse_source(text)
    assert (found, str(parsed)) == (name, url)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a\nb", "x" * 256, "ü" * 128])
def test_names_that_are_no_directory(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be a directory"):
        parse_source(f"{name}=s3://b")


@pytest.mark.parametrize(
    ("sources", "what"),
    [
        ((), "no repository is given"),
        (("s3://a", "s3://b"), "need a name each"),
        (("s3://a", "b=s3://b"), "need a name each"),
        (("b=s3://a", "b=s3://b"), "'b' is given twice"),
        (("b=models",), "no scheme"),
    ],
)
def test_sources_that_do_not_fit_together(host: Host, sources: tuple[str, ...], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        host.load(*sources)
    if sources:
        with pytest.raises(ConfigError, match=what):
            host.load(environ={"D7YFS_SOURCE": " ".join(sources)})


def test_endpoint_in_the_url_wins(host: Host) -> None:
    settings = host.load("a=s3://minio:9000/b", "b=s3://b", endpoint_url="https://other")
    assert [one.endpoint_url for one in settings.config.repositories] == ["http://minio:9000", "https://other"]
    rows = settings.explain()
    assert rows["a.endpoint_url"]["from"] == "the URL"
    assert rows["b.endpoint_url"]["from"] == "--endpoint-url"


# -------------------------------------------------------------------------------------------------------- credentials

KEYS = {"key_id": "AKIA", "secret_key": SECRET, "region": "triton"}
STATIC = StaticKeys("AKIA", SecretStr(SECRET))


@pytest.mark.parametrize(
    ("flags", "environ", "toml", "expected", "where"),
    [
        ({}, {}, "", STATIC, "file"),
        ({"profile": "p"}, {}, "", Profile("p"), "--profile"),
        ({"anonymous": True}, {}, "", Anonymous(), "--anonymous"),
        ({}, {"D7YFS_PROFILE": "p"}, "", Profile("p"), "D7YFS_PROFILE"),
        ({}, {"D7YFS_ANONYMOUS": "true"}, 'profile = "p"', Anonymous(), "D7YFS_ANONYMOUS"),
        ({"profile": "p"}, {"D7YFS_ANONYMOUS": "true"}, "", Profile("p"), "--profile"),
        ({"anonymous": True}, {"D7YFS_PROFILE": "p"}, "", Anonymous(), "--anonymous"),
        ({}, {}, "anonymous = true", Anonymous(), "toml"),
        ({"anonymous": False}, {}, "anonymous = true", STATIC, "file"),
        ({"anonymous": False}, {"D7YFS_PROFILE": "p"}, "anonymous = true", Profile("p"), "D7YFS_PROFILE"),
        ({"profile": ""}, {}, "", STATIC, "file"),
    ],
)
def test_one_source_supplies_a_whole_credential(
    host: Host, flags: dict[str, Any], environ: dict[str, str], toml: str, expected: Credentials, where: str
) -> None:
    file = host.write("triton/cloud_credential.json", {"s3": {"": KEYS}})
    settings = host.load(URL, toml=toml, environ=environ, **flags)
    (repository,) = settings.config.repositories
    assert settings.credentials[""] == expected
    # The file's region goes with its keys.
    assert repository.region == ("triton" if expected == STATIC else "")
    where = {"file": f'{file}, key ""', "toml": str(host.root / "config.toml")}.get(where, where)
    assert settings.explain()["credentials"]["from"] == where


def test_region_of_a_higher_layer_with_keys_of_the_file(host: Host) -> None:
    host.write("triton/cloud_credential.json", {"s3": {"": KEYS}})
    settings = host.load(URL, region="flag")
    assert settings.credentials[""] == STATIC
    assert settings.config.repositories[0].region == "flag"


def test_both_in_one_layer_is_a_contradiction(host: Host) -> None:
    with pytest.raises(ConfigError, match=r"both are given: profile .--profile. and anonymous"):
        host.load(URL, profile="p", anonymous=True)


def test_each_repository_has_its_own_credentials(host: Host) -> None:
    file = host.write(
        "credentials.json",
        {"s3": {"s3://models": {"profile": "models"}, "s3://http://minio:9000/b": KEYS, "s3://chain": {}}},
    )
    toml = """
        [repositories.a]
        url = "s3://models/x"
        [repositories.b]
        url = "s3://minio:9000/b/y"
        [repositories.c]
        url = "s3://public"
        anonymous = true
        [repositories.d]
        url = "s3://chain"
    """
    settings = host.load(toml=toml, environ={"TRITON_CLOUD_CREDENTIAL_PATH": str(file)})
    assert settings.credentials == {"a": Profile("models"), "b": STATIC, "c": Anonymous(), "d": ProviderChain()}
    assert [one.region for one in settings.config.repositories] == ["", "triton", "", ""]
    rows = settings.explain()
    assert rows["b.credentials"]["from"] == f'{file}, key "s3://http://minio:9000/b"'
    assert rows["d.credentials"]["from"] == f'{file}, key "s3://chain"'


def test_no_matching_key_is_an_error_that_names_url_and_keys(host: Host) -> None:
    host.write("triton/cloud_credential.json", {"s3": {"s3://other": KEYS}})
    with pytest.raises(ConfigError) as caught:
        host.load(URL)
    assert URL in caught.value.message
    assert '"s3://other"' in caught.value.message
    assert host.load(URL, profile="p").credentials[""] == Profile("p")


def test_a_variable_that_names_a_missing_file_is_never_a_fall_through(host: Host) -> None:
    host.write("triton/cloud_credential.json", {"s3": {"": KEYS}})
    host.write("triton/dragonfly_config.json", {"proxy": "h:1"})
    for variable in ("TRITON_CLOUD_CREDENTIAL_PATH", "TRITON_DRAGONFLY_CONFIG_PATH"):
        for anonymous, proxy in ((None, None), (True, "none")):
            with pytest.raises(ConfigError, match="/absent: cannot be read"):
                host.load(URL, environ={variable: "/absent"}, anonymous=anonymous, proxy=proxy)


def test_an_unneeded_default_file_does_not_hinder(host: Host) -> None:
    host.write("triton/cloud_credential.json", "{broken")
    host.write("triton/dragonfly_config.json", "{broken")
    with pytest.raises(ConfigError, match=r"cloud_credential.json:1:2: not valid JSON"):
        host.load(URL)
    with pytest.raises(ConfigError, match=r"dragonfly_config.json:1:2: not valid JSON"):
        host.load(URL, anonymous=True)
    assert host.load(URL, anonymous=True, proxy="none").config.repositories[0].proxy == ""
    empty = {"TRITON_CLOUD_CREDENTIAL_PATH": "", "TRITON_DRAGONFLY_CONFIG_PATH": ""}
    assert host.load(URL, environ=empty).credentials[""] == ProviderChain()


def test_the_endpoints_file_counts_where_the_agents_is_not(host: Host) -> None:
    endpoint = host.write("endpoint.json", {"addr": "127.0.0.1", "filter": ["a"]})
    settings = host.load(URL)
    assert settings.config.repositories[0].proxy == "http://127.0.0.1:65001"
    assert settings.explain()["proxy"]["from"] == str(endpoint)
    assert settings.filter == ("a",)
    assert host.load(URL, proxy="none").filter == (), "not needed, not read"
    named = host.write("other.json", {"addr": "h:1"})
    settings = host.load(URL, environ={"DRAGONFLY_ENDPOINT_CONFIG": str(named)})
    assert settings.config.repositories[0].proxy == "http://h:1"
    assert host.load(URL, environ={"DRAGONFLY_ENDPOINT_CONFIG": ""}).config.repositories[0].proxy == ""
    with pytest.raises(ConfigError, match="/absent: cannot be read"):
        host.load(URL, environ={"DRAGONFLY_ENDPOINT_CONFIG": "/absent"}, proxy="none")
    host.write("triton/dragonfly_config.json", {"proxy": "agent:1"})
    assert host.load(URL).config.repositories[0].proxy == "http://agent:1"


def test_the_agents_file(host: Host) -> None:
    file = host.write(
        "triton/dragonfly_config.json",
        {"proxy": "127.0.0.1:4001", "header": {"X-Team": SECRET, "Host": "abc"}, "filter": ["a&b"]},
    )
    settings = host.load(URL)
    assert settings.config.repositories[0].proxy == "http://127.0.0.1:4001"
    assert settings.headers["X-Team"].get_secret_value() == SECRET
    assert settings.filter == ("a", "b")
    assert len(settings.warnings) == 1
    rows = settings.explain()
    assert rows["header"] == {"value": "X-Team", "from": str(file)}
    assert rows["filter"] == {"value": "a, b", "from": str(file)}
    # With another proxy the file's header and filter still hold: each setting is ranked by itself.
    settings = host.load(URL, proxy="other:1")
    assert settings.config.repositories[0].proxy == "http://other:1"
    assert settings.filter == ("a", "b")


def test_each_scheme_has_its_section_of_tritons_file(host: Host) -> None:
    keys = {"key_id": "LTAI", "secret_key": SECRET, "region": "cn-hangzhou"}
    sections = {
        "gs": {"": "/etc/gs.json", "gs://default": ""},
        "as": {
            "": {"account_str": "", "account_key": SECRET},
            "as://named": {"account_str": "Other", "account_key": SECRET},
        },
        "oss": {"": keys},
    }
    host.write("triton/cloud_credential.json", sections)
    expected = {
        "gs://bucket/x": CredentialsFile(Path("/etc/gs.json")),
        "gs://default/x": ProviderChain(else_anonymous=True),
        "as://account/c": StaticKeys("account", SecretStr(SECRET)),
        "as://named/c": StaticKeys("other", SecretStr(SECRET)),
        "oss://bucket": StaticKeys("LTAI", SecretStr(SECRET)),
        "obs://bucket": ProviderChain(),
    }
    for url, credentials in expected.items():
        assert host.load(url).credentials[""] == credentials, url
    assert host.load("oss://bucket").config.repositories[0].region == "cn-hangzhou"


def test_azures_variables_rank_above_tritons_file(host: Host) -> None:
    host.write("triton/cloud_credential.json", {"as": {"": {"account_str": "", "account_key": SECRET}}})
    environ = {
        "AZURE_STORAGE_CONNECTION_STRING": "AccountName=mine;AccountKey=a2V5;BlobEndpoint=http://127.0.0.1:1/mine"
    }
    settings = host.load("a=as://mine/c", "b=as://other/c", environ=environ)
    assert settings.credentials == {
        "a": StaticKeys("mine", SecretStr("a2V5")),
        "b": StaticKeys("other", SecretStr(SECRET)),
    }
    assert [each.endpoint_url for each in settings.config.repositories] == ["http://127.0.0.1:1", ""]
    assert settings.provenance["a.credentials"] == settings.provenance["a.endpoint_url"]
    assert settings.provenance["a.credentials"] == "AZURE_STORAGE_CONNECTION_STRING"
    assert host.load("as://mine/c", environ=environ, anonymous=True).credentials[""] == Anonymous()


def test_a_credentials_file(host: Host) -> None:
    toml = """
        [repositories.one]
        url = "gs://one"
        credentials_file = "keys/one.json"
        [repositories.two]
        url = "gs://two"
    """
    settings = host.load(toml=toml)
    assert settings.credentials == {"one": CredentialsFile(host.root / "keys/one.json"), "two": ProviderChain()}


def test_what_means_nothing_for_a_provider_is_refused_in_its_table(host: Host) -> None:
    with pytest.raises(ConfigError, match=r"profile means nothing for gs://.*s3://, oss://"):
        host.load(toml='[repositories.one]\nurl = "gs://one"\nprofile = "p"')


def test_what_is_said_to_all_repositories_counts_where_it_means_something(host: Host) -> None:
    settings = host.load("one=s3://one", "two=gs://two", profile="p", region="here")
    assert settings.credentials == {"one": Profile("p"), "two": ProviderChain()}
    assert [each.region for each in settings.config.repositories] == ["here", ""]
    assert "one.region" in settings.explain()
    assert "two.region" not in settings.explain()


def test_nothing_shown_holds_a_secret(host: Host) -> None:
    host.write("triton/cloud_credential.json", {"s3": {"": KEYS | {"session_token": SECRET, "extra": SECRET}}})
    host.write("triton/dragonfly_config.json", {"proxy": "h:1", "header": {"Authorization": SECRET, "X-A": SECRET}})
    settings = host.load(URL, mountpoint=Path("/mnt"))
    shown = [
        repr(settings),
        json.dumps(settings.explain()),
        repr(settings.config),
        *settings.warnings,
    ]
    assert [text for text in shown if SECRET in text] == []
    assert len(settings.warnings) == 2


# --- files of TorchServe's earlier plugins ---

PLUGIN = {"accessKeyId": "AKIA", "secretAccessKey": SECRET, "region": "r", "bucketName": "models", "key": "torch"}
PLUGIN_KEYS = StaticKeys("AKIA", SecretStr(SECRET))


def test_a_plugins_file_alone_says_what_to_mount(host: Host) -> None:
    file = host.write("s3.json", PLUGIN)
    settings = host.load(torchserve_path=file)
    (repository,) = settings.config.repositories
    assert (str(repository.url), repository.region) == ("s3://models/torch", "r")
    assert settings.credentials[""] == PLUGIN_KEYS
    assert {settings.provenance[name] for name in ("url", "region", "credentials")} == {str(file)}
    assert host.load(environ={"D7YFS_TORCHSERVE_CONFIG": str(file)}).config == settings.config


def test_all_that_is_said_elsewhere_wins_over_a_plugins_file(host: Host) -> None:
    file = host.write("s3.json", PLUGIN)
    settings = host.load("s3://models/other", torchserve_path=file, region="q", profile="p")
    assert str(settings.config.repositories[0].url) == "s3://models/other"
    assert settings.config.repositories[0].region == "q"
    assert settings.credentials[""] == Profile("p")
    settings = host.load(toml='source = "s3://models/toml"', torchserve_path=file)
    assert str(settings.config.repositories[0].url) == "s3://models/toml"
    assert settings.credentials[""] == PLUGIN_KEYS


def test_a_plugins_file_comes_before_tritons_when_it_is_named(host: Host) -> None:
    host.write("triton/cloud_credential.json", {"s3": {"": {"profile": "triton"}}})
    host.write("triton/dragonfly_config.json", {"proxy": "agent:1"})
    content = {"addr": "endpoint:1", "object_storage": {"type": "s3", "bucket_name": "models"}}
    content["object_storage"] |= {"access_key": "AKIA", "secret_key": SECRET}  # type: ignore[operator]
    file = host.write("endpoint.json", content)
    for environ in ({}, {"DRAGONFLY_ENDPOINT_CONFIG": str(file)}):
        settings = host.load(URL, environ=environ)
        assert settings.credentials[""] == Profile("triton")
        assert settings.config.repositories[0].proxy == "http://agent:1"
    settings = host.load(URL, torchserve_path=file)
    assert settings.credentials[""] == PLUGIN_KEYS
    assert settings.config.repositories[0].proxy == "http://endpoint:1"


def test_an_endpoints_file_gives_the_keys_of_its_own_bucket(host: Host) -> None:
    storage = {
        "type": "s3",
        "bucket_name": "models",
        "access_key": "AKIA",
        "secret_key": SECRET,
        "endpoint": "http://m:1",
    }
    host.write("endpoint.json", {"addr": "h", "object_storage": storage})
    settings = host.load()
    assert str(settings.config.repositories[0].url) == "s3://models"
    assert settings.config.repositories[0].endpoint_url == "http://m:1"
    assert host.load("s3://models/x").credentials[""] == PLUGIN_KEYS
    assert host.load("s3://http://m:1/models").credentials[""] == PLUGIN_KEYS
    settings = host.load(profile="p")
    assert settings.credentials[""] == Profile("p")
    assert settings.config.repositories[0].endpoint_url == "http://m:1", "where the bucket is, is no credential"
    assert host.load("s3://models", profile="p").config.repositories[0].endpoint_url == ""
    for other in ("s3://others", "s3://http://n:1/models", "gs://models"):
        assert host.load(other).credentials[""] == ProviderChain(), other
    assert host.load("s3://models", proxy="none").config.repositories[0].proxy == ""


def test_a_plugins_file_for_another_bucket_is_refused_when_it_is_named(host: Host) -> None:
    file = host.write("s3.json", PLUGIN)
    with pytest.raises(ConfigError, match="is for s3://models/torch, not for s3://others"):
        host.load("s3://others", torchserve_path=file)
    settings = host.load("a=s3://others", "b=s3://models/x", torchserve_path=file)
    assert settings.credentials == {"a": ProviderChain(), "b": PLUGIN_KEYS}
    # The format has no word for an address, so the user's own counts.
    assert host.load("s3://h:1/models", torchserve_path=file).credentials[""] == PLUGIN_KEYS


def test_a_plugins_file_that_names_no_bucket_names_no_repository(host: Host) -> None:
    with pytest.raises(ConfigError, match="no repository is given"):
        host.load(torchserve_path=host.write("s3.json", {"load_model": "all"}))


# --- attackers ---

NOBODY = 65534


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files to another user")
@pytest.mark.parametrize("name", ["cloud_credential.json", "dragonfly_config.json", "endpoint.json"])
@pytest.mark.parametrize("attack", ["owner", "directory", "fifo", "zero", "shadow"])
def test_no_default_place_lets_another_user_choose_credentials_or_proxy(host: Host, name: str, attack: str) -> None:
    """As tried for real: a credential of type external_account, a proxy, a FIFO, /dev/zero."""
    path = (host.root if name == "endpoint.json" else host.home) / name
    evil = {"s3": {"": {"key_id": "his", "secret_key": "his"}}, "proxy": "http://evil:1", "addr": "http://evil:1"}
    if attack in ("owner", "directory"):
        path.write_text(json.dumps(evil))
        os.chown(path if attack == "owner" else path.parent, NOBODY, -1)
    elif attack == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to(f"/etc/{attack}" if attack == "shadow" else f"/dev/{attack}")
    settings = host.load(URL)
    (repository,) = settings.config.repositories
    assert (repository.proxy, settings.credentials) == ("", {"": ProviderChain()})
    (warning,) = settings.warnings
    assert f"{path} is ignored: " in warning
    assert "to use it nevertheless" in warning


@pytest.mark.parametrize("kind", ["fifo", "zero", "huge"])
@pytest.mark.parametrize("variable", ["TRITON_CLOUD_CREDENTIAL_PATH", "TRITON_DRAGONFLY_CONFIG_PATH", "D7YFS_CONFIG"])
def test_a_named_file_stops_nothing_and_fills_no_memory(host: Host, variable: str, kind: str) -> None:
    path = host.root / "named"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "zero":
        path = Path("/dev/zero")
    else:
        path.touch()
        os.truncate(path, 1 << 40)
    with pytest.raises(ConfigError, match=r"no regular file|larger than 1 MiB"):
        host.load(URL, environ={variable: str(path)})


def test_named_files_that_others_can_change_or_read_are_warned_of(host: Host) -> None:
    credential = host.write("credentials.json", {"s3": {"": {"region": "r"}}})
    toml = host.write("c.toml", 'region = "toml"')
    environ = {"TRITON_CLOUD_CREDENTIAL_PATH": str(credential), "D7YFS_CONFIG": str(toml)}
    assert host.load(URL, environ=environ).warnings == ()
    credential.chmod(0o644)
    toml.chmod(0o602)
    found = "\n".join(host.load(URL, environ=environ).warnings)
    assert f"{credential} holds credentials that every user of this host can read" in found
    assert f"{toml} can be written by every user" in found
