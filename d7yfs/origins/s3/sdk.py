"""botocore for one store: its settings, the credentials that it finds, and the URL of a bucket.

botocore sends nothing to the store. It takes none of these from the environment:

- proxies: `HTTP_PROXY` and its like would get STS and SSO, which go through the control proxy or
  through none. Metadata of containers and instances is asked directly;
- timeouts and retries, which are ours.

`AWS_ENDPOINT_URL[_S3]` and the profile's `endpoint_url` count where no endpoint is configured.

The sources of credentials, and how they are asked, are the SDK's: environment, assumed roles, web
identity, SSO, shared files, programs, containers, instance metadata. `renewal` decides when they
are asked, in a worker thread, so a credential service that is slow or down delays nobody while the
keys are valid.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Hashable
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import botocore.session
import trio
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import Credentials as AwsCredentials
from botocore.credentials import create_credential_resolver
from botocore.httpsession import URLLib3Session
from botocore.loaders import create_loader

from d7yfs.config.schema import Credentials, Profile, RepositoryConfig
from d7yfs.config.settings_file import trusts_home
from d7yfs.config.url import normal_endpoint
from d7yfs.errors import ConfigError
from d7yfs.origins.access_keys import AccessKeys
from d7yfs.origins.bucket import Address
from d7yfs.origins.places import describe_file, describe_variable
from d7yfs.origins.renewal import stamp
from d7yfs.origins.rest import CONNECT_TIMEOUT_S, READ_TIMEOUT_S
from d7yfs.origins.s3.errors import guarded
from d7yfs.origins.s3.signing import S3Signer

_ATTEMPTS = 3
_CHECK_AGAIN_S = 60.0
"""Seconds until the next look; the SDK replaces temporary keys 15 minutes before they expire."""
_DEFAULT_REGION = "us-east-1"
_HOME_FILES = {"config_file": "AWS_CONFIG_FILE", "credentials_file": "AWS_SHARED_CREDENTIALS_FILE"}
"""Files of the AWS SDK in the home directory, with the variables that name others."""
_SERVICE_MODELS = create_loader()
"""botocore's parsed description of S3, shared by all sessions: one costs 12 MiB and 50 ms."""
_PLAIN_BUCKET = re.compile(r"(?!.*--)[A-Za-z0-9._-]{1,255}")
"""A bucket's name, and no ARN or alias of anything else: those have rules of their own."""
_PLAIN_REGION = re.compile(r"(?!aws-|.*fips)[!-+.0-~-]{1,64}")
"""A region that is the one to sign for, with a store's own endpoint: also one that botocore refuses,
such as ru_central1.
"""

_FOUND_IN = {
    "env": "environment variables (AWS_ACCESS_KEY_ID, …)",
    "custom-process": "a credential process",
    "assume-role": "an assumed role",
    "assume-role-with-web-identity": "a web identity token",
    "sso": "single sign-on",
    "iam-role": "instance metadata",
    "container-role": "the container's role",
}
"""botocore's names for sources of credentials (`method` in botocore/credentials.py), in words."""
_FOUND_IN_FILE = {"shared-credentials-file": "credentials_file", "config-file": "config_file"}
"""The same for files of the AWS SDK, with its names for their paths."""

# At DEBUG these write canonical requests, signatures and session tokens.
for _name in ("botocore", "urllib3"):
    logging.getLogger(_name).setLevel(logging.WARNING)
# At WARNING this one writes the traceback of a failed refresh, with the credential service's words.
logging.getLogger("botocore.credentials").setLevel(logging.ERROR)


