"""The sources of settings: flags > D7YFS_* variables > TOML > files of Triton and TorchServe >
what `for` chooses > defaults, and which one won.

Owns the precedence and the provenance; every command calls `load_settings` once. Each value is read
at once by its option's `Kind`, so a wrong one is an error even in a layer that a higher one
overrides.

One source supplies a whole credential. Where flags, variables or TOML say `anonymous` or `profile`,
nothing of Triton's credential file is used for that repository, not even its region.

Without an explicit path (`--config`, `D7YFS_CONFIG`) no TOML file is read. A file of TorchServe's
earlier plugins comes before Triton's files if the user names it (`--torchserve-config`). It comes
after them if DRAGONFLY_ENDPOINT_CONFIG names it or it lies at its default path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from d7yfs.config import azure, torchserve
from d7yfs.config.host_files import HostFiles, PluginFile, read_files
from d7yfs.config.layers import Layer, Value, first, parse_value, spellings, suggestion
from d7yfs.config.presets import preset_layer
from d7yfs.config.schema import (
    OPTIONS,
    Anonymous,
    Config,
    Credentials,
    CredentialsFile,
    Option,
    Profile,
    ProviderChain,
    RepositoryConfig,
    default_cache_dir,
)
from d7yfs.config.settings_file import exposure, judge_home_again
from d7yfs.config.toml import Source, TomlFile, check_name, read_toml
from d7yfs.config.url import RepositoryUrl
from d7yfs.errors import ConfigError
from d7yfs.host.privileges import is_mounter_root
from d7yfs.objects import SecretStr

DEFAULT = "default"
COMMAND_LINE = "the command line"
CONFIG_VARIABLE = "D7YFS_CONFIG"
SOURCE_VARIABLE = "D7YFS_SOURCE"
"""The repositories as `mount` takes them, separated by spaces."""
MOUNTPOINT_VARIABLE = "D7YFS_MOUNTPOINT"
TORCHSERVE_VARIABLE = "D7YFS_TORCHSERVE_CONFIG"
RUNTIME_VARIABLE = "D7YFS_RUNTIME_DIR"
"""Not a setting of one mount: `control_socket` finds every mount by it."""

# Kubernetes sets these in every pod of a namespace with a service called d7yfs.
_SERVICE_LINKS = re.compile(r"D7YFS_(SERVICE|PORT)(_.*)?")

_CREDENTIALS = tuple(option.name for option in OPTIONS.values() if option.names_credentials)

_Stack = Sequence[Layer]
"""The layers that apply to one repository, highest first."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The configuration, the secrets that belong to it, and where each setting came from."""

    config: Config
    credentials: Mapping[str, Credentials]
    """By repository name."""
    headers: Mapping[str, SecretStr]
    """For requests through dfdaemon's proxy only."""
    filter: tuple[str, ...]
    """Query parameters that are no part of a Dragonfly task's identity, besides the signature's."""
    provenance: Mapping[str, str]
    """Source of each setting, in words; settings of a named repository as `NAME.region`."""
    warnings: tuple[str, ...]

    def require_mountpoint(self) -> Path:
        """The mount point. Raises ConfigError if no source gave one."""
        if self.config.mountpoint is None:
            raise ConfigError(
                "no mount point is given",
                hint=f"name a directory after the URL, set {MOUNTPOINT_VARIABLE} or `mountpoint` in the TOML file",
            )
        return self.config.mountpoint

    def locate(self, error: ConfigError, repository: str = "") -> ConfigError:
        """The error, with the sources of the settings that it is about."""
        found = {
            name: self.provenance.get(_qualified(repository, name)) or self.provenance.get(name, DEFAULT)
            for name in error.settings
        }
        said = ", ".join(
            f"{name} {'are' if name == 'credentials' else 'is'} from {where}"
            for name, where in found.items()
            if where != DEFAULT
        )
        return ConfigError(f"{error.message} ({said})", hint=error.hint) if said else error

    def explain(self) -> dict[str, dict[str, str]]:
        """`{setting: {"value": …, "from": …}}` in the order of the help, without secrets."""
        shown = {"mountpoint": str(self.config.mountpoint)} if self.config.mountpoint else {}
        for repository in self.config.repositories:
            shown[_qualified(repository.name, "url")] = str(repository.url)
            shown[_qualified(repository.name, "credentials")] = str(self.credentials[repository.name])
            for option in OPTIONS.values():
                # The row of the credentials covers the others.
                meant = option.per_repository and option.means_something_for(repository.url.scheme)
                if meant and not option.names_credentials:
                    shown[_qualified(repository.name, option.name)] = _shown(option, repository)
        for option in OPTIONS.values():
            if not option.per_repository:
                shown[option.name] = _shown(option, self.config)
        shown |= {"header": ", ".join(self.headers) or "none", "filter": ", ".join(self.filter) or "none"}
        return {name: {"value": value, "from": self.provenance.get(name, DEFAULT)} for name, value in shown.items()}


