"""A wrong clock for the signers of OSS and OBS; the origin's own stays right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from d7yfs.origins.rest_stores.hmac_sha1_signing import HmacSha1Signer
from d7yfs.origins.rest_stores.oss_signing import OssSignerV4


@contextmanager
def signing_at(shift_s: float) -> Iterator[None]:
    def shifted(method: Callable[..., Any], times: int) -> Callable[..., Any]:
        return lambda *args: method(*args[:-times], *(moment + shift_s for moment in args[-times:]))

    with pytest.MonkeyPatch.context() as patch:
        for signer in (OssSignerV4, HmacSha1Signer):
            patch.setattr(signer, "sign_headers", shifted(signer.sign_headers, 1))
            patch.setattr(signer, "sign_query", shifted(signer.sign_query, 2))
        yield
