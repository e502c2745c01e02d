"""Access keys of OSS and OBS, as they are at one moment, and the two places that both providers take them from.

How they are kept valid is `renewal`'s; called by `oss_credentials` and `obs_credentials`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from d7yfs.config.schema import StaticKeys


@dataclass(frozen=True, slots=True, repr=False)
class AccessKeys:
    """A key pair, with a token when it is temporary. Holds secrets: no repr."""

    key_id: str
    secret: str
    token: str = ""
    expires_at: float = math.inf
    """time.time() of their end."""
    check_again_s: float = math.inf
    """How soon to look again where they came from: a file may have changed."""
    source: str = ""
    """Where they came from, in words."""


def given(keys: StaticKeys) -> AccessKeys:
    """Keys that the configuration holds."""
    token = keys.session_token.get_secret_value() if keys.session_token else ""
    return AccessKeys(keys.key_id, keys.secret_key.get_secret_value(), token, source=keys.describe())


def from_environment(environ: Mapping[str, str], names: Iterable[tuple[str, str, str]]) -> AccessKeys | None:
    """Those of the first triple of variables (key id, secret, token) whose first two are set."""
    for key_id, secret, token in names:
        if environ.get(key_id) and environ.get(secret):
            source = f"environment variables ({key_id}, …)"
            return AccessKeys(environ[key_id], environ[secret], environ.get(token, ""), source=source)
    return None
