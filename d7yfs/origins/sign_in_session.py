"""The HTTP session that SDKs sign in with: the answer of a token service is read within bounds.

The SDKs read an answer whole and parse it as JSON, however large or deep. So the session reads it
first, and refuses one that no token service gives. The environment's proxies are ignored.

Used by the credentials of Google and Azure, whose SDKs take a session. Blocks: for worker threads.
"""

from __future__ import annotations

import logging
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.adapters import HTTPAdapter

log = logging.getLogger(__name__)

ANSWER_BYTES = 1 << 20
"""Tokens take some KiB."""
_ANSWER_BRACKETS = 500
"""Answers are nearly flat. Half of what exhausts Python's stack, whatever is nested."""
_CHUNK_BYTES = 16 << 10


class UnboundedAnswer(requests.exceptions.RequestException):
    """The failure of a service whose answer is larger or deeper than any token's."""


class _BoundedAdapter(HTTPAdapter):
    """Sends requests, and reads their answers whole within the bounds."""

    def send(self, request: requests.PreparedRequest, *arguments: Any, **options: Any) -> requests.Response:
        """Raises UnboundedAnswer, and what requests raises."""
        response = super().send(request, *arguments, **options)
        body = bytearray()
        for chunk in response.iter_content(_CHUNK_BYTES):
            body += chunk
            if len(body) > ANSWER_BYTES:
                raise self._refuse(response, f"more than {ANSWER_BYTES >> 20} MiB")
        if body.count(b"[") + body.count(b"{") > _ANSWER_BRACKETS:
            raise self._refuse(response, "nested too deep")
        response._content = bytes(body)
        return response

    def _refuse(self, response: requests.Response, reason: str) -> UnboundedAnswer:
        response.close()
        said = f"the answer of {urlsplit(response.url).hostname} is no token's: {reason}"
        log.warning("sign-in: %s", said)
        return UnboundedAnswer(said)


def bounded_session() -> requests.Session:
    """A session whose answers are bounded."""
    session = requests.Session()
    session.trust_env = False
    for scheme in ("https://", "http://"):
        session.mount(scheme, _BoundedAdapter())
    return session
