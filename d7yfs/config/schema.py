"""The options: each one once, with its type, default and help. Frozen, and free of secrets.

A field of `RepositoryConfig` or `Config` that `_option` makes is an option. Its name is the field's
without the unit (`memory_buffer_bytes` is the option `memory_buffer`). The flag `--memory-buffer`, the
variable `D7YFS_MEMORY_BUFFER` and the TOML key `memory_buffer` all follow from it. Options of
`RepositoryConfig` may differ between the repositories of one mount.

Secrets live in `Credentials`, apart from `Config`, so that a whole `Config` can be shown and
logged.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import Any

from d7yfs.config import kinds
from d7yfs.config.globs import Globs
from d7yfs.config.markers import Markers
from d7yfs.config.p2p import P2p
from d7yfs.config.size_bound import SizeBound
from d7yfs.config.url import RepositoryUrl
from d7yfs.host.fuse_device import MountFlags
from d7yfs.host.privileges import is_mounter_root, mounter
from d7yfs.objects import SecretStr

REPOSITORY = "Repository"
DRAGONFLY = "Dragonfly"
CACHE = "Cache and memory"
READING = "Freshness and timeouts"
MOUNT = "What the mount shows, and to whom"
PROCESS = "Process and log"
MONITORING = "Monitoring"
GROUPS = (REPOSITORY, DRAGONFLY, CACHE, READING, MOUNT, PROCESS, MONITORING)


@dataclass(frozen=True, slots=True)
class Option:
    """One option, as the layers of the configuration and the command line see it."""

    kind: kinds.Kind
    group: str
    help: str
    """The text of `--help`; for an option that is true by default, what turning it off does."""
    default: str = ""
    """The default in words, given where it depends on the host or says too little by itself."""
    off_flag: str = ""
    """Spelling of the flag that turns a true option off; `--no-NAME` unless given."""
    schemes: tuple[str, ...] = ()
    """The providers that have it; empty for all."""
    live: bool = False
    """True if `d7yfs reload` changes it in a running mount; others wait for the next mount."""
    names_credentials: bool = False
    """True if it says which credentials to use: of these options, a layer may give one."""
    name: str = ""
    field: str = ""
    """Attribute of RepositoryConfig or Config, with its unit."""
    per_repository: bool = False
    on_by_default: bool | None = None
    """None when the default depends on the host, and for options that are not true or false."""

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return f"D7YFS_{self.name.upper()}"

    def means_something_for(self, scheme: str) -> bool:
        """True if repositories of this scheme have it."""
        return not self.schemes or scheme in self.schemes


def _option(group: str, kind: kinds.Kind, help: str, value: Any = None, **more: Any) -> Any:
    """A field that is an `Option`; `value` is its default, or a function that gives it, where the
    kind's own will not do."""
    metadata = {"option": Option(kind, group, help, **more)}
    if callable(value):
        return field(default_factory=value, metadata=metadata)
    return field(default=kind.unset if value is None else value, metadata=metadata)


_repository, _dragonfly, _cache, _reading, _mount, _process, _monitoring = (partial(_option, group) for group in GROUPS)


ANY_SERVER = "any"
"""The value of `--for` that chooses nothing."""

METRICS_ADDRESS = "127.0.0.1:7717"
"""The default address of metrics, for root. Any local user can connect, so other users choose one."""


def default_cache_dir(environ: Mapping[str, str], *, root: bool) -> Path:
    """`/var/cache/d7yfs` for root, else `d7yfs` in the user's cache directory (XDG)."""
    if root:
        return Path("/var/cache/d7yfs")
    # The specification says to ignore a relative path.
    xdg = Path(environ.get("XDG_CACHE_HOME", ""))
    return (xdg if xdg.is_absolute() else Path(environ.get("HOME") or Path.home()) / ".cache") / "d7yfs"