class AwsSdk:
    """Finds keys (a `KeyFinder`) and addresses for one repository.

    `endpoint_url` (in normal form, empty for AWS) and `region` are the repository's, else those of
    the SDK's own settings.
    """

    def __init__(self, repository: RepositoryConfig, credentials: Credentials) -> None:
        """Raises ConfigError."""
        self._repository = repository
        self._subject = f"s3://{repository.url.bucket}"
        self._credentials = credentials
        self._found: AwsCredentials | None = None
        self._files: dict[Path, Hashable] = {}
        self._role = self._source = ""
        self.region, self.endpoint_url = guarded(self._settings, self._subject, str(credentials))

    def resolve(self, region: str) -> tuple[Address, S3Signer]:
        """The bucket's address in `region` and the signer for it. Makes no request.

        Raises ConfigError.
        """
        return guarded(lambda: self._resolve(region), self._subject, str(self._credentials))

    async def find(self, _profile: str, held: AccessKeys | None) -> AccessKeys | None:
        """The SDK's keys; only a new chain reads files that have changed, and what is new."""
        return await trio.to_thread.run_sync(
            lambda: guarded(lambda: self._find(held), self._subject, str(self._credentials)), abandon_on_cancel=True
        )

    def places(self) -> list[str]:
        """See `KeyFinder`."""
        profile = self._credentials.name if isinstance(self._credentials, Profile) else os.environ.get("AWS_PROFILE")
        lacks = f"keys for the profile {profile or 'default'}"
        found = [] if isinstance(self._credentials, Profile) else [describe_variable("AWS_ACCESS_KEY_ID", os.environ)]
        for name, variable in _HOME_FILES.items():
            path = Path(os.environ.get(variable) or f"~/.aws/{name.removesuffix('_file')}").expanduser()
            found.append(describe_file(path, lacks=lacks, is_trusted=variable in os.environ or trusts_home()))
        if isinstance(self._credentials, Profile):
            return found
        others = (
            "AWS_WEB_IDENTITY_TOKEN_FILE",
            "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
            "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        )
        found += [describe_variable(each, os.environ) for each in others]
        is_off = os.environ.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true"
        why = "AWS_EC2_METADATA_DISABLED is set" if is_off else "no answer, or no role"
        return [*found, f"instance metadata: {why}"]

    def _settings(self) -> tuple[str, str]:
        """Region and endpoint."""
        repository = self._repository
        session = self._session()
        session.get_scoped_config()  # a profile that is absent is an error in any case
        endpoint_url = repository.url.endpoint_url or repository.endpoint_url or _named_endpoint(session)
        try:
            endpoint_url = endpoint_url and normal_endpoint(endpoint_url)
        except ValueError as error:
            hint = (
                "" if repository.endpoint_url else "the variables and files of the AWS SDK name it (AWS_ENDPOINT_URL)"
            )
            raise ConfigError(
                f"{self._subject}: the endpoint URL {error}", hint=hint, settings=("endpoint_url",)
            ) from None
        if endpoint_url and (repository.dual_stack or repository.accelerate):
            chosen = "dual_stack" if repository.dual_stack else "accelerate"
            raise ConfigError(
                f"{self._subject}: {chosen} chooses an endpoint of AWS's, but the endpoint is {endpoint_url}",
                hint="leave one of them out",
                settings=(chosen, "endpoint_url"),
            )
        return repository.region or session.get_config_variable("region") or _DEFAULT_REGION, endpoint_url

    def _resolve(self, region: str) -> tuple[Address, S3Signer]:
        repository, custom = self._repository, bool(self.endpoint_url)
        bucket, style = repository.url.bucket, repository.addressing_style
        literal = custom and _PLAIN_REGION.fullmatch(region) is not None
        if literal and style != "virtual" and _PLAIN_BUCKET.fullmatch(bucket):
            # botocore would say the same, for 12 MiB and 60 ms.
            address = Address.of(self.endpoint_url, bucket, "path")
            return address, S3Signer(address, region, "s3")
        # By default botocore presigns for the global endpoint, which may redirect to the region.
        # "virtual" falls back to the path for a bucket that cannot be a host name.
        automatic = "path" if custom else "virtual"
        s3: dict[str, Any] = {
            "addressing_style": automatic if style == "auto" else style,
            "disable_s3_express_session_auth": True,  # else it would ask S3 for a session
        }
        if repository.accelerate or custom:  # else the profile's own settings count, at AWS's endpoints
            s3["use_accelerate_endpoint"] = repository.accelerate
        client = self._session().create_client(
            "s3",
            region_name=_DEFAULT_REGION if literal else region,
            endpoint_url=self.endpoint_url or None,
            aws_access_key_id="nobody",
            aws_secret_access_key="nobody",  # noqa: S106 - only the form of the URL counts
            config=_config(
                signature_version="s3v4",  # the default presigns SigV2 in us-east-1
                s3=s3,
                ignore_configured_endpoint_urls=True,  # read once, in `_settings`
                use_dualstack_endpoint=False if custom else repository.dual_stack or None,
                use_fips_endpoint=False if custom else None,
            ),
        )
        try:
            named = {"Bucket": bucket, "Key": "k"}
            url: str = client.generate_presigned_url(  # type: ignore[attr-defined]  # made from the service's model
                "get_object", Params=named, ExpiresIn=1
            )
        finally:
            client.close()
        base_url, _, query = url.partition("?")
        _, _, scope, service, _ = parse_qs(query)["X-Amz-Credential"][0].rsplit("/", 4)
        address = Address(self.endpoint_url, base_url.removesuffix("k"))
        return address, S3Signer(address, region if literal else scope, service)

    def _find(self, held: AccessKeys | None) -> AccessKeys | None:
        found, files = self._found, self._files
        if held is None or found is None or any(stamp(path) != known for path, known in files.items()):
            found, files = self._load()
            if found is None:
                return None
        found.get_frozen_credentials()
        # In this order: where another thread refreshes in between, the true end is later than ours.
        expires_at = _expiry(found)
        keys = found.get_frozen_credentials()
        self._found, self._files = found, files
        return AccessKeys(
            str(keys.access_key),
            str(keys.secret_key),
            keys.token or "",
            expires_at,
            check_again_s=_CHECK_AGAIN_S,
            source=self._source,
            role=self._role,
        )

    def _load(self) -> tuple[AwsCredentials | None, dict[Path, Hashable]]:
        """The first credentials of a new chain, and the stamps of the files that it may read."""
        session = self._session()
        named = (session.get_config_variable(name) for name in ("credentials_file", "config_file"))
        paths = [Path(os.path.expandvars(name)).expanduser() for name in named if name]
        files = {path: stamp(path) for path in paths}
        region = session.get_config_variable("region") or self._repository.region or _DEFAULT_REGION
        resolver = create_credential_resolver(session, region_name=region)
        # The one client of the chain that takes the environment's proxies and has no setting for
        # it.
        fetcher: Any = getattr(resolver.get_provider("iam-role"), "_role_fetcher", None)
        if isinstance(getattr(fetcher, "_session", None), URLLib3Session):
            fetcher._session = URLLib3Session(timeout=fetcher._timeout)
        if "login_session" in session.get_scoped_config():
            # `aws login`'s keys are renewed with awscrt, which botocore has to do without else (see `s3`).
            from awscrt.crypto import EC

            botocore.credentials.EC = EC  # type: ignore[attr-defined]  # the stubs lack it
        found = resolver.load_credentials()
        method = (found.method if found is not None else None) or "unknown"
        self._role = _role_of(session, method)
        self._source = _FOUND_IN.get(method, method)
        if variable := _FOUND_IN_FILE.get(method):
            path = Path(os.path.expandvars(session.get_config_variable(variable))).expanduser()
            self._source = f"{path}, profile {session.profile or 'default'}"
        return found, files

    def _session(self) -> botocore.session.Session:
        profile = self._credentials.name if isinstance(self._credentials, Profile) else None
        session = botocore.session.Session(profile=profile)
        session.register_component("data_loader", _SERVICE_MODELS)
        if not trusts_home():  # a `credential_process` in such a file would run as this user
            for name, variable in _HOME_FILES.items():
                if variable not in os.environ:
                    session.set_config_variable(name, os.devnull)
        proxy = self._repository.control_proxy
        session.set_default_client_config(
            Config(
                # An empty mapping keeps botocore from asking the environment.
                proxies={"http": proxy, "https": proxy} if proxy else {},
                connect_timeout=CONNECT_TIMEOUT_S,
                read_timeout=READ_TIMEOUT_S,
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
            )
        )
        return session


def _role_of(session: botocore.session.Session, method: str | None) -> str:
    """The role that the SDK takes on, where its settings name it; empty for other sources.

    Containers and instances do not name theirs: several pods may have one cache and one endpoint.
    """
    named = ""
    if method == "assume-role-with-web-identity":
        named = os.environ.get("AWS_ROLE_ARN", "")
    if method in ("assume-role", "assume-role-with-web-identity"):
        named = named or session.get_scoped_config().get("role_arn", "")
    return named


def _config(**options: Any) -> Config:
    """botocore's Config; the published types lack some of its options."""
    return Config(**options)


def _named_endpoint(session: botocore.session.Session) -> str:
    """The endpoint that the environment or the profile names, empty for none.

    It is the difference between a client that obeys them and one that ignores them.
    """
    obeying, ignoring = (
        session.create_client("s3", region_name=_DEFAULT_REGION, config=_config(signature_version=UNSIGNED, **options))
        for options in ({}, {"ignore_configured_endpoint_urls": True})
    )
    try:
        named, own = obeying.meta.endpoint_url, ignoring.meta.endpoint_url
    finally:
        obeying.close()
        ignoring.close()
    return "" if named == own else str(named)


def _expiry(credentials: AwsCredentials) -> float:
    """The end of temporary credentials, which botocore keeps private; infinity for lasting ones."""
    moment = getattr(credentials, "_expiry_time", None)
    return moment.timestamp() if isinstance(moment, datetime) else math.inf
