"""Servers of temporary AWS credentials in one: STS, instance metadata (IMDSv2) and the container
endpoint.

It hands out `keys`, which a test may change, and can fail or hang. It runs in its own threads,
because the SDK calls it from threads too.

Sources: https://docs.aws.amazon.com/STS/latest/APIReference/API_AssumeRoleWithWebIdentity.html,
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/instance-metadata-security-credentials.html,
https://docs.aws.amazon.com/sdkref/latest/guide/feature-container-credentials.html.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs

_ROLE = "reader"
_METADATA = "/latest/meta-data/iam/security-credentials/"
_METADATA_TOKEN = "imds-token"
_STS = "https://sts.amazonaws.com/doc/2011-06-15/"


@dataclass(frozen=True)
class TemporaryKeys:
    """The credentials of the next answer; they expire `life_s` seconds after the request."""

    key_id: str
    secret_key: str = "temporary-secret"
    session_token: str = "temporary-token"
    life_s: float = 3600.0


class CredentialServer:
    """A running server; `sts`, `instance` and `container` give the environment that points the SDK
    at it.
    """

    def __init__(self) -> None:
        self.keys = TemporaryKeys("ASIAFIRST")
        self.status = 200
        """The status of answers that carry credentials; other than 200 is a refusal."""
        self.asked = 0
        """The number of requests for credentials."""
        self.web_identity_tokens: list[str] = []
        self.roles: list[str] = []
        self.hold = threading.Event()
        """Answers wait while this event is not set."""
        self.hold.set()
        self.waiting = threading.Event()
        """Set when an answer has begun to wait."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer._get(self)

            def do_PUT(self) -> None:
                outer._reply(self, 200, _METADATA_TOKEN)

            def do_POST(self) -> None:
                outer._post(self)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def sts(self, token_file: str) -> dict[str, str]:
        """Environment of a program with a web identity (Kubernetes' IRSA)."""
        return {
            "AWS_ENDPOINT_URL_STS": self.url,
            "AWS_ROLE_ARN": f"arn:aws:iam::123456789012:role/{_ROLE}",
            "AWS_WEB_IDENTITY_TOKEN_FILE": token_file,
            "AWS_REGION": "us-east-1",
        }

    def instance(self) -> dict[str, str]:
        """Environment of a program on a virtual machine."""
        return {"AWS_EC2_METADATA_SERVICE_ENDPOINT": self.url, "AWS_EC2_METADATA_DISABLED": "false"}

    def container(self) -> dict[str, str]:
        """Environment of a program in ECS or EKS with pod identity."""
        return {"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{self.url}/container"}

    @contextmanager
    def running(self) -> Iterator[CredentialServer]:
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self.hold.set()
            self._server.shutdown()
            self._server.server_close()
            thread.join()

    def _get(self, handler: BaseHTTPRequestHandler) -> None:
        if handler.path == _METADATA:
            self._reply(handler, 200, _ROLE)
        elif handler.path == "/container":
            self._hand_out(handler, "json")
        elif handler.path == _METADATA + _ROLE:
            if handler.headers.get("x-aws-ec2-metadata-token") == _METADATA_TOKEN:
                self._hand_out(handler, "json")
            else:
                self._reply(handler, 401, "IMDSv2 wants a token")
        else:
            self._reply(handler, 404, "")

    def _post(self, handler: BaseHTTPRequestHandler) -> None:
        form = parse_qs(handler.rfile.read(int(handler.headers["Content-Length"])).decode())
        self.web_identity_tokens += form.get("WebIdentityToken", [])
        self.roles += form["RoleArn"]
        self._hand_out(handler, form["Action"][0])

    def _hand_out(self, handler: BaseHTTPRequestHandler, form: str) -> None:
        self.asked += 1
        if not self.hold.is_set():
            self.waiting.set()
            self.hold.wait()
        keys, moment = self.keys, datetime.fromtimestamp(int(time.time() + self.keys.life_s), UTC)
        end = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
        if self.status != 200:
            code = "ServiceUnavailable" if self.status >= 500 else "AccessDenied"
            self._reply(handler, self.status, f"<ErrorResponse><Error><Code>{code}</Code></Error></ErrorResponse>")
        elif form == "json":
            fields = {"AccessKeyId": keys.key_id, "SecretAccessKey": keys.secret_key, "Token": keys.session_token}
            self._reply(handler, 200, json.dumps({"Code": "Success", **fields, "Expiration": end}))
        else:
            self._reply(
                handler,
                200,
                f'<{form}Response xmlns="{_STS}"><{form}Result><Credentials><AccessKeyId>{keys.key_id}</AccessKeyId>'
                f"<SecretAccessKey>{keys.secret_key}</SecretAccessKey><SessionToken>{keys.session_token}</SessionToken>"
                f"<Expiration>{end}</Expiration></Credentials></{form}Result></{form}Response>",
            )

    def _reply(self, handler: BaseHTTPRequestHandler, status: int, body: str) -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body.encode())