@dataclass(frozen=True, kw_only=True)
class RepositoryConfig:
    """One repository of a mount, with the options that may differ between repositories."""

    name: str = ""
    """Name of its top-level directory; empty when the repository is the root of the mount."""
    url: RepositoryUrl

    endpoint_url: str = _repository(
        kinds.ENDPOINT,
        "Address of the store's service, such as https://minio.example.com:9000. An endpoint inside the URL "
        "(s3://host:port/bucket) wins over it.",
        default="the provider's own",
    )
    endpoint_suffix: str = _repository(
        kinds.HOST,
        "Domain of the provider's services in a sovereign or private cloud, such as core.chinacloudapi.cn, "
        "aliyuncs.com.example or myhuaweicloud.eu.",
        default="the public cloud's",
        schemes=("as", "oss", "obs"),
    )
    region: str = _repository(
        kinds.TEXT,
        "Region of the bucket.",
        default="from the provider's own configuration",
        schemes=("s3", "oss", "obs"),
    )
    internal_endpoint: bool = _repository(
        kinds.TRUTH,
        "Use the region's -internal endpoint: from inside the provider's network, without traffic charges.",
        schemes=("oss",),
    )
    dual_stack: bool = _repository(kinds.TRUTH, "Use AWS's dual-stack endpoints, which have IPv6 too.", schemes=("s3",))
    accelerate: bool = _repository(
        kinds.TRUTH, "Use S3 Transfer Acceleration, which must be enabled on the bucket.", schemes=("s3",)
    )
    profile: str = _repository(
        kinds.TEXT,
        "Take the credentials from this profile of the provider's own configuration (~/.aws/config, "
        "~/.alibabacloud/credentials.ini).",
        default="the provider's own chain: environment, profile, SSO, web identity, instance metadata",
        schemes=("s3", "oss"),
        names_credentials=True,
    )
    credentials_file: Path | None = _repository(
        kinds.PATH,
        "Take the credentials from this file of Google's: a service account, a user, or workload identity federation.",
        default="the provider's own chain",
        schemes=("gs",),
        names_credentials=True,
    )
    anonymous: bool = _repository(kinds.TRUTH, "Send unsigned requests: for public buckets.", names_credentials=True)
    addressing_style: str = _repository(
        kinds.one_of("auto", "path", "virtual"),
        "Where requests name the bucket: in the path or in the host name. auto means path for your own endpoint, "
        "virtual for the provider's.",
        schemes=("s3", "oss", "obs"),
    )
    signature: str = _repository(
        kinds.one_of("v4", "v1"),
        "Version of request signatures; v1 for stores that know nothing newer.",
        schemes=("oss",),
    )
    versioned: bool = _repository(
        kinds.TRUTH,
        "Read each file by its version's id, so that open files stay readable after they were replaced. Needs a bucket with "
        "versioning and the right to read versions, and costs one more request per file.",
        schemes=("s3", "as", "oss", "obs"),
    )
    requester_pays: bool = _repository(
        kinds.TRUTH,
        "Accept the charges for requests and traffic of a requester-pays bucket.",
        schemes=("s3", "gs", "oss"),
    )
    billing_project: str = _repository(
        kinds.TEXT,
        "Project that pays for a requester-pays bucket.",
        default="the credentials' own project",
        schemes=("gs",),
    )
    verify_tls: bool = _repository(
        kinds.TRUTH,
        "Do not check the store's TLS certificate. Anybody on the network path can then read and change everything.",
        True,
        off_flag="--insecure-skip-tls-verify",
    )
    ca_bundle: Path | None = _repository(
        kinds.PATH, "PEM file with the authorities that may sign the store's certificate.", default="the system's"
    )
    include: Globs = _repository(
        kinds.GLOBS,
        "Show only these files, such as *.onnx,*.pbtxt (matched with names) or resnet/*,bert/* (with paths; * matches slashes "
        "too), and the directories that may contain them.",
        default="all",
    )
    exclude: Globs = _repository(
        kinds.GLOBS,
        "Hide these files, and these directories with everything below them, such as *.tmp,.ipynb_checkpoints,staging/*. It wins "
        "over include.",
    )
    hide_agents: bool = _repository(
        kinds.TRUTH,
        "Show each model's config.pbtxt without Dragonfly's repository agent, whose block is read as spaces. For repositories "
        "that hosts with the agent share with hosts that mount.",
    )
    publish_marker: Markers = _repository(
        kinds.MARKERS,
        "Show a directory only once it has the object NAME, which you upload last. READY is for each directory at the top, "
        "*/*/READY for version directories; separate both by a comma.",
    )
    control_proxy: str = _repository(
        kinds.HTTP_PROXY,
        "HTTP proxy for listings, credentials and other control requests, such as http://proxy.example.com:3128; file data does "
        "not go through it.",
        default="none; HTTP_PROXY and the like are ignored",
    )

    proxy: str = _dragonfly(
        kinds.PROXIES,
        "Fetch file data through dfdaemon's proxy, such as http://127.0.0.1:4001. Of several, separated by commas, the "
        "first that answers is used. none turns off a proxy that is configured elsewhere.",
        default="no proxy, reads go directly to the store",
    )
    fallback: bool = _dragonfly(
        kinds.TRUTH,
        "Fail reads while the proxy is down, instead of reading directly from the store. Files of at most 4 MiB "
        "still come from the store.",
        True,
    )
    p2p_tag: str = _dragonfly(kinds.HEADER_TEXT, "Tag of the downloads in the metrics of dfdaemon and the scheduler.")
    p2p_application: str = _dragonfly(
        kinds.HEADER_TEXT, "Application of the downloads in the metrics of dfdaemon and the scheduler."
    )
    p2p_priority: int | None = _dragonfly(
        kinds.P2P_PRIORITY,
        "The host that fetches from the store when no host has a file: 4, 5 or 6 a seed, 3 the host that asks, 2 none. 0 leaves it "
        "to the manager's settings for the application.",
        default="6, dfdaemon's own",
    )
    p2p_piece_length_bytes: int | None = _dragonfly(
        kinds.PIECE_LENGTH,
        "Size of the pieces that hosts exchange, at least 4MiB; must be the same on all hosts.",
        default="4MiB to 64MiB, by the file's size",
    )
    dfdaemon_socket: str = _dragonfly(
        kinds.SOCKET,
        "Have dfdaemon hand over whole files through this socket of its own, such as unix:///var/run/dragonfly/dfdaemon.sock. "
        "It links them into the cache, which must be on its file system and under the same path there. Where that fails, "
        "they come through the proxy, or from the store. Needs d7yfs[dragonfly]; none turns off a socket that is configured "
        "elsewhere.",
        default="no socket",
    )
    p2p_verify: str = _dragonfly(
        kinds.one_of("first-use", "sampled", "off", "required"),
        "Which pieces from dfdaemon are compared with its own CRC32 before they can be read: all, one of "
        "sixteen, or none. required is first-use, drops a file that cannot be compared with the store, and opens none that an "
        "earlier mount has left uncompared: it is compared first.",
    )
    p2p_secret_file: Path | None = _dragonfly(
        kinds.PATH,
        "File with a secret of at least 16 bytes, the same on all hosts, that goes into the names of downloads. Without it any "
        "client of a dfdaemon can compute them, and put other bytes under one first.",
        default="none",
    )
    p2p_tokens: bool = _dragonfly(
        kinds.TRUTH,
        "Let bearer tokens go to dfdaemon, and so to other hosts, where the credentials cannot sign URLs. Without it such a "
        "repository's files come straight from the store.",
    )
    p2p: P2p = _dragonfly(
        kinds.P2P,
        "Which files go through Dragonfly: auto (those over 4 MiB, except for a bounded part that a reader waits for), always "
        "(every byte, small files too), never. For some files write GLOB=MODE, such as "
        "*.json=never,*.safetensors=always,auto, where the first match wins.",
    )
    p2p_direct_percent: float = _dragonfly(
        kinds.PERCENT,
        "Where p2p is auto: how much of a file may come directly from the store, so that a reader need not wait; of one from "
        "64MiB on at least 1MiB. 0 allows nothing.",
        0.4,
    )
    p2p_hosts: int = _dragonfly(
        kinds.HOSTS,
        "About how many hosts read this repository through Dragonfly. Then some three of them may take p2p_direct of a "
        "file directly from the store, and the others wait for Dragonfly.",
        default="0: it is not known, and each host may",
    )

    listing: str = _reading(
        kinds.one_of("auto", "whole", "directory", "exact", "published"),
        "How d7yfs learns names: whole (one listing of the repository), directory (one of each directory in use), "
        "exact (one request for each name, which needs no right to list), published (from what `d7yfs publish` wrote). auto means "
        "published where something is, else whole up to listing_limit, else directory, and exact where listing is denied.",
    )
    listing_limit: int = _reading(
        kinds.COUNT,
        "Most objects of a repository that auto lists whole, and most entries of a directory that are kept. In larger ones each "
        "name needs a request.",
        20_000,
        live=True,
    )
    revalidate_on_open: Globs = _reading(
        kinds.GLOBS,
        "Ask the store, whenever one of these files is opened or stat'ed, whether it is still the newest, such as config.pbtxt or "
        "*/1/*.json: two requests each time. If it is not, its directory is listed again. So is that directory with all below it "
        "whenever it is opened. For hosts that cannot call d7yfs refresh.",
    )


