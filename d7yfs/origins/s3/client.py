"""boto3 as an S3 origin uses it: sessions and clients that go where d7yfs says, and nowhere else. Makes no request by itself.

Owns the SDK's settings. What boto3 would take from the environment behind our back is switched off where it concerns where requests go:
proxies (`HTTP_PROXY` & co. would hand the control plane to whatever runs there), CA bundles (`AWS_CA_BUNDLE`, `REQUESTS_CA_BUNDLE`: ours is
a setting that the data plane shares), redirects, checksums, and retries (it knows nothing of Retry-After). `AWS_ENDPOINT_URL[_S3]` and the
profile's `endpoint_url` count where no endpoint is configured. Called by `s3.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import boto3
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import NoCredentialsError
from botocore.hooks import HierarchicalEmitter
from botocore.loaders import create_loader

from d7yfs.config.schema import Anonymous, Credentials, Profile, StaticKeys
from d7yfs.config.url import normal_endpoint
from d7yfs.errors import ConfigError
from d7yfs.origins.s3.credentials import CONNECT_TIMEOUT_S, READ_TIMEOUT_S, Keys, confine, proxies
from d7yfs.origins.s3.reply_head import refuse_cut_heads

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

LISTING = "Listing"
"""In botocore's reply to ListObjectsV2: the listing as it came, see `_keep_listing`."""

_DEFAULT_REGION = "us-east-1"

refuse_cut_heads()

_SERVICE_MODELS = create_loader()
"""botocore's parsed description of S3, shared: it costs each session of its own 12 MiB and 50 ms."""


class Sdk:
    """Opens clients for one store. `endpoint_url` and `region` are what was given, else what the SDK's own settings say.

    `endpoint_url` is in normal form, empty for AWS.
    """

    def __init__(
        self,
        subject: str,
        credentials: Credentials,
        *,
        endpoint_url: str,
        region: str,
        verify: bool | str,
        addressing_style: str,
        dual_stack: bool,
        accelerate: bool,
        control_proxy: str,
        threads: int,
        clock: Callable[[], float],
    ) -> None:
        """`subject` is how messages name the bucket; `threads` are those that call at once. Raises ConfigError and what botocore raises."""
        self._credentials = credentials
        self._verify = verify
        self._dual_stack = dual_stack
        self._accelerate = accelerate
        self._control_proxy = control_proxy
        self._threads = threads
        self._clock = clock
        session = self._session(region)
        try:
            found = endpoint_url or _named_endpoint(session)
            self.endpoint_url = found and normal_endpoint(found)
        except ValueError as error:
            raise ConfigError(f"{subject}: the endpoint URL {error}") from None
        if self.endpoint_url and (dual_stack or accelerate):
            raise ConfigError(
                f"{subject}: {'dual_stack' if dual_stack else 'accelerate'} chooses an endpoint of AWS's, but the endpoint is "
                f"{self.endpoint_url}",
                hint="leave one of them out",
            )
        # Left to itself botocore presigns for the global endpoint, which may redirect to the region; "virtual" falls back to the path
        # for a bucket that cannot be a host name.
        automatic = "path" if self.endpoint_url else "virtual"
        self._addressing_style = automatic if addressing_style == "auto" else addressing_style
        self.region = region or session.region_name or _DEFAULT_REGION

    def open(self, region: str) -> tuple[S3Client, Keys | None]:
        """A client for `region` and the keys that it signs with; None: it does not sign.

        Blocks: the provider's chain may ask the network for credentials. Raises what botocore raises.
        """
        session = self._session(region)
        keys = None
        if not isinstance(self._credentials, Anonymous):
            found = session.get_credentials()
            if found is None:
                raise NoCredentialsError
            keys = found if isinstance(found, Keys) else Keys(found, clock=self._clock)
        custom = bool(self.endpoint_url)
        style = {"addressing_style": self._addressing_style}
        client = session.client(
            "s3",
            region_name=region,
            endpoint_url=self.endpoint_url or None,
            verify=self._verify,
            config=_config(
                signature_version="s3v4" if keys else UNSIGNED,  # the default presigns SigV2 in us-east-1
                # Where we say nothing the profile's own settings count, but not at an endpoint that is not AWS's.
                s3=style | ({"use_accelerate_endpoint": self._accelerate} if self._accelerate or custom else {}),
                proxies=proxies(self._control_proxy),
                retries={"mode": "standard", "total_max_attempts": 1},
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=READ_TIMEOUT_S,
                max_pool_connections=self._threads,
                tcp_keepalive=True,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                ignore_configured_endpoint_urls=True,  # read once, in __init__
                use_dualstack_endpoint=False if custom else self._dual_stack or None,
                use_fips_endpoint=False if custom else None,
                user_agent_extra="d7yfs",
            ),
        )
        client.meta.events.register_last("before-parameter-build.s3", _follow_no_redirect)
        return client, keys

    def _session(self, region: str) -> boto3.session.Session:
        hooks = HierarchicalEmitter()
        # Here, and so before botocore's own handler, which parses every reply to see whether it is an error.
        hooks.register_first("before-parse.s3.*", _keep_listing)
        core = botocore.session.Session(event_hooks=hooks)
        core.register_component("data_loader", _SERVICE_MODELS)
        confine(core, proxy=self._control_proxy, region=region or _DEFAULT_REGION, clock=self._clock)
        match self._credentials:
            case Profile(name=name):
                return boto3.session.Session(botocore_session=core, profile_name=name)
            case StaticKeys(key_id=key_id, secret_key=secret_key, session_token=session_token):
                return boto3.session.Session(
                    botocore_session=core,
                    aws_access_key_id=key_id,
                    aws_secret_access_key=secret_key.get_secret_value(),
                    aws_session_token=session_token.get_secret_value() if session_token else None,
                )
            case _:
                return boto3.session.Session(botocore_session=core)


def _config(**options: Any) -> Config:
    """botocore's Config, of whose options the published types lack some."""
    return Config(**options)


def _named_endpoint(session: boto3.session.Session) -> str:
    """The endpoint that the environment or the profile names, empty for none: what a client that heeds them has and one
    that ignores them has not."""
    heeding, ignoring = (
        session.client("s3", region_name=_DEFAULT_REGION, config=_config(signature_version=UNSIGNED, **options))
        for options in ({}, {"ignore_configured_endpoint_urls": True})
    )
    try:
        named, own = heeding.meta.endpoint_url, ignoring.meta.endpoint_url
    finally:
        heeding.close()
        ignoring.close()
    return "" if named == own else named


def _follow_no_redirect(context: dict[str, Any], **_: object) -> None:
    """Keep botocore from following the bucket to its region by itself: it would go on signing reads for the wrong one."""
    context.setdefault("s3_redirect", {})["redirected"] = True


def _keep_listing(response_dict: dict[str, Any], customized_response_dict: dict[str, Any], **_: object) -> None:
    """Take whole listings out of botocore's hands, whose parsers need three times as long. The other replies it keeps: what is
    a refusal with status 200, or was cut off, it calls an error of the store's."""
    body = response_dict["body"]
    if body.rstrip().endswith(b"ListBucketResult>"):
        customized_response_dict[LISTING] = body
        response_dict["body"] = b""
