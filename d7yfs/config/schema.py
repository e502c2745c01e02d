"""What can be configured: each option once, with its type, default and help. Frozen, and free of secrets.

A field of `RepositoryConfig` or `Config` that carries an `Opt` is an option. Its name is the field's without the unit
(`cache_size_bytes` is the option `cache_size`); the flag `--cache-size`, the variable `D7YFS_CACHE_SIZE` and the TOML key
`cache_size` all follow from it. Options of `RepositoryConfig` may differ between the repositories of one mount.

Secrets live in `Credentials`, apart from `Config`, so that a `Config` can be shown, logged and dumped whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, PlainSerializer, SecretStr

from d7yfs.config import kinds
from d7yfs.config.globs import Globs
from d7yfs.config.markers import Markers
from d7yfs.config.p2p import P2p
from d7yfs.config.url import RepositoryUrl

REPOSITORY = "Repository"
DRAGONFLY = "Dragonfly"
CACHE = "Cache and memory"
READING = "Freshness and timeouts"
MOUNT = "What the mount shows, and to whom"
PROCESS = "Process and log"
MONITORING = "Monitoring"
GROUPS = (REPOSITORY, DRAGONFLY, CACHE, READING, MOUNT, PROCESS, MONITORING)


@dataclass(frozen=True, slots=True)
class Opt:
    """Marks a field as an option."""

    kind: kinds.Kind
    group: str
    help: str
    """What `--help` says; for an option that is true by default, what turning it off does: its flag is the one to do so."""
    default: str = ""
    """Words for a default that depends on the host or says too little by itself."""
    off_flag: str = ""
    """Spelling of the flag that turns a true option off; `--no-NAME` when empty."""
    schemes: tuple[str, ...] = ()
    """Where it means anything; empty for everywhere."""


def default_cache_dir(environ: Mapping[str, str], *, root: bool) -> Path:
    """`/var/cache/d7yfs` for root, else `d7yfs` in the user's cache directory (XDG base directory specification)."""
    if root:
        return Path("/var/cache/d7yfs")
    # The specification says that a relative path is to be ignored.
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path(environ.get("HOME") or Path.home()) / ".cache") / "d7yfs"


def _is_root() -> bool:
    return os.geteuid() == 0


