"""Google's token servers in a thread, under one address: OAuth, STS, the metadata server and
signBlob. The base of `gcs`.

It verifies all that it believes: an assertion's signature (with the account's public key), its
times, its audience.

Sources: https://developers.google.com/identity/protocols/oauth2/service-account,
https://cloud.google.com/iam/docs/reference/sts/rest,
https://cloud.google.com/compute/docs/metadata/querying-metadata.
"""

from __future__ import annotations

import json
import secrets
import socket
import threading
import time
from base64 import b64decode, b64encode, urlsafe_b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from functools import cache
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

IAM_SCOPES = frozenset(f"https://www.googleapis.com/auth/{name}" for name in ("iam", "cloud-platform"))
METADATA_EMAIL = "node@project.iam.gserviceaccount.com"
SKEW_S = 900


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    """The path as sent, percent-encoded, without the query."""
    raw_query: str
    headers: Mapping[str, str]
    """The headers, with names in lower case."""
    body: bytes

    @property
    def query(self) -> dict[str, str]:
        return dict(parse_qsl(self.raw_query, keep_blank_values=True))


@dataclass(slots=True)
class Reply:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    chunked: bool = False


@dataclass(slots=True)
class Token:
    scopes: frozenset[str]
    expires_at: float


class Refusal(Exception):
    def __init__(self, status: int, code: str, message: str = "no") -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class TokenServer:
    """A server that listens while its context lasts.

    Any thread may change its attributes. `intercept` answers in its place, unless it returns None.
    """

    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.tokens: dict[str, Token] = {}
        self.token_life_s = 3600
        self.refresh_tokens: set[str] = set()
        self.subject_tokens: set[str] = set()
        self.may_sign_blobs = True
        self.intercept: Callable[[Request], Reply | None] = lambda _: None
        self.lock = threading.RLock()
        self._accounts: dict[str, rsa.RSAPrivateKey] = {METADATA_EMAIL: _key(METADATA_EMAIL)}
        self._server = _Listener(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=[0.05], daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.hang_up()
        self._server.server_close()
        self._thread.join()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def account(self, email: str = "reader@project.iam.gserviceaccount.com", *, known: bool = True) -> dict[str, str]:
        """The contents of a service account's file; the server refuses the key of an account that
        is not `known`.
        """
        key = _key(email if known else f"not {email}")
        if known:
            self._accounts[email] = key
        return {
            "type": "service_account",
            "project_id": "project",
            "private_key_id": "1",
            "private_key": key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            ).decode(),
            "client_email": email,
            "token_uri": f"{self.url}/token",
        }

    def asked(self, path: str) -> list[Request]:
        return [request for request in self.requests if request.path == path]

    def answer(self, request: Request) -> Reply:
        with self.lock:
            self.requests.append(request)
            try:
                reply = self.intercept(request) or self.honest(request)
            except (KeyError, ValueError, IndexError):  # Not a request of this protocol.
                reply = Reply(400)
        reply.headers.setdefault("Date", formatdate(time.time(), usegmt=True))
        return reply

    def honest(self, request: Request) -> Reply:
        """The answer without any interference."""
        if request.path == "/token":
            return self._oauth(request)
        if request.path == "/sts":
            return self._sts(request)
        if request.path == "/" or request.path.startswith("/computeMetadata/"):
            return self._metadata(request)
        try:
            return self._sign_blob(request) if request.path.endswith(":signBlob") else Reply(404)
        except Refusal as refusal:
            return Reply(refusal.status)

    def check_token(self, request: Request, scopes: frozenset[str]) -> None:
        token = self.tokens.get(request.headers.get("authorization", "").removeprefix("Bearer "))
        if token is None or token.expires_at <= time.time():
            raise Refusal(401, "authError", "Invalid Credentials")
        if not scopes & token.scopes:
            raise Refusal(403, "insufficientPermissions")

    def is_signed_by(self, email: str, text: bytes, signature: bytes) -> bool:
        key = self._accounts.get(email)
        try:
            if key:
                key.public_key().verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return key is not None

    def _token(self, scopes: str) -> dict[str, Any]:
        token = f"ya29.{secrets.token_urlsafe(30)}"
        self.tokens[token] = Token(frozenset(scopes.replace(",", " ").split()), time.time() + self.token_life_s)
        return {"access_token": token, "expires_in": self.token_life_s, "token_type": "Bearer"}

    def _oauth(self, request: Request) -> Reply:
        form = dict(parse_qsl(request.body.decode()))
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return json_reply(
                    400, {"error": "invalid_grant", "error_description": "Token has been expired or revoked."}
                )
            return json_reply(200, self._token("https://www.googleapis.com/auth/cloud-platform"))
        head, claims, signature = form["assertion"].split(".")
        found = json.loads(_unpadded(claims))
        if not self.is_signed_by(found["iss"], f"{head}.{claims}".encode(), _unpadded(signature)):
            return json_reply(400, {"error": "invalid_grant", "error_description": "Invalid JWT Signature."})
        if found["aud"] != "https://oauth2.googleapis.com/token":  # The audience is the same for every address.
            return json_reply(
                400, {"error": "invalid_grant", "error_description": "Invalid JWT: Failed audience check."}
            )
        if not found["iat"] - SKEW_S < time.time() < found["exp"]:
            timeframe = "Invalid JWT: Token must be a short-lived token (60 minutes) and in a reasonable timeframe."
            return json_reply(
                400, {"error": "invalid_grant", "error_description": f"{timeframe} Check your iat and exp values."}
            )
        return json_reply(200, self._token(found["scope"]))

    def _sts(self, request: Request) -> Reply:
        form = dict(parse_qsl(request.body.decode()))
        if form["subject_token"] not in self.subject_tokens:
            return json_reply(400, {"error": "invalid_grant", "error_description": "The subject token is not known."})
        return json_reply(
            200, self._token(form["scope"]) | {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}
        )

    def _metadata(self, request: Request) -> Reply:
        flavor = {"Metadata-Flavor": "Google"}
        if request.headers.get("metadata-flavor") != "Google":
            return Reply(403)
        path = request.path.removeprefix("/computeMetadata/v1/").rstrip("/")
        for account in ("default", METADATA_EMAIL):
            if path == f"instance/service-accounts/{account}/token":
                return json_reply(200, self._token(request.query["scopes"]), flavor)
            if path == f"instance/service-accounts/{account}":
                return json_reply(200, {"email": METADATA_EMAIL, "scopes": [], "aliases": ["default"]}, flavor)
        if path in ("", "project/project-id"):
            return Reply(200, {"Content-Type": "application/text", **flavor}, b"project" if path else b"")
        return Reply(404, flavor)

    def _sign_blob(self, request: Request) -> Reply:
        if not self.may_sign_blobs:
            raise Refusal(403, "PERMISSION_DENIED")
        self.check_token(request, IAM_SCOPES)
        email = unquote(request.path.rpartition("/")[2]).removesuffix(":signBlob")
        text = b64decode(json.loads(request.body)["payload"])
        signature = self._accounts[email].sign(text, padding.PKCS1v15(), hashes.SHA256())
        return json_reply(200, {"keyId": "1", "signedBlob": b64encode(signature).decode()})