@dataclass(frozen=True, kw_only=True)
class Config:
    """The whole configuration of one daemon or command."""

    repositories: tuple[RepositoryConfig, ...]
    mountpoint: Path | None = None
    """Absolute; None for a command that mounts nothing."""

    cache_dir: Path = _cache(
        kinds.PATH,
        "Directory of the cache; several mounts of one user may share it.",
        lambda: default_cache_dir(os.environ, root=is_mounter_root()),
        default="/var/cache/d7yfs for root, else ~/.cache/d7yfs",
    )
    cache_size: SizeBound = _cache(
        kinds.SIZE,
        "Evict the least recently used files above this size, such as 200GiB, 50% of the cache's file system, or 50%,200GiB for "
        "the smaller of both.",
        SizeBound(50 << 30),
        live=True,
    )
    cache_min_free: SizeBound = _cache(
        kinds.SIZE,
        "Space that the cache leaves free on its file system, whatever its size, such as 10GiB or 15%. Where less is free, nothing "
        "is cached.",
        SizeBound(2 << 30),
        live=True,
    )
    memory_buffer_bytes: int = _cache(
        kinds.BUFFER_SIZE, "Memory for data that does not fit into the cache.", 64 << 20, live=True
    )
    max_inodes: int = _cache(
        kinds.INODES,
        "Most files and directories that are known at once, at about 0.6 KiB each. The least recently used make room, and "
        "are looked up again.",
        200_000,
        live=True,
    )
    verify: str = _cache(
        kinds.one_of("off", "checksum", "full"),
        "Compare files over 4 MiB, once they are cached whole, with the CRC32C that the store recorded at their upload. "
        "full also compares the CRC64NVME or the MD5, which reads each file again, and smaller files. Wrong bytes are fetched again.",
        "checksum",
    )
    cache_trust: str = _cache(
        kinds.one_of("credentials", "shared"),
        "Who may read what is cached: credentials (those to which the store has granted the object, which costs one request for a "
        "file that others have brought), or shared (every mount that uses the directory).",
    )

    dragonfly_manager: str = _dragonfly(
        kinds.MANAGER,
        "Address of Dragonfly's manager, such as http://dragonfly-manager:8080, which d7yfs warm --cluster asks.",
        default="none",
        live=True,
    )
    dragonfly_manager_token_file: Path | None = _dragonfly(
        kinds.PATH,
        "File with a personal access token of Dragonfly's manager, of the scope job.",
        default="none",
        live=True,
    )

    tree_cache: str = _cache(
        kinds.one_of("on", "off"),
        "Keep the names that were listed in the cache directory, so that the next mount answers at once. They are as old as they "
        "are: metadata_ttl counts from when they were listed.",
    )
    offline: str = _reading(
        kinds.one_of("refuse", "serve"),
        "What to do if the store does not answer when the mount begins: refuse, or serve the names that an earlier mount has kept "
        "(tree_cache) and the files that are cached, until it answers.",
    )
    metadata_ttl_s: float = _reading(
        kinds.LIFETIME,
        "How long a listing stays fresh: a change in the store shows up within this time. 0 asks every time, forever "
        "only at d7yfs refresh.",
        60.0,
        live=True,
    )
    negative_ttl_s: float = _reading(
        kinds.LIFETIME, "How long d7yfs remembers that a name does not exist.", 5.0, live=True
    )
    read_timeout_s: float = _reading(
        kinds.TIMEOUT, "Retry a read that makes no progress for this long, then fail it with EIO.", 60.0
    )
    connect_timeout_s: float = _reading(kinds.TIMEOUT, "Give up one attempt to connect after this time.", 5.0)
    max_connections: int = _reading(kinds.CONNECTIONS, "Most connections for file data to one store.", 32, live=True)

    movers: int | None = _reading(
        kinds.MOVERS,
        "Processes that receive file data beside the daemon, from the first bytes on; 0 has the daemon receive it all.",
        None,
        default="auto: as many as its rate is worth, one less than there are processors, at most 8",
    )

    for_: str = _mount(
        kinds.one_of(ANY_SERVER, "triton", "torchserve", "vllm"),
        "Choose the settings that this model server needs: which files are asked for at each open, and what an open waits for. "
        "Any setting that is given otherwise wins; d7yfs check --settings shows them.",
    )
    allow_other: bool = _mount(
        kinds.TRUTH,
        "Let all users of this host read the mount, as a model server under its own user needs it. Otherwise only the "
        "user who mounts can.",
    )
    noexec: bool = _mount(kinds.TRUTH, "Let nobody execute a file of the mount.")
    allow_empty: bool = _mount(
        kinds.TRUTH,
        "Mount a prefix with nothing under it. Otherwise that is an error, because it is nearly always a typo.",
    )
    require_all: bool = _mount(
        kinds.TRUTH,
        "Fail to mount if one of several repositories cannot be reached. Otherwise it is an empty directory until "
        "it can.",
    )
    uid: int = _mount(kinds.NUMERIC_ID, "Owner of all files.", lambda: mounter()[0], default="the user who mounts")
    gid: int = _mount(kinds.NUMERIC_ID, "Group of all files.", lambda: mounter()[1], default="that user's group")
    file_mode: int = _mount(kinds.MODE, "Permissions of files, in octal.", 0o444)
    dir_mode: int = _mount(kinds.MODE, "Permissions of directories, in octal.", 0o555)
    executable: Globs = _mount(
        kinds.NAME_GLOBS,
        "Names of files that all who may read them may execute, such as *.sh. Triton starts the stub that a Python model ships.",
        Globs(("triton_python_backend_stub",)),
    )
    xattr: bool = _mount(
        kinds.TRUTH,
        "Show ETag, version, URL, route and Dragonfly's task as extended attributes user.d7yfs.*; ls -l then asks twice for each file.",
    )

    fuse_engine: str = _mount(
        kinds.one_of("auto", "kernel", "pyfuse3"),
        "Who speaks with the kernel: kernel (d7yfs itself: the kernel reads cached files without the daemon), pyfuse3 (libfuse), "
        "or auto (kernel on Linux 5.4 and later, else pyfuse3).",
    )
    passthrough: bool = _mount(
        kinds.TRUTH,
        "Have all reads pass the daemon. Otherwise the kernel reads files that are whole in the cache by itself, where it can "
        "(root, Linux 6.9).",
        True,
    )
    open_wait_s: float = _mount(
        kinds.OPEN_WAIT,
        "Have open(2) of a file that is not whole in the cache wait, if its rest is expected within this time (10s at most): the "
        "kernel then reads it by itself. All of the file is fetched, whatever is read of it. Files of up to 1 MiB never wait.",
        0.0,
    )
    takeover: str = _mount(
        kinds.one_of("auto", "standby", "cold", "off"),
        "What happens when the daemon dies: another one takes over the mount, and readers get no error. It waits ready "
        "(standby, which takes the memory of an idle daemon), or is started then (cold). off: the mount is dead. auto: standby "
        "where Linux can do it (6.9 and later, engine kernel), else off.",
    )
    fuse_helper: Path | None = _mount(
        kinds.PATH,
        "Have the d7yfs fuse-helper that listens on this socket make the mount, so that this process needs no privilege.",
        default="mount directly",
    )

    foreground: bool = _process(
        kinds.TRUTH, "Stay in the foreground (systemd, containers) instead of returning when the mount answers."
    )
    worker_user: str = _process(
        kinds.TEXT,
        "Run the workers, which speak to the network, as this user (name or number), without any privilege. The supervisor stays "
        "root, mounts, and has files registered that the kernel reads by itself. For root's mounts, with --takeover.",
        default="none: the user who mounts",
    )
    # Docker and Kubernetes' smallest settings kill 10 s after SIGTERM: the unmount must be done by
    # then.
    shutdown_timeout_s: float = _process(
        kinds.TIMEOUT, "How long running reads may take to finish after a request to stop.", 8.0, live=True
    )
    log_level: str = _process(
        kinds.one_of("debug", "info", "warning", "error"), "Lowest level that is logged.", "info", live=True
    )
    log_format: str = _process(kinds.one_of("text", "json"), "Lines for people, or one JSON object per line.")
    log_file: Path | None = _process(
        kinds.PATH,
        "Append the log to this file.",
        default="stderr; in the background the system log for root, else a file in ~/.local/state/d7yfs",
    )

    metrics_listen: str = _monitoring(
        kinds.LISTEN,
        "Address for /metrics (Prometheus), /healthz, /readyz and / (a status page), such as 0.0.0.0:7717; none for none. Anybody who can "
        "connect may read them. If the port is taken, by another mount for example, the mount does without.",
        lambda: METRICS_ADDRESS if is_mounter_root() else "",
        default=f"{METRICS_ADDRESS} for root, else none",
    )
    metrics_per_model: int = _monitoring(
        kinds.MODELS,
        "How many models (top-level directories) of each repository have their own metrics; the others share one, called other.",
        50,
        live=True,
    )

    @property
    def mount_flags(self) -> MountFlags:
        """The properties of a mount that this user makes, or made for a worker."""
        user, group = mounter()
        return MountFlags(self.mount_source, user, group, allow_other=self.allow_other, noexec=self.noexec)

    @property
    def mount_source(self) -> str:
        """The mount's name in the mount table: its repositories, as they are written in fstab. By that
        `mount -a` knows what is mounted."""
        return ";".join(f"{each.name}={each.url.written}".removeprefix("=") for each in self.repositories)