class RepositoryConfig(BaseModel):
    """One repository of a mount, with the options that may differ between repositories."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = ""
    """Name of its top-level directory; empty when the repository is the root of the mount."""
    url: Annotated[InstanceOf[RepositoryUrl], PlainSerializer(str, return_type=str)]

    endpoint_url: Annotated[
        str,
        Opt(
            kinds.ENDPOINT,
            REPOSITORY,
            "Address of the store's service, such as https://minio.example.com:9000. An endpoint inside the URL "
            "(s3://host:port/bucket) wins over it.",
            default="the provider's own",
        ),
    ] = ""
    endpoint_suffix: Annotated[
        str,
        Opt(
            kinds.HOST,
            REPOSITORY,
            "Domain of the provider's services in a sovereign or private cloud, such as core.chinacloudapi.cn, "
            "aliyuncs.com.example or myhuaweicloud.eu.",
            default="the public cloud's",
            schemes=("as", "oss", "obs"),
        ),
    ] = ""
    region: Annotated[
        str,
        Opt(
            kinds.TEXT,
            REPOSITORY,
            "Region of the bucket.",
            default="from the provider's own configuration",
            schemes=("s3", "oss", "obs"),
        ),
    ] = ""
    internal_endpoint: Annotated[
        bool,
        Opt(
            kinds.TRUTH,
            REPOSITORY,
            "Go to the region's -internal endpoint: from inside the provider's network, without traffic charges.",
            schemes=("oss",),
        ),
    ] = False
    dual_stack: Annotated[
        bool, Opt(kinds.TRUTH, REPOSITORY, "Go to AWS's endpoints that speak IPv6 too.", schemes=("s3",))
    ] = False
    accelerate: Annotated[
        bool,
        Opt(kinds.TRUTH, REPOSITORY, "Go to S3 Transfer Acceleration, which the bucket must have on.", schemes=("s3",)),
    ] = False
    profile: Annotated[
        str,
        Opt(
            kinds.TEXT,
            REPOSITORY,
            "Take the credentials from this profile of the provider's own configuration (~/.aws/config, "
            "~/.alibabacloud/credentials.ini).",
            default="the provider's own chain: environment, profile, SSO, web identity, instance metadata",
            schemes=("s3", "oss"),
        ),
    ] = ""
    credentials_file: Annotated[
        Path | None,
        Opt(
            kinds.PATH,
            REPOSITORY,
            "Take the credentials from this file of Google's: a service account, a user, or workload identity federation.",
            default="the provider's own chain",
            schemes=("gs",),
        ),
    ] = None
    anonymous: Annotated[bool, Opt(kinds.TRUTH, REPOSITORY, "Send unsigned requests: for public buckets.")] = False
    addressing_style: Annotated[
        str,
        Opt(
            kinds.one_of("auto", "path", "virtual"),
            REPOSITORY,
            "Whether the bucket stands in the path or in the host name; auto means path for your own endpoint, "
            "virtual for the provider's.",
            schemes=("s3", "oss", "obs"),
        ),
    ] = "auto"
    signature: Annotated[
        str,
        Opt(
            kinds.one_of("v4", "v1"),
            REPOSITORY,
            "How requests are signed; v1 for stores that know nothing newer.",
            schemes=("oss",),
        ),
    ] = "v4"
    versioned: Annotated[
        bool,
        Opt(
            kinds.TRUTH,
            REPOSITORY,
            "Read each file by its version's id, so that it can be read on after it was replaced; needs a bucket with "
            "versioning and the right to read versions, and costs one request more per file.",
            schemes=("s3", "as", "oss", "obs"),
        ),
    ] = False
    requester_pays: Annotated[
        bool,
        Opt(
            kinds.TRUTH,
            REPOSITORY,
            "Agree to be charged for requests and traffic by a bucket whose owner does not pay for them.",
            schemes=("s3", "gs", "oss"),
        ),
    ] = False
    billing_project: Annotated[
        str,
        Opt(
            kinds.TEXT,
            REPOSITORY,
            "Project that pays for a requester-pays bucket.",
            default="the credentials' own project",
            schemes=("gs",),
        ),
    ] = ""
    verify_tls: Annotated[
        bool,
        Opt(
            kinds.TRUTH,
            REPOSITORY,
            "Do not check the store's TLS certificate: whoever is on the way can then read and change everything.",
            off_flag="--insecure-skip-tls-verify",
        ),
    ] = True
    ca_bundle: Annotated[
        Path | None,
        Opt(
            kinds.PATH,
            REPOSITORY,
            "PEM file with the authorities that may sign the store's certificate.",
            default="the system's",
        ),
    ] = None
    include: Annotated[
        InstanceOf[Globs],
        PlainSerializer(str, return_type=str),
        Opt(
            kinds.GLOBS,
            REPOSITORY,
            "Show only these files, such as *.onnx,*.pbtxt (held against names) or resnet/*,bert/* (against paths; * matches slashes "
            "too), and the directories that may hold such.",
            default="all",
        ),
    ] = Globs()
    exclude: Annotated[
        InstanceOf[Globs],
        PlainSerializer(str, return_type=str),
        Opt(
            kinds.GLOBS,
            REPOSITORY,
            "Hide these files, and these directories with all below them, such as *.tmp,.ipynb_checkpoints,staging/*; it wins "
            "over include.",
            default="none",
        ),
    ] = Globs()
    publish_marker: Annotated[
        InstanceOf[Markers],
        PlainSerializer(str, return_type=str),
        Opt(
            kinds.MARKERS,
            REPOSITORY,
            "Show a directory only once it holds the object NAME, which is uploaded last: READY for each one at the top, */*/READY for "
            "version directories, both with a comma between them.",
            default="none",
        ),
    ] = Markers()
    control_proxy: Annotated[
        str,
        Opt(
            kinds.HTTP_PROXY,
            REPOSITORY,
            "HTTP proxy for listings, credentials and the like, such as http://proxy.example.com:3128; file data does not "
            "go through it.",
            default="none; HTTP_PROXY and the like are not heeded",
        ),
    ] = ""

    proxy: Annotated[
        str,
        Opt(
            kinds.PROXIES,
            DRAGONFLY,
            "Fetch file data through dfdaemon's proxy, such as http://127.0.0.1:4001; of several, with commas between them, the "
            "first one that answers is asked. none turns off one that is configured elsewhere.",
            default="no proxy, reads go straight to the store",
        ),
    ] = ""
    fallback: Annotated[
        bool,
        Opt(
            kinds.TRUTH,
            DRAGONFLY,
            "Fail reads while the proxy is down, instead of reading straight from the store; only files of at most 4 MiB "
            "still come from there.",
        ),
    ] = True
    p2p_tag: Annotated[
        str,
        Opt(
            kinds.HEADER_TEXT,
            DRAGONFLY,
            "Tag of what is read, as dfdaemon's and the scheduler's metrics show it.",
            default="none",
        ),
    ] = ""
    p2p_application: Annotated[
        str,
        Opt(
            kinds.HEADER_TEXT,
            DRAGONFLY,
            "Application that reads, as dfdaemon's and the scheduler's metrics show it.",
            default="none",
        ),
    ] = ""
    p2p_priority: Annotated[
        int | None,
        Opt(
            kinds.P2P_PRIORITY,
            DRAGONFLY,
            "Who goes to the store when no host has a file: 4, 5 or 6 a seed, 3 the host that asks, 2 nobody; 0 leaves it to the "
            "manager's settings for the application.",
            default="6, dfdaemon's own",
        ),
    ] = None
    p2p_piece_length_bytes: Annotated[
        int | None,
        Opt(
            kinds.PIECE_LENGTH,
            DRAGONFLY,
            "Size of the pieces that hosts exchange, from 4MiB on; must be equal on all hosts.",
            default="4MiB to 64MiB, by the file's size",
        ),
    ] = None
    dfdaemon_socket: Annotated[
        str,
        Opt(
            kinds.SOCKET,
            DRAGONFLY,
            "Have dfdaemon hand whole files over through this socket of its own, such as unix:///var/run/dragonfly/dfdaemon.sock: "
            "it links them into the cache, which must be on its file system and under the same path there. Where that does not "
            "work they come by the proxy, or from the store. Needs d7yfs[dragonfly]; none turns off one that is configured elsewhere.",
            default="no socket",
        ),
    ] = ""
    p2p_verify: Annotated[
        str,
        Opt(
            kinds.one_of("first-use", "sampled", "off"),
            DRAGONFLY,
            "Which pieces that dfdaemon hands over are compared with its own CRC32 of them before they can be read: each, one of "
            "sixteen, or none.",
        ),
    ] = "first-use"
    p2p: Annotated[
        InstanceOf[P2p],
        PlainSerializer(str, return_type=str),
        Opt(
            kinds.P2P,
            DRAGONFLY,
            "Which files go through Dragonfly: auto (those over 4 MiB, but for a bounded part that a reader waits for), always "
            "(every byte, small files too), never; for some files as GLOB=MODE, such as "
            "*.json=never,*.safetensors=always,auto, where the first match wins.",
        ),
    ] = P2p()
    p2p_direct_percent: Annotated[
        float,
        Opt(
            kinds.PERCENT,
            DRAGONFLY,
            "Where p2p is auto: how much of a file may come straight from the store, so that a reader need not wait; 4 MiB may "
            "in any case.",
        ),
    ] = 0.4

    listing: Annotated[
        str,
        Opt(
            kinds.one_of("auto", "whole", "directory", "exact"),
            READING,
            "How names are learnt: whole (one listing of the whole repository), directory (one listing of each directory in use), exact "
            "(each name is asked for, which needs no right to list); auto means whole up to listing_limit, else directory, and exact "
            "where listing is denied.",
        ),
    ] = "auto"
    listing_limit: Annotated[
        int,
        Opt(
            kinds.COUNT,
            READING,
            "Most objects of a repository that auto lists whole, and most entries of a directory that are kept; in larger ones each "
            "name is asked for.",
        ),
    ] = 20_000
    revalidate_on_open: Annotated[
        InstanceOf[Globs],
        PlainSerializer(str, return_type=str),
        Opt(
            kinds.GLOBS,
            READING,
            "Ask the store, whenever one of these files is opened or looked at, whether it is still the newest, such as config.pbtxt or "
            "*/1/*.json, and when it is not about its whole directory: two requests each time. For hosts that cannot call d7yfs refresh.",
            default="none",
        ),
    ] = Globs()


class Config(BaseModel):
    """The whole configuration of one daemon or command."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    repositories: tuple[RepositoryConfig, ...]
    mountpoint: Path | None = None
    """Absolute; None for a command that mounts nothing."""

    cache_dir: Annotated[
        Path,
        Opt(
            kinds.PATH,
            CACHE,
            "Directory of the cache; several mounts of one user may share it.",
            default="/var/cache/d7yfs for root, else ~/.cache/d7yfs",
        ),
    ] = Field(default_factory=lambda: default_cache_dir(os.environ, root=_is_root()))
    cache_size_bytes: Annotated[
        int, Opt(kinds.SIZE, CACHE, "Evict the least recently used files above this size, such as 200GiB.")
    ] = 50 << 30
    cache_min_free_bytes: Annotated[
        int, Opt(kinds.SIZE, CACHE, "Space that the cache leaves free on its file system, whatever its size.")
    ] = 2 << 30
    memory_buffer_bytes: Annotated[
        int, Opt(kinds.BUFFER_SIZE, CACHE, "Memory for data that does not fit into the cache.")
    ] = 64 << 20
    max_inodes: Annotated[
        int,
        Opt(
            kinds.INODES,
            CACHE,
            "Files and directories that are known at once, at some 0.6 KiB each; those that were used longest ago make room, and "
            "are asked for again.",
        ),
    ] = 200_000
    verify: Annotated[
        str,
        Opt(
            kinds.one_of("off", "checksum", "full"),
            CACHE,
            "Compare files over 4 MiB, once they are cached whole, with the CRC32C that the store recorded at their upload; "
            "full also takes the MD5, which costs reading each file again, and smaller files. Wrong bytes are fetched anew.",
        ),
    ] = "checksum"

    metadata_ttl_s: Annotated[
        float,
        Opt(
            kinds.LIFETIME,
            READING,
            "How long a listing counts as fresh: a change in the store shows up after it at the latest. 0 asks every time, forever "
            "only when d7yfs refresh does.",
        ),
    ] = 60.0
    negative_ttl_s: Annotated[
        float, Opt(kinds.LIFETIME, READING, "How long a name that does not exist is remembered as such.")
    ] = 5.0
    read_timeout_s: Annotated[
        float, Opt(kinds.TIMEOUT, READING, "Retry a read for so long without progress, then fail it with EIO.")
    ] = 60.0
    connect_timeout_s: Annotated[
        float, Opt(kinds.TIMEOUT, READING, "Give up one attempt to connect after this time.")
    ] = 5.0
    max_connections: Annotated[int, Opt(kinds.CONNECTIONS, READING, "Most connections for file data to one store.")] = (
        32
    )

    allow_other: Annotated[
        bool,
        Opt(
            kinds.TRUTH,
            MOUNT,
            "Let other users read the mount (a model server often is one).",
            default="yes for root, else no",
        ),
    ] = Field(default_factory=_is_root)
    allow_empty: Annotated[
        bool,
        Opt(
            kinds.TRUTH,
            MOUNT,
            "Mount a prefix with nothing under it; otherwise refused, for it is nearly always a typo.",
        ),
    ] = False
    require_all: Annotated[
        bool,
        Opt(
            kinds.TRUTH,
            MOUNT,
            "Refuse to mount when one of several repositories cannot be reached; otherwise it is an empty directory until "
            "it can.",
        ),
    ] = False
    uid: Annotated[int, Opt(kinds.NUMERIC_ID, MOUNT, "Owner of all files.", default="the user who mounts")] = Field(
        default_factory=os.getuid
    )
    gid: Annotated[int, Opt(kinds.NUMERIC_ID, MOUNT, "Group of all files.", default="that user's group")] = Field(
        default_factory=os.getgid
    )
    file_mode: Annotated[int, Opt(kinds.MODE, MOUNT, "Permissions of files, in octal.")] = 0o444
    dir_mode: Annotated[int, Opt(kinds.MODE, MOUNT, "Permissions of directories, in octal.")] = 0o555
    xattr: Annotated[
        bool,
        Opt(
            kinds.TRUTH,
            MOUNT,
            "Show ETag, version, URL, route and Dragonfly's task as extended attributes user.d7yfs.*; ls -l then asks twice per file.",
        ),
    ] = False

    fuse_helper: Annotated[
        Path | None,
        Opt(
            kinds.PATH,
            MOUNT,
            "Have the mount made by the d7yfs fuse-helper that listens on this socket; then no privilege is needed here.",
            default="mount by itself",
        ),
    ] = None

    foreground: Annotated[
        bool,
        Opt(
            kinds.TRUTH,
            PROCESS,
            "Stay in the foreground (systemd, containers) instead of returning when the mount answers.",
        ),
    ] = False
    # Docker and Kubernetes' smallest settings kill 10 s after SIGTERM: the unmount must be over by then.
    shutdown_timeout_s: Annotated[
        float, Opt(kinds.TIMEOUT, PROCESS, "Let running reads finish for so long when asked to stop.")
    ] = 8.0
    log_level: Annotated[
        str, Opt(kinds.one_of("debug", "info", "warning", "error"), PROCESS, "Least level that is logged.")
    ] = "info"
    log_format: Annotated[
        str, Opt(kinds.one_of("text", "json"), PROCESS, "Lines for people, or one JSON object per line.")
    ] = "text"
    log_file: Annotated[
        Path | None,
        Opt(kinds.PATH, PROCESS, "Append the log to this file.", default="stderr"),
    ] = None

    metrics_listen: Annotated[
        str,
        Opt(
            kinds.LISTEN,
            MONITORING,
            "Where Prometheus finds /metrics, /healthz and /readyz, such as 0.0.0.0:7717; none for nowhere. Anybody who can connect may "
            "read them. Where the port is taken, by another mount, say, the mount does without.",
        ),
    ] = "127.0.0.1:7717"
    metrics_per_model: Annotated[
        int,
        Opt(
            kinds.MODELS,
            MONITORING,
            "How many models (top-level directories) of each repository have metrics of their own; the others share one, called other.",
        ),
    ] = 50


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as the layers of the configuration and the command line see it."""

    name: str
    field: str
    """Attribute of RepositoryConfig or Config, with its unit."""
    per_repository: bool
    kind: kinds.Kind
    group: str
    help: str
    default: str
    """Words for the default."""
    off_flag: str
    on_by_default: bool | None
    """For a true-or-false option; None when the default depends on the host, and for other options."""
    schemes: tuple[str, ...] = ()
    """Where it means anything; empty for everywhere."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"D7YFS_{self.name.upper()}"

    def means_something_for(self, scheme: str) -> bool:
        """Whether repositories of this scheme heed it."""
        return not self.schemes or scheme in self.schemes


