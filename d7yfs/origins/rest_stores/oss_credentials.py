"""Where `oss://` finds its access keys. Called by `oss` through a `renewal.Renewal`, which decides when to look again.

Of the chain the first that has keys counts, whole:

    environment    OSS_ACCESS_KEY_ID, _SECRET and OSS_SESSION_TOKEN; ALIBABA_CLOUD_ACCESS_KEY_ID, _SECRET and _SECURITY_TOKEN
    ossutil        ~/.ossutilconfig, ~/.oss
    Alibaba        ~/.alibabacloud/credentials.ini (or credentials), ~/.aliyun/config.json
    OIDC           ALIBABA_CLOUD_ROLE_ARN, _OIDC_PROVIDER_ARN and _OIDC_TOKEN_FILE: a role for a Kubernetes service account (RRSA)
    URI            ALIBABA_CLOUD_CREDENTIALS_URI: the role of an instance on PAI
    ECS            the instance's RAM role, from its metadata

What asks a service for keys is Alibaba's own SDK, one provider object for each loading, in a worker thread. Its default chain is not used:
it forgets when keys end, reads files and environment once, and starts a thread of its own. When a refresh fails it writes the whole reply
to a handler of its own, so its logger is silenced, and of its errors only the class is told.
"""

from __future__ import annotations

import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from configparser import Error as IniError
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import trio
from alibabacloud_credentials.http import HttpOptions  # type: ignore[import-untyped]
from alibabacloud_credentials.provider import (  # type: ignore[import-untyped]
    EcsRamRoleCredentialsProvider,
    OIDCRoleArnCredentialsProvider,
    RamRoleArnCredentialsProvider,
    URLCredentialsProvider,
)

from d7yfs.config.schema import Anonymous, Credentials, Profile, ProviderChain, StaticKeys
from d7yfs.errors import AccessDenied, ConfigError, D7yfsError
from d7yfs.origins.rest_stores.access_keys import AccessKeys, from_environment, given

_LOOK_AGAIN_S = 60.0
"""How soon a file, or keys that name no end, are looked at again."""
_GIVE_CREDENTIALS = (
    "set OSS_ACCESS_KEY_ID and OSS_ACCESS_KEY_SECRET, name a --profile, give the instance a RAM role, or read a public "
    "bucket with --anonymous"
)
_ENVIRONMENTS = (
    ("OSS_ACCESS_KEY_ID", "OSS_ACCESS_KEY_SECRET", "OSS_SESSION_TOKEN"),
    ("ALIBABA_CLOUD_ACCESS_KEY_ID", "ALIBABA_CLOUD_ACCESS_KEY_SECRET", "ALIBABA_CLOUD_SECURITY_TOKEN"),
)
_OSSUTIL_FILES = (".ossutilconfig", ".oss")
_ALIBABA_FILES = (".alibabacloud/credentials.ini", ".alibabacloud/credentials")
_CLI_FILE = ".aliyun/config.json"

_sdk_log = logging.getLogger("credentials")
_sdk_log.handlers.clear()
_sdk_log.setLevel(logging.CRITICAL + 1)

_Fields = Mapping[str, str]


