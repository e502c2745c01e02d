"""The trusted certificate authorities: one answer for the SDK's calls and for the data plane, which
must agree.

Used by `repository` (data) and `origins` (control).
"""

from __future__ import annotations

import functools
import ssl
from pathlib import Path

import certifi

from d7yfs.errors import ConfigError


def ca_file(ca_bundle: Path | None) -> str:
    """PEM file of trusted authorities: the configured one, else the system's, else certifi's."""
    return str(ca_bundle) if ca_bundle else ssl.get_default_verify_paths().cafile or certifi.where()


@functools.cache
def ssl_context(ca_bundle: Path | None, *, verify: bool) -> ssl.SSLContext:
    """The check of a store's certificate, loaded once: that takes 10 ms, which plain HTTP need not
    wait for. Raises ConfigError for a bad bundle."""
    path = ca_file(ca_bundle)
    try:
        context = ssl.create_default_context(cafile=path)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"the CA bundle {path} cannot be used: {error}", hint="give a PEM file of certificates"
        ) from error
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