def _options() -> dict[str, Option]:
    found = {}
    for model in (RepositoryConfig, Config):
        for each in fields(model):
            if one := each.metadata.get("option"):
                # A keyword of Python's has an underscore behind it.
                name = each.name.removesuffix("_bytes").removesuffix("_percent").removesuffix("_s").removesuffix("_")
                found[name] = replace(
                    one,
                    name=name,
                    field=each.name,
                    per_repository=model is RepositoryConfig,
                    default=one.default or one.kind.show(each.default) or "none",
                    off_flag=one.off_flag or f"--no-{name.replace('_', '-')}" if one.kind is kinds.TRUTH else "",
                    on_by_default=each.default if isinstance(each.default, bool) else None,
                )
    return found


OPTIONS: Mapping[str, Option] = _options()
"""Every option by name, in the order of the help."""


@dataclass(frozen=True, slots=True)
class Anonymous:
    """The choice of unsigned requests."""

    def __str__(self) -> str:
        return "anonymous"


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of the provider's own configuration."""

    name: str

    def __str__(self) -> str:
        return f"profile {self.name!r}"


@dataclass(frozen=True, slots=True)
class StaticKeys:
    """A key pair, with a session token when it is temporary."""

    key_id: str
    secret_key: SecretStr
    session_token: SecretStr | None = None
    given_in: str = field(default="", compare=False)
    """The file and the key in it, or the variable, for messages."""

    def __str__(self) -> str:
        # The end of the key's id tells keys apart; the whole id is not for everybody.
        end = f" …{self.key_id[-4:]}" if len(self.key_id) >= 16 else ""
        return f"access key{end}" + (" with session token" if self.session_token else "")


@dataclass(frozen=True, slots=True)
class SasToken:
    """A shared access signature of Azure's, as the query string that it is."""

    token: SecretStr

    def __str__(self) -> str:
        return "shared access signature"


@dataclass(frozen=True, slots=True)
class CredentialsFile:
    """A file in the format of the provider's own tools; read by its SDK, again when it changes."""

    path: Path

    def __str__(self) -> str:
        return f"file {self.path}"


@dataclass(frozen=True, slots=True)
class ProviderChain:
    """The credentials that the provider's SDK detects by itself."""

    else_anonymous: bool = False
    """True if requests go unsigned where it finds nothing (Triton's way with `gs`)."""

    def __str__(self) -> str:
        return "the provider's own chain"


Credentials = Anonymous | Profile | StaticKeys | SasToken | CredentialsFile | ProviderChain
"""`str` says in words, without secrets, which they are. StaticKeys are an access key and its
secret; on Azure the account and its key; on GCS an HMAC key."""