def load_settings(
    flags: Mapping[str, object],
    sources: Sequence[str],
    mountpoint: Path | None,
    environ: Mapping[str, str],
    toml_path: Path | None,
    *,
    torchserve_path: Path | None = None,
    here: Path | None = None,
    triton_home: Path = Path("/home/triton"),
    endpoint_file: Path = torchserve.ENDPOINT_FILE,
) -> Settings:
    """Join all layers into one validated configuration.

    `flags` holds option names with what the user gave (None: not given), `sources` each `URL` or
    `NAME=URL`. Relative paths are below `here`, by default the working directory. Raises
    ConfigError for anything unknown, malformed or contradictory in any layer; it names the file or
    flag, the key and what is allowed.
    """
    here = here or Path.cwd()
    judge_home_again()
    warnings: list[str] = []
    named = toml_path or environ.get(CONFIG_VARIABLE)
    toml = read_toml(here / named) if named else TomlFile({}, (), None)
    flag_layer = _flag_layer(flags, here)
    environ_layer = _environ_layer(environ, here, warnings)

    plugin_path = torchserve_path or environ.get(TORCHSERVE_VARIABLE)
    plugin = PluginFile.locate(here / plugin_path if plugin_path else None, environ, endpoint_file)
    if not (sources or environ.get(SOURCE_VARIABLE) or toml.sources):
        plugin = plugin.read()
    server = first("for", (flag_layer, environ_layer, toml.layer))
    preset = preset_layer(server.value) if server else {}
    chosen = _choose_sources(sources, environ, toml, plugin, warnings)
    plugin.check([source.url for source in chosen])
    stacks = [
        [
            _meant_for(source.url.scheme, layer)
            for layer in (flag_layer, environ_layer, source.layer, toml.layer, preset)
        ]
        for source in chosen
    ]
    files = read_files(
        environ,
        triton_home,
        plugin,
        credentials=not all(_explicit_credentials(stack) for stack in stacks),
        proxy=any(proxy is None or proxy.value for proxy in (first("proxy", stack) for stack in stacks)),
    )
    warnings += files.warnings({source.url.scheme for source in chosen})
    if named:
        warnings += filter(None, [exposure(here / named, secret=False)])
    resolved = [_resolve(source, stack, files, environ) for source, stack in zip(chosen, stacks, strict=True)]

    for _, credential, _ in resolved:
        if isinstance(credential.value, CredentialsFile):
            warnings += filter(None, [exposure(credential.value.path, secret=True)])
    for repository, _, _ in resolved:
        if repository.p2p_secret_file:
            warnings += filter(None, [exposure(repository.p2p_secret_file, secret=True)])

    values: dict[str, Any] = {"cache_dir": default_cache_dir(environ, root=is_mounter_root())}
    provenance: dict[str, str] = {}
    for option in OPTIONS.values():
        if not option.per_repository and (found := first(option.name, (flag_layer, environ_layer, toml.layer, preset))):
            values[option.field] = found.value
            provenance[option.name] = found.where
    if token_file := values.get("dragonfly_manager_token_file"):
        warnings += filter(None, [exposure(token_file, secret=True)])
    place = _choose_mountpoint(mountpoint, environ, toml, here)
    if place:
        values["mountpoint"] = place.value
        provenance["mountpoint"] = place.where
    for repository, _, places in resolved:
        provenance |= {_qualified(repository.name, setting): where for setting, where in places.items()}
    if files.dragonfly:
        provenance |= dict.fromkeys(("header", "filter"), str(files.dragonfly.path))
    return Settings(
        config=Config(repositories=tuple(repository for repository, _, _ in resolved), **values),
        credentials={repository.name: credential.value for repository, credential, _ in resolved},
        headers=files.dragonfly.headers if files.dragonfly else {},
        filter=files.dragonfly.filter if files.dragonfly else (),
        provenance=provenance,
        warnings=tuple(warnings),
    )