@cache
def _key(_name: str) -> rsa.RSAPrivateKey:
    """A key for this name, made once in each run because that is slow."""
    return rsa.generate_private_key(65537, 2048)


def _unpadded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


def json_reply(status: int, value: object, headers: Mapping[str, str] | None = None) -> Reply:
    return Reply(status, {"Content-Type": "application/json", **(headers or {})}, json.dumps(value).encode())


class _Listener(ThreadingHTTPServer):
    daemon_threads = False
    block_on_close = True

    def __init__(self, tokens: TokenServer) -> None:
        self.tokens = tokens
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", 0), _Handler)

    def hang_up(self) -> None:
        """End the threads of connections that clients keep open."""
        for each in list(self.open):
            each.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def setup(self) -> None:
        super().setup()
        self.server.open.add(self.connection)

    def finish(self) -> None:
        self.server.open.discard(self.connection)
        super().finish()

    def _answer(self) -> None:
        parts = urlsplit(self.path)
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = self.rfile.read(int(headers.get("content-length", 0)))
        reply = self.server.tokens.answer(Request(self.command, parts.path, parts.query, headers, body))
        body = b"" if self.command == "HEAD" else reply.body
        if reply.chunked:
            reply.headers["Transfer-Encoding"] = "chunked"
            body = f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n" if body else b""
        else:
            reply.headers["Content-Length"] = str(len(reply.body))
        fields = "".join(f"{name}: {value}\r\n" for name, value in reply.headers.items())
        head = f"HTTP/1.1 {reply.status} {HTTPStatus(reply.status).phrase}\r\n{fields}\r\n"
        self.wfile.write(head.encode("latin-1") + body)

    do_GET = do_HEAD = do_POST = do_PUT = _answer

    def log_message(self, *_: object) -> None:
        pass
