"""Keeps bearer tokens from dfdaemon. Pure: the time is an argument.

A signed URL is good for reading one object for some minutes. A bearer token is good for all that
its owner may do, and dfdaemon passes the headers of a request on to other hosts. Some credentials
cannot sign URLs (a user's login, an identity of a federation, an identity on Azure that may not ask
for a delegation key). Their requests carry a token, and are not for dfdaemon unless the user says
so (`--p2p-tokens`).

One `BearerTokens` per repository, in its fetcher. Each request is judged before dfdaemon gets it.
After one that was refused, files come straight from the store. Some minutes later one tries again:
credentials and their rights change.
"""

from __future__ import annotations

import logging

from d7yfs.errors import TokenWithheld
from d7yfs.origins.origin import ReadRequest

log = logging.getLogger(__name__)

PAUSE_S = 600.0
"""Seconds after which a file may find out if requests can be signed by now."""

_CANNOT = "the credentials cannot sign URLs"
_NOT_FOR = f"{_CANNOT}, and their bearer token is not for dfdaemon and other hosts"
WITHHELD = f"{_NOT_FOR}: files come straight from the store"
REFUSED = f"{_NOT_FOR}: without fallback, files cannot be read"
SENT = f"{_CANNOT}: their bearer token goes to dfdaemon, and so to other hosts (--p2p-tokens)"
HINT = "give credentials that can sign (docs/clouds), or allow it with --p2p-tokens"


class BearerTokens:
    """The decision of one repository on tokens in requests for dfdaemon.

    `subject` is its URL for the log. `required`: dfdaemon may not be replaced by the store.
    """

    def __init__(self, subject: str = "", *, allowed: bool = False, required: bool = False) -> None:
        self._subject = subject
        self._allowed = allowed
        self._required = required
        self._withheld_at = float("-inf")
        self.warning = ""
        """The sentence for `status`, `check` and the log; empty while URLs can be signed."""

    def is_direct(self, now: float) -> bool:
        """True if files come straight from the store for the time being, as a token is withheld."""
        return not self._required and now < self._withheld_at + PAUSE_S

    def note(self, request: ReadRequest, now: float) -> None:
        """Find out if requests carry a token, by one that was signed for dfdaemon."""
        warning = ""
        if any(name.lower() == "authorization" for name in request.headers):
            warning = SENT if self._allowed else REFUSED if self._required else WITHHELD
        self._withheld_at = now if warning and not self._allowed else float("-inf")
        if warning and warning != self.warning:
            log.warning("%s: %s%s", self._subject, warning, "" if self._allowed else f" ({HINT})")
        self.warning = warning

    def judge(self, request: ReadRequest, name: str, now: float) -> None:
        """Raise TokenWithheld if `request`, for the object `name`, is not for dfdaemon."""
        self.note(request, now)
        if self.warning and not self._allowed:
            raise TokenWithheld(f"{name}: {self.warning}", hint=HINT)