def parse_source(text: str) -> tuple[str, RepositoryUrl]:
    """Name (empty when there is none) and URL of `URL` or `NAME=URL`. Raises ConfigError."""
    # A '=' inside a URL's prefix is no separator: a name comes before the scheme.
    name, separator, url = text.partition("=")
    if not separator or "://" in name:
        return "", RepositoryUrl.parse(text)
    check_name(name, "repository name")
    return name, RepositoryUrl.parse(url)


def split_sources(text: str) -> list[str]:
    """The sources in a mount's one `SOURCE`, as fstab and the mount table have it: `URL`, or
    several `NAME=URL` separated by `;`."""
    # A ';' may be part of a prefix: it separates only if another NAME=SCHEME:// follows.
    return re.split(r";(?=[^;/:=]+=[A-Za-z0-9]+://)", text)


def _flag_layer(flags: Mapping[str, object], here: Path) -> Layer:
    layer = {}
    for name, raw in flags.items():
        if raw is None:
            continue
        if name not in OPTIONS:
            raise ConfigError(f"option {name!r} is unknown", hint=suggestion(name, spellings(OPTIONS.values())))
        option = OPTIONS[name]
        layer[name] = parse_value(option, raw, option.off_flag if raw is False else option.flag, "", here)
    return layer


def _environ_layer(environ: Mapping[str, str], here: Path, warnings: list[str]) -> Layer:
    """The options in `D7YFS_*` variables; empty ones count as absent, as containers pass them."""
    options = {option.variable: option for option in OPTIONS.values()}
    others = (CONFIG_VARIABLE, SOURCE_VARIABLE, MOUNTPOINT_VARIABLE, TORCHSERVE_VARIABLE, RUNTIME_VARIABLE)
    layer = {}
    for variable in sorted(name for name in environ if name.startswith("D7YFS_")):
        if variable in options:
            option = options[variable]
            if environ[variable]:
                layer[option.name] = parse_value(option, environ[variable], variable, "", here)
        elif variable not in others and not _SERVICE_LINKS.fullmatch(variable):
            # A warning, not an error: the environment belongs to others too.
            known = {
                f"D7YFS_{wrong.upper()}": f"D7YFS_{right.upper()}"
                for wrong, right in spellings(OPTIONS.values()).items()
            }
            hint = suggestion(variable, known | {other: other for other in others})
            warnings.append(f"variable {variable} is unknown and is ignored; {hint}")
    return layer


def _choose_sources(
    sources: Sequence[str],
    environ: Mapping[str, str],
    toml: TomlFile,
    plugin: PluginFile,
    warnings: list[str],
) -> tuple[Source, ...]:
    chosen = toml.sources
    if sources:
        chosen = tuple(Source(name, url, COMMAND_LINE) for name, url in map(parse_source, sources))
    elif environ.get(SOURCE_VARIABLE):
        try:
            pairs = [parse_source(text) for text in environ[SOURCE_VARIABLE].split()]
        except ConfigError as error:
            raise ConfigError(f"{SOURCE_VARIABLE}: {error.message}", hint=error.hint) from None
        chosen = tuple(Source(name, url, SOURCE_VARIABLE) for name, url in pairs)
    elif not chosen and plugin.storage:
        chosen = (Source("", plugin.storage.url, str(plugin.path)),)
    if chosen is not toml.sources:
        warnings += [
            f"{source.where} is ignored, because {chosen[0].where} names the repositories"
            for source in toml.sources
            if source.layer
        ]
    names = [source.name for source in chosen]
    if not names:
        raise ConfigError(
            "no repository is given",
            hint=f"name one such as s3://bucket/prefix, or give it in {SOURCE_VARIABLE} or in a TOML file (--config)",
        )
    if len(names) > 1 and "" in names:
        raise ConfigError(
            f"{chosen[0].where}: several repositories need a name each",
            hint="write NAME=URL NAME=URL: each NAME becomes a directory",
        )
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{chosen[0].where}: repository name {name!r} is given twice",
                hint="each NAME becomes a directory of its own",
            )
    return chosen


