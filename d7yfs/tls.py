"""TLS: the trusted certificate authorities, and a client's side of a connection without its socket.

The authorities are one answer for the SDK's calls and for the data plane, which must agree. The
data plane's connections are ended here in the engine (`fetch`), or in a mover (`movers`).
"""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from d7yfs.errors import ConfigError

RECORDS_BYTES = 256 << 10
"""Records to receive at once: some of them together are cheaper, and more leave the processor's cache."""


def ca_file(ca_bundle: Path | None) -> str:
    """PEM file of trusted authorities: the configured one, else the system's, else certifi's."""
    if ca_bundle:
        return str(ca_bundle)
    if system := ssl.get_default_verify_paths().cafile:
        return system
    import certifi  # only where it is needed: a mover is small without

    return certifi.where()


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
    context.set_alpn_protocols(["http/1.1"])
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(frozen=True, slots=True)
class Trust:
    """The servers that a client of the data plane believes: those of these authorities."""

    ca_bundle: Path | None = None
    """None for those of the system."""
    verify: bool = True
    """False to believe every server."""

    @property
    def ca_file(self) -> str:
        return ca_file(self.ca_bundle)

    def context(self) -> ssl.SSLContext:
        """Raises ConfigError for a bad bundle."""
        return ssl_context(self.ca_bundle, verify=self.verify)


class TlsSession:
    """A client's side of TLS, as records in memory: its owner moves them from and to the socket.

    Records pass through a memory BIO, and OpenSSL decrypts them into the caller's buffer. That is one
    copy more than a socket of its own, and cheaper: it would read each record's head and rest by
    themselves. It also shows whether bytes are left over.
    """

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self.is_at_end = False
        """True once the peer's close_notify has come."""

    def shake_hands(self) -> bool:
        """Go on with the handshake; False while it needs more records. Raises ssl.SSLError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """The records to send for `data`."""
        self._tls.write(data)
        return self._outgoing.read()

    def take_outgoing(self) -> bytes:
        """The records that TLS wants to send by itself."""
        return self._outgoing.read()

    def feed(self, records: bytes | memoryview) -> None:
        """Take what the peer has sent; nothing is the end of the stream."""
        if records:
            self._incoming.write(records)
        else:
            self._incoming.write_eof()

    def decrypt_into(self, buffer: memoryview) -> int | None:
        """Decrypt many records at once; None when TLS needs more, 0 at the peer's close_notify.

        Raises ssl.SSLError, also for an end of the stream without close_notify."""
        filled = 0
        try:
            while filled < len(buffer):
                # With a buffer, read() returns a count; typeshed knows only the form without.
                count = cast("int", self._tls.read(len(buffer) - filled, buffer[filled:]))
                if not count:
                    self.is_at_end = True
                    break
                filled += count
        except ssl.SSLWantReadError:
            return filled or None
        return filled

    def has_rest(self) -> bool:
        """True if anything came that is not handed out, be it a part of a record."""
        return bool(self._incoming.pending or self._tls.pending())