def _options() -> dict[str, Option]:
    found = {}
    for model in (RepositoryConfig, Config):
        for field, info in model.model_fields.items():
            for opt in (item for item in info.metadata if isinstance(item, Opt)):
                name = field.removesuffix("_bytes").removesuffix("_percent").removesuffix("_s")
                found[name] = Option(
                    name=name,
                    field=field,
                    per_repository=model is RepositoryConfig,
                    kind=opt.kind,
                    group=opt.group,
                    help=opt.help,
                    default=opt.default or opt.kind.show(info.default),
                    off_flag=opt.off_flag or f"--no-{name.replace('_', '-')}" if opt.kind is kinds.TRUTH else "",
                    on_by_default=info.default if isinstance(info.default, bool) else None,
                    schemes=opt.schemes,
                )
    return found


OPTIONS: Mapping[str, Option] = _options()
"""Every option by name, in the order of the help."""


@dataclass(frozen=True, slots=True)
class Anonymous:
    """Unsigned requests."""

    def describe(self) -> str:
        """In words without secrets; the same for all credentials."""
        return "anonymous"


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of the provider's own configuration."""

    name: str

    def describe(self) -> str:
        """In words."""
        return f"profile {self.name!r}"


@dataclass(frozen=True, slots=True)
class StaticKeys:
    """A key pair, with a session token when it is temporary."""

    key_id: str
    secret_key: SecretStr
    session_token: SecretStr | None = None

    def describe(self) -> str:
        """The end of the key's id tells keys apart; the id as a whole is nobody's business."""
        end = f" …{self.key_id[-4:]}" if len(self.key_id) >= 16 else ""
        return f"access key{end}" + (" with session token" if self.session_token else "")


@dataclass(frozen=True, slots=True)
class SasToken:
    """A shared access signature of Azure's, as the query string that it is."""

    token: SecretStr

    def describe(self) -> str:
        """In words."""
        return "shared access signature"


@dataclass(frozen=True, slots=True)
class CredentialsFile:
    """A file in the format of the provider's own tools; read by its SDK, again when it changes."""

    path: Path

    def describe(self) -> str:
        """In words."""
        return f"file {self.path}"


@dataclass(frozen=True, slots=True)
class ProviderChain:
    """Whatever the provider's SDK finds by itself."""

    else_anonymous: bool = False
    """Whether requests go unsigned where it finds nothing (Triton's way with `gs`)."""

    def describe(self) -> str:
        """In words."""
        return "the provider's own chain"


Credentials = Anonymous | Profile | StaticKeys | SasToken | CredentialsFile | ProviderChain
"""StaticKeys are an access key and its secret; on Azure the account and its key; on GCS an HMAC key."""