def _choose_mountpoint(argument: Path | None, environ: Mapping[str, str], toml: TomlFile, here: Path) -> Value | None:
    if argument is not None:
        return Value(here / argument, COMMAND_LINE)
    if environ.get(MOUNTPOINT_VARIABLE):
        return Value(here / environ[MOUNTPOINT_VARIABLE], MOUNTPOINT_VARIABLE)
    return toml.mountpoint


def _resolve(
    source: Source, stack: _Stack, files: HostFiles, environ: Mapping[str, str]
) -> tuple[RepositoryConfig, Value, Mapping[str, str]]:
    """One repository's options from its layers, variables and files, its credentials, and where
    each came from."""
    below: dict[str, Value] = {}
    if files.dragonfly:
        below["proxy"] = Value(files.dragonfly.proxy, str(files.dragonfly.path))
    credential = _explicit_credentials(stack)
    held, chosen = files.plugin.credentials_of(source.url), files.plugin.chosen
    if held and (chosen or source.where == str(files.plugin.path)):
        below |= held[1]
    if credential is None:
        credential, more = (
            (held if chosen else None)
            or (azure.from_environ(environ, source.url.account) if source.url.scheme == "as" else None)
            or files.credentials_of(source.url)
            or held
            or (Value(ProviderChain(), DEFAULT), {})
        )
        below |= more
    _check_schemes(source)

    found = {
        option.name: value
        for option in OPTIONS.values()
        if option.per_repository and (value := first(option.name, (*stack, below)))
    }
    if source.url.endpoint_url:
        found["endpoint_url"] = Value(source.url.endpoint_url, "the URL")
    bundle = found.get("ca_bundle")
    if bundle and not bundle.value.is_file():
        raise ConfigError(f"{bundle.where}: ca_bundle {str(bundle.value)!r} is not a file", hint="allowed: a PEM file")
    values = {OPTIONS[name].field: value.value for name, value in found.items()}
    provenance = {"url": source.where, "credentials": credential.where}
    provenance |= {name: value.where for name, value in found.items()}
    return RepositoryConfig(name=source.name, url=source.url, **values), credential, provenance


def _meant_for(scheme: str, layer: Layer) -> Layer:
    """The options of `layer` that `scheme` has: flags and variables are for all repositories."""
    return {name: value for name, value in layer.items() if OPTIONS[name].means_something_for(scheme)}


def _check_schemes(source: Source) -> None:
    """Raise ConfigError for an option in a repository's table that its provider does not have."""
    for name, value in source.layer.items():
        if not OPTIONS[name].means_something_for(source.url.scheme):
            meant = ", ".join(f"{scheme}://" for scheme in OPTIONS[name].schemes)
            raise ConfigError(
                f"{value.where}: {name} means nothing for {source.url.scheme}://",
                hint=f"remove it: only {meant} has it",
            )


def _explicit_credentials(stack: _Stack) -> Value | None:
    """The credentials that layers choose; None for none, or only `anonymous = false`."""
    signed = False
    for layer in stack:
        given = {name: layer[name] for name in _CREDENTIALS if name in layer and layer[name].value}
        if len(given) > 1:
            both = " and ".join(f"{name} ({value.where})" for name, value in given.items())
            raise ConfigError(f"both are given: {both}", hint="choose one")
        if found := given.get("profile"):
            return Value(Profile(found.value), found.where)
        if found := given.get("credentials_file"):
            return Value(CredentialsFile(found.value), found.where)
        if "anonymous" in given and not signed:
            return Value(Anonymous(), given["anonymous"].where)
        signed = signed or "anonymous" in layer
    return None


def _qualified(repository: str, setting: str) -> str:
    return f"{repository}.{setting}" if repository else setting


def _shown(option: Option, holder: RepositoryConfig | Config) -> str:
    return option.kind.show(getattr(holder, option.field)) or option.default
