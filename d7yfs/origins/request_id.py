"""What a store calls a request: with it the provider's support finds it in its own logs. Pure; no secret.

Used for refusals of the control plane (`refusal`, `s3_errors`) and of the data plane (`fetch.reply`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_HEADERS = ("x-amz-request-id", "x-guploader-uploadid", "x-ms-request-id", "x-oss-request-id", "x-obs-request-id")
_PLAIN = re.compile(r"[A-Za-z0-9_.=+/-]{1,128}")


def request_id(headers: Mapping[str, str]) -> str:
    """The id in a reply's headers, whose names are in lower case; empty where there is none, or none that can be an id."""
    named = next((headers[name] for name in _HEADERS if headers.get(name)), "")
    return named if _PLAIN.fullmatch(named) else ""
