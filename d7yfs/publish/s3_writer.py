"""Writes a publication to S3 and stores of its protocol, by boto3.

Settings and credentials are those of a mount (`origins.s3.sdk`). The pointer is written under a
condition (If-Match, If-None-Match:
https://docs.aws.amazon.com/AmazonS3/latest/userguide/conditional-writes.html), so of two publishers
at once one is told. A store that knows no conditions is asked without.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import boto3
import trio
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from d7yfs.config.schema import Anonymous, Credentials, Profile, RepositoryConfig, StaticKeys
from d7yfs.errors import (
    AccessDenied,
    BadReply,
    BucketNotFound,
    ConfigError,
    D7yfsError,
    NotPermitted,
    OriginUnavailable,
)
from d7yfs.origins.access_keys import AccessKeys
from d7yfs.origins.s3.sdk import AwsSdk

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

log = logging.getLogger(__name__)

_ATTEMPTS = 4
_CONFLICTS = ("PreconditionFailed", "412", "ConditionalRequestConflict", "409")
_NO_CONDITIONS = ("NotImplemented", "501")
_DENIED = ("AccessDenied", "403", "AllAccessDisabled", "MethodNotAllowed")


class S3Writer:
    """The writer of one bucket's prefix."""

    def __init__(self, config: RepositoryConfig, credentials: Credentials) -> None:
        """Find the credentials. Raises ConfigError and AccessDenied."""
        if isinstance(credentials, Anonymous):
            raise ConfigError(f"{config.url}: publish writes, which needs credentials")
        self._config = config
        self._prefix = f"{config.url.prefix}/" if config.url.prefix else ""
        sdk = AwsSdk(config, credentials)
        keys = _find_keys(sdk, credentials)
        if keys is None:
            raise AccessDenied(f"{config.url}: publish writes, and no credentials are found")
        style = config.addressing_style
        automatic = "path" if sdk.endpoint_url else "auto"
        proxy = config.control_proxy
        chosen: dict[str, Any] = {
            "s3": {"addressing_style": automatic if style == "auto" else style},
            "request_checksum_calculation": "when_required",  # others than AWS may know none
        }
        self._client: S3Client = boto3.session.Session().client(
            "s3",
            region_name=sdk.region,
            endpoint_url=sdk.endpoint_url or None,
            aws_access_key_id=keys.key_id,
            aws_secret_access_key=keys.secret,
            aws_session_token=keys.token or None,
            verify=str(config.ca_bundle) if config.ca_bundle else config.verify_tls,
            config=Config(
                proxies={"http": proxy, "https": proxy} if proxy else {},
                retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
                use_dualstack_endpoint=config.dual_stack or None,
                **chosen,
            ),
        )

    def write_snapshot(self, key: str, data: bytes) -> None:
        self._put(key, data, {"ContentType": "application/octet-stream"})

    def write_pointer(self, key: str, data: bytes, before: str) -> None:
        kind = {"ContentType": "application/json", "CacheControl": "no-cache"}
        condition = {"IfMatch": before} if before else {"IfNoneMatch": "*"}
        try:
            self._put(key, data, kind | condition)
        except NotImplementedError:
            log.info("%s: the store knows no conditional writes", self._config.url)
            self._put(key, data, kind)

    def _put(self, key: str, data: bytes, options: dict[str, str]) -> None:
        """Put one object. Raises D7yfsError, and NotImplementedError if the store knows no condition."""
        payer: dict[str, Any] = {"RequestPayer": "requester"} if self._config.requester_pays else {}
        name = f"s3://{self._config.url.bucket}/{self._prefix}{key}"
        more: dict[str, Any] = {**options, **payer}
        try:
            self._client.put_object(Bucket=self._config.url.bucket, Key=self._prefix + key, Body=data, **more)
        except ClientError as error:
            raise self._failure(name, error) from None
        except BotoCoreError as error:
            raise OriginUnavailable(f"{name}: cannot be written: {error}") from None

    def _failure(self, name: str, error: ClientError) -> Exception:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = str(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", ""))
        found: D7yfsError
        if code in _NO_CONDITIONS or status in _NO_CONDITIONS:
            return NotImplementedError(name)
        if code in _CONFLICTS or status in _CONFLICTS:
            found = BadReply(f"{name}: was published by another at the same time", hint="publish again", lasting=True)
        elif code in _DENIED or status in _DENIED:
            found = NotPermitted(
                f"{name}: must not be written ({code})", hint="publish needs s3:PutObject below .d7yfs/"
            )
        elif code == "NoSuchBucket":
            found = BucketNotFound(f"{name}: there is no such bucket")
        else:
            found = OriginUnavailable(f"{name}: cannot be written: {code or status}")
        return found


def _find_keys(sdk: AwsSdk, credentials: Credentials) -> AccessKeys | None:
    if isinstance(credentials, StaticKeys):
        token = credentials.session_token.get_secret_value() if credentials.session_token else ""
        return AccessKeys(credentials.key_id, credentials.secret_key.get_secret_value(), token, source=str(credentials))
    name = credentials.name if isinstance(credentials, Profile) else ""
    return trio.run(sdk.find, name, None)
