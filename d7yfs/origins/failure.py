"""Why a connection failed, in words of the operating system or the TLS library. Pure.

The wrappers of httpx, httpcore, botocore and urllib3 may repeat URLs with signatures, so their
texts are never shown.
"""

from __future__ import annotations

import os
import socket
import ssl

REACH = "is the endpoint right (--endpoint-url, or the host in the URL), the service up, and the network open?"
"""The hint for a service that cannot be reached."""


def reason(error: BaseException) -> str:
    """The innermost system or TLS error behind `error`, in that library's own words."""
    return next((words for each in causes(error) if (words := _system_words(each))), "connection failed")


def is_untrusted(error: BaseException) -> bool:
    """True if a certificate that does not verify is behind `error`."""
    return any(isinstance(each, ssl.SSLCertVerificationError) for each in causes(error))


def causes(error: BaseException) -> list[BaseException]:
    """`error` and all errors behind it, the innermost first."""
    found: list[BaseException] = []
    pending: list[object] = [error]
    while pending:
        each = pending.pop()
        if not isinstance(each, BaseException) or each in found:
            continue
        found.append(each)
        # urllib3 wraps in `reason`, botocore in `kwargs`.
        pending += [each.__context__, each.__cause__, getattr(each, "reason", None)]
        pending.append(getattr(each, "kwargs", {}).get("error"))
        if isinstance(each, BaseExceptionGroup):
            pending += each.exceptions
    return found[::-1]


def _system_words(error: BaseException) -> str:
    if not isinstance(error, OSError):
        return ""
    if error.errno and not isinstance(error, ssl.SSLError | socket.gaierror):
        return os.strerror(error.errno)  # trio's own text repeats the address
    return str(getattr(error, "verify_message", "") or error.strerror or "")
