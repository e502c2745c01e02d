"""The sources of `oss://`'s access keys. A `renewal.Renewal` decides when they are read again.

The first source of the chain that has keys supplies all of them:

    environment    OSS_ACCESS_KEY_ID, _SECRET and OSS_SESSION_TOKEN; ALIBABA_CLOUD_ACCESS_KEY_ID, _SECRET and _SECURITY_TOKEN
    ossutil        ~/.ossutilconfig, ~/.oss
    Alibaba        ~/.alibabacloud/credentials.ini (or credentials), ~/.aliyun/config.json
    OIDC           ALIBABA_CLOUD_ROLE_ARN, _OIDC_PROVIDER_ARN and _OIDC_TOKEN_FILE: a role for a Kubernetes service account (RRSA)
    URI            ALIBABA_CLOUD_CREDENTIALS_URI: the role of an instance on PAI
    ECS            the instance's RAM role, from its metadata

Alibaba's own SDK asks the services for keys, one provider object for each load, in a worker thread.
Its default chain is not used: it forgets when keys expire, reads files and environment once, and
starts a thread of its own. When a refresh fails, the SDK writes the whole reply to a handler of its
own. So its logger is silenced, and messages name only the class of its errors.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from configparser import ConfigParser
from configparser import Error as IniError
from dataclasses import dataclass
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

from d7yfs.bounds.values import read_json
from d7yfs.config.settings_file import read_file, trusts_home
from d7yfs.errors import AccessDenied, ConfigError, D7yfsError
from d7yfs.origins.access_keys import AccessKeys, from_environment
from d7yfs.origins.places import describe_file, describe_variable

_LOOK_AGAIN_S = 60.0
"""Seconds until a file, or keys without a known end, are read again."""
GIVE_CREDENTIALS = (
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
_INI_NAMES = {
    "ram_role_arn": "role_arn",
    "ram_session_name": "role_session_name",
    "ram_role_name": "role_name",
    "sts_token": "security_token",
    "oidc_token_file": "oidc_token_file_path",
}
"""The INI file's names for fields of the CLI's."""
_OIDC_VARIABLES = {
    "role_arn": "ROLE_ARN",
    "oidc_provider_arn": "OIDC_PROVIDER_ARN",
    "oidc_token_file_path": "OIDC_TOKEN_FILE",
    "role_session_name": "ROLE_SESSION_NAME",
}

_sdk_log = logging.getLogger("credentials")
_sdk_log.handlers.clear()
_sdk_log.setLevel(logging.CRITICAL + 1)

_Fields = Mapping[str, str]


@dataclass(frozen=True)
class OssCredentials:
    """A `KeyFinder`; `proxy` carries requests to services outside of the instance."""

    subject: str
    proxy: str
    environ: Mapping[str, str]

    @property
    def _home(self) -> Path:
        return Path(self.environ.get("HOME") or "/")

    async def find(self, profile: str, _held: AccessKeys | None) -> AccessKeys | None:
        """The profile's keys, else the chain's. Raises AccessDenied and ConfigError."""
        return await trio.to_thread.run_sync(self._find, profile, abandon_on_cancel=True)

    def places(self) -> list[str]:
        """See `KeyFinder`."""
        named = ("OSS_CONFIG_FILE", "ALIBABA_CLOUD_CREDENTIALS_FILE")
        files = [self._home / name for name in (*_OSSUTIL_FILES[:1], *_ALIBABA_FILES[:1], _CLI_FILE)]
        files = [*(Path(self.environ[each]) for each in named if self.environ.get(each)), *files]
        found = [describe_variable(each[0], self.environ) for each in _ENVIRONMENTS]
        found += [
            describe_file(each, lacks="keys", is_trusted=trusts_home() or not each.is_relative_to(self._home))
            for each in files
        ]
        found += [
            describe_variable(f"ALIBABA_CLOUD_{each}", self.environ) for each in ("OIDC_TOKEN_FILE", "CREDENTIALS_URI")
        ]
        return [*found, "instance metadata: no answer, or no RAM role"]

    def _find(self, profile: str) -> AccessKeys | None:
        try:
            return self._profile(profile) if profile else self._chain()
        except D7yfsError:
            raise
        except Exception as error:
            kind = type(error).__name__
        raise AccessDenied(f"{self.subject}: credentials could not be loaded ({kind})", hint=GIVE_CREDENTIALS)

    def _chain(self) -> AccessKeys | None:
        """The first keys of the chain. Blocks: its last three sources ask services."""
        return (
            from_environment(self.environ, _ENVIRONMENTS)
            or self._from_ossutil("default", "Credentials")
            or self._from_alibaba(self.environ.get("ALIBABA_CLOUD_PROFILE", ""))
            or self._from_oidc()
            or self._from_uri()
            or self._from_ecs()
        )

    def _profile(self, name: str) -> AccessKeys:
        keys = self._from_alibaba(name) or self._from_ossutil(name, f"profile {name}")
        if keys is None:
            raise ConfigError(
                f"{self.subject}: there is no profile {name!r} with credentials",
                hint=f"looked into ~/{_ALIBABA_FILES[0]}, ~/{_CLI_FILE} and ~/{_OSSUTIL_FILES[0]}",
            )
        return keys

    def _from_ossutil(self, *sections: str) -> AccessKeys | None:
        named = self.environ.get("OSS_CONFIG_FILE", "")
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
        """The profile of that name (empty: the default one), the INI file's before the CLI's."""
        named = self.environ.get("ALIBABA_CLOUD_CREDENTIALS_FILE", "")
        for path in [Path(named)] if named else [self._home / name for name in _ALIBABA_FILES]:
            if fields := self._ini(path).get(profile or "default"):
                return self._from_fields(fields.get("type", ""), fields, f"file {path}")
        path = self._home / _CLI_FILE
        config = self._json(path)
        for entry in config.get("profiles", ()):
            if entry.get("name") == (profile or config.get("current")):
                return self._from_fields(entry.get("mode", ""), entry, f"file {path}")
        return None

    def _from_fields(self, kind: str, named: _Fields, source: str) -> AccessKeys:
        """The keys of a profile of either file, whose names for the same fields differ."""
        fields = {_INI_NAMES.get(name, name): value for name, value in named.items()}
        match kind:
            case "access_key" | "AK" | "sts" | "StsToken":
                return AccessKeys(
                    fields["access_key_id"],
                    fields["access_key_secret"],
                    fields.get("security_token", ""),
                    check_again_s=_LOOK_AGAIN_S,
                    source=source,
                )
            case "ram_role_arn" | "RamRoleArn":
                provider = RamRoleArnCredentialsProvider(
                    access_key_id=fields["access_key_id"],
                    access_key_secret=fields["access_key_secret"],
                    role_arn=fields["role_arn"],
                    role_session_name=fields.get("role_session_name"),
                    policy=fields.get("policy"),
                    sts_region_id=fields.get("sts_region"),
                    http_options=self._http_options(),
                )
            case "oidc_role_arn" | "OIDC":
                provider = self._oidc(fields)
            case "ecs_ram_role" | "EcsRamRole":
                provider = _ecs(fields.get("role_name"))
            case _:
                raise ConfigError(
                    f"{self.subject}: {source} has a profile of kind {kind!r}, which is not supported",
                    hint="AK, StsToken, RamRoleArn, OIDC and EcsRamRole are",
                )
        return _ask(provider, f"{kind} of {source}")

    def _from_oidc(self) -> AccessKeys | None:
        variables = {field: self.environ.get(f"ALIBABA_CLOUD_{name}", "") for field, name in _OIDC_VARIABLES.items()}
        fields = {field: value for field, value in variables.items() if value}
        if not {"role_arn", "oidc_provider_arn", "oidc_token_file_path"} <= fields.keys():
            return None
        return _ask(self._oidc(fields), "a role for the service account (OIDC)")

    def _from_uri(self) -> AccessKeys | None:
        uri = self.environ.get("ALIBABA_CLOUD_CREDENTIALS_URI", "")
        if not uri:
            return None
        return _ask(URLCredentialsProvider(uri=uri, protocol=urlsplit(uri).scheme), "the credentials URI")

    def _from_ecs(self) -> AccessKeys | None:
        """The instance's keys; None off an instance, or when it has no role."""
        if self.environ.get("ALIBABA_CLOUD_ECS_METADATA_DISABLED", "").lower() == "true":
            return None
        try:
            return _ask(_ecs(self.environ.get("ALIBABA_CLOUD_ECS_METADATA")), "instance metadata")
        except Exception:  # errors of the SDK and of requests
            return None

    def _oidc(self, fields: _Fields) -> Any:
        return OIDCRoleArnCredentialsProvider(
            role_arn=fields["role_arn"],
            oidc_provider_arn=fields["oidc_provider_arn"],
            oidc_token_file_path=fields["oidc_token_file_path"],
            role_session_name=fields.get("role_session_name"),
            sts_region_id=fields.get("sts_region"),
            http_options=self._http_options(),
        )

    def _http_options(self) -> Any:
        return HttpOptions(proxy=self.proxy or None)

    def _ini(self, path: Path) -> Mapping[str, _Fields]:
        """The fields of an INI file by section; empty for an absent file."""
        parser = ConfigParser(interpolation=None, default_section="", inline_comment_prefixes=("#",))
        try:
            parser.read_string(self._text(path))
        except IniError:
            raise ConfigError(f"{self.subject}: {path} is not an INI file") from None
        return {section: dict(parser[section]) for section in parser.sections()}

    def _json(self, path: Path) -> Any:
        try:
            return read_json(self._text(path) or "{}")
        except ValueError:
            raise ConfigError(f"{self.subject}: {path} is not a JSON file") from None

    def _text(self, path: Path) -> str:
        try:
            if not path.exists() or (path.is_relative_to(self._home) and not trusts_home()):
                return ""
            return read_file(path).decode()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise ConfigError(f"{self.subject}: {path} cannot be read: {reason}") from None


def _ecs(role: str | None) -> Any:
    return EcsRamRoleCredentialsProvider(role_name=role, async_update_enabled=False)


def _ask(provider: Any, source: str) -> AccessKeys:
    """The keys that `provider` gives. Blocks on the network. Raises what the SDK raises."""
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
