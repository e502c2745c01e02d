"""The clock of OSS's and OBS's signers, set wrong: that of the origin, which knows when a signature ends, stays right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from d7yfs.origins.rest_stores.hmac_sha1_signing import HmacSha1Signer
from d7yfs.origins.rest_stores.oss_signing import SignerV4


@contextmanager
def signing_at(shift_s: float) -> Iterator[None]:
    def shifted(method: Callable[..., Any], times: int) -> Callable[..., Any]:
        return lambda *args: method(*args[:-times], *(moment + shift_s for moment in args[-times:]))

    with pytest.MonkeyPatch.context() as patch:
        for signer in (SignerV4, HmacSha1Signer):
            patch.setattr(signer, "in_headers", shifted(signer.in_headers, 1))
            patch.setattr(signer, "in_query", shifted(signer.in_query, 2))
        yield