class OssCredentials:
    """Loads the keys that `source` means. `proxy` carries what goes to services outside of the instance."""

    def __init__(
        self,
        source: Credentials,
        *,
        subject: str,
        proxy: str = "",
        environ: Mapping[str, str] = os.environ,
        home: Path | None = None,
    ) -> None:
        """Raises ConfigError for a kind of credentials that OSS has not."""
        self._subject = subject
        self._proxy = proxy
        self._environ = environ
        self._home = home or Path(environ.get("HOME") or "/")
        self._else_anonymous = False
        self._find: Callable[[], AccessKeys | None]
        match source:
            case Anonymous():
                self._find = lambda: None
                self._else_anonymous = True
            case StaticKeys():
                keys = given(source)
                self._find = lambda: keys
            case Profile(name=name):
                self._find = lambda: self._profile(name)
            case ProviderChain(else_anonymous=else_anonymous):
                self._find = self._chain
                self._else_anonymous = else_anonymous
            case _:
                raise ConfigError(f"{subject}: credentials of that kind ({source.describe()}) are not OSS's")

    async def load(self, _held: AccessKeys | None = None) -> AccessKeys | None:
        """The keys as they are now; None for anonymous. Raises AccessDenied and ConfigError."""
        keys = await trio.to_thread.run_sync(self._load, abandon_on_cancel=True)
        if keys is None and not self._else_anonymous:
            raise AccessDenied(f"{self._subject}: there are no credentials", hint=_GIVE_CREDENTIALS)
        return keys

    def _load(self) -> AccessKeys | None:
        try:
            return self._find()
        except D7yfsError:
            raise
        except Exception as error:
            kind = type(error).__name__
        raise AccessDenied(f"{self._subject}: credentials could not be loaded ({kind})", hint=_GIVE_CREDENTIALS)

    def _chain(self) -> AccessKeys | None:
        """Blocks: the last three ask services."""
        return (
            from_environment(self._environ, _ENVIRONMENTS)
            or self._from_ossutil("default", "Credentials")
            or self._from_alibaba(self._environ.get("ALIBABA_CLOUD_PROFILE", ""))
            or self._from_oidc()
            or self._from_uri()
            or self._from_ecs()
        )

    def _profile(self, name: str) -> AccessKeys:
        keys = self._from_alibaba(name) or self._from_ossutil(name, f"profile {name}")
        if keys is None:
            raise ConfigError(
                f"{self._subject}: there is no profile {name!r} with credentials",
                hint=f"looked into ~/{_ALIBABA_FILES[0]}, ~/{_CLI_FILE} and ~/{_OSSUTIL_FILES[0]}",
            )
        return keys

    def _from_ossutil(self, *sections: str) -> AccessKeys | None:
        named = self._environ.get("OSS_CONFIG_FILE", "")
        for path in [Path(named)] if named else [self._home / name for name in _OSSUTIL_FILES]:
            found = self._ini(path)
            for section in sections:
                fields = {
                    name.replace("-", "").replace("_", ""): value for name, value in found.get(section, {}).items()
                }
                if fields.get("accesskeyid") and fields.get("accesskeysecret"):
                    return AccessKeys(
                        fields["accesskeyid"],
                        fields["accesskeysecret"],
                        fields.get("ststoken", ""),
                        check_again_s=_LOOK_AGAIN_S,
                        source=f"file {path}",
                    )
        return None

    def _from_alibaba(self, profile: str) -> AccessKeys | None:
        """The profile of that name; the default one for an empty name. The INI file before the command line tool's."""
        named = self._environ.get("ALIBABA_CLOUD_CREDENTIALS_FILE", "")
        for path in [Path(named)] if named else [self._home / name for name in _ALIBABA_FILES]:
            if fields := self._ini(path).get(profile or "default"):
                return self._from_fields(fields.get("type", ""), fields, f"file {path}")
        path = self._home / _CLI_FILE
        config = self._json(path)
        for entry in config.get("profiles", ()):
            if entry.get("name") == (profile or config.get("current")):
                return self._from_fields(entry.get("mode", ""), entry, f"file {path}")
        return None

    def _from_fields(self, kind: str, fields: _Fields, source: str) -> AccessKeys:
        """A profile of either file; the tools call the same things differently."""
        match kind:
            case "access_key" | "AK" | "sts" | "StsToken":
                return AccessKeys(
                    fields["access_key_id"],
                    fields["access_key_secret"],
                    fields.get("security_token") or fields.get("sts_token") or "",
                    check_again_s=_LOOK_AGAIN_S,
                    source=source,
                )
            case "ram_role_arn" | "RamRoleArn":
                provider = RamRoleArnCredentialsProvider(
                    access_key_id=fields["access_key_id"],
                    access_key_secret=fields["access_key_secret"],
                    role_arn=fields.get("role_arn") or fields["ram_role_arn"],
                    role_session_name=fields.get("role_session_name") or fields.get("ram_session_name"),
                    policy=fields.get("policy"),
                    sts_region_id=fields.get("sts_region"),
                    http_options=self._http_options(),
                )
            case "oidc_role_arn" | "OIDC":
                provider = OIDCRoleArnCredentialsProvider(
                    role_arn=fields.get("role_arn") or fields["ram_role_arn"],
                    oidc_provider_arn=fields["oidc_provider_arn"],
                    oidc_token_file_path=fields.get("oidc_token_file_path") or fields["oidc_token_file"],
                    role_session_name=fields.get("role_session_name"),
                    sts_region_id=fields.get("sts_region"),
                    http_options=self._http_options(),
                )
            case "ecs_ram_role" | "EcsRamRole":
                role = fields.get("role_name") or fields.get("ram_role_name")
                provider = EcsRamRoleCredentialsProvider(role_name=role, async_update_enabled=False)
            case _:
                raise ConfigError(
                    f"{self._subject}: {source} has a profile of kind {kind!r}, which is not supported",
                    hint="AK, StsToken, RamRoleArn, OIDC and EcsRamRole are",
                )
        return _ask(provider, f"{kind} of {source}")

    def _from_oidc(self) -> AccessKeys | None:
        names = [f"ALIBABA_CLOUD_{name}" for name in ("ROLE_ARN", "OIDC_PROVIDER_ARN", "OIDC_TOKEN_FILE")]
        role_arn, provider_arn, token_file = (self._environ.get(name, "") for name in names)
        if not (role_arn and provider_arn and token_file):
            return None
        provider = OIDCRoleArnCredentialsProvider(
            role_arn=role_arn,
            oidc_provider_arn=provider_arn,
            oidc_token_file_path=token_file,
            role_session_name=self._environ.get("ALIBABA_CLOUD_ROLE_SESSION_NAME"),
            http_options=self._http_options(),
        )
        return _ask(provider, "a role for the service account (OIDC)")

    def _from_uri(self) -> AccessKeys | None:
        uri = self._environ.get("ALIBABA_CLOUD_CREDENTIALS_URI", "")
        if not uri:
            return None
        return _ask(URLCredentialsProvider(uri=uri, protocol=urlsplit(uri).scheme), "the credentials URI")

    def _from_ecs(self) -> AccessKeys | None:
        """None where there is no instance, or it has no role."""
        if self._environ.get("ALIBABA_CLOUD_ECS_METADATA_DISABLED", "").lower() == "true":
            return None
        role = self._environ.get("ALIBABA_CLOUD_ECS_METADATA")
        try:
            return _ask(EcsRamRoleCredentialsProvider(role_name=role, async_update_enabled=False), "instance metadata")
        except Exception:  # the SDK's errors and those of requests
            return None

    def _http_options(self) -> Any:
        return HttpOptions(proxy=self._proxy or None)

    def _ini(self, path: Path) -> Mapping[str, _Fields]:
        """By section; empty for a file that is not there."""
        parser = ConfigParser(interpolation=None, default_section="", inline_comment_prefixes=("#",))
        try:
            parser.read_string(self._text(path))
        except IniError:
            raise ConfigError(f"{self._subject}: {path} is not an INI file") from None
        return {section: dict(parser[section]) for section in parser.sections()}

    def _json(self, path: Path) -> Any:
        try:
            return json.loads(self._text(path) or "{}")
        except ValueError:
            raise ConfigError(f"{self._subject}: {path} is not a JSON file") from None

    def _text(self, path: Path) -> str:
        try:
            return path.read_text() if path.is_file() else ""
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"{self._subject}: {path} cannot be read: {reason}") from None


def _ask(provider: Any, source: str) -> AccessKeys:
    """Blocks on the network. Raises what the SDK raises."""
    found = provider.get_credentials()
    expiration = found.get_expiration()
    return AccessKeys(
        found.get_access_key_id(),
        found.get_access_key_secret(),
        found.get_security_token() or "",
        expires_at=expiration or math.inf,
        check_again_s=math.inf if expiration else _LOOK_AGAIN_S,
        source=source,
    )
