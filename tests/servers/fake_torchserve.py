"""TorchServe's management API without TorchServe: its messages and statuses as a running 0.12.0
gives them.

It owns a table of registered models, on its own socket (TCP or unix). `store` holds the model
store: the name and version in the manifest of each archive or directory, or None if it cannot be
loaded. `requests` records every request. tests/torchserve runs the same commands against the real
server.
"""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit


class FakeTorchServe:
    """A fake server with its models and faults."""

    def __init__(self, store: dict[str, tuple[str, str] | None], *, token: str = "", model_api: bool = True) -> None:
        self.store = store
        self.token = token
        self.model_api = model_api
        self.broken: set[str] = set()
        """Names of models whose workers do not start."""
        self.silent: set[str] = set()
        """URLs whose registration never gets an answer."""
        self.cut: set[str] = set()
        """URLs whose registration ends with the connection."""
        self.gateway: set[str] = set()
        """URLs for which a gateway answers in the server's place."""
        self.ended = threading.Event()
        self.page = 2
        """The most models in one listing, whatever limit the client asks for."""
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        """Method, path and query of each request."""
        self.hosts: list[str] = []
        self.models: dict[str, dict[str, str]] = {}
        """URLs by name and version; the first version is the default one."""
        self.workers: dict[str, int] = {}
        self.raw = b""
        """The raw body of every answer, to play another kind of server; empty for its own answers.
        """
        self.address = ""
        self.listens_on = -1
        """The descriptor of the server's socket."""

    def answer(self, method: str, path: str, query: dict[str, str], token: str) -> tuple[int, object]:
        if self.token and token != f"Bearer {self.token}":
            words = "Token Authorization failed. Token either incorrect, expired, or not provided correctly"
            return _error(400, "InvalidKeyException", words)
        segments = [unquote(each) for each in path.split("/") if each]
        if segments[:1] != ["models"]:
            words = "Requested resource is not found, please refer to API document."
            return _error(404, "ResourceNotFoundException", words)
        if method in ("POST", "DELETE") and not self.model_api:
            words = "Requested method is not allowed, please refer to API document."
            return _error(405, "MethodNotAllowedException", words)
        if method == "POST":
            return self._register(query)
        if len(segments) == 1:
            return self._list(query)
        name, version = segments[1], segments[2] if len(segments) > 2 else ""
        if name not in self.models:
            return _error(404, "ModelNotFoundException", f"Model not found: {name}")
        if method == "PUT":
            return self._scale(name, version, query)
        return self._describe(name, version) if method == "GET" else self._remove(name, version)

    def _register(self, query: dict[str, str]) -> tuple[int, object]:
        url = query["url"]
        if url not in self.store:
            return _error(404, "ModelNotFoundException", f"Model not found at: {url}")
        found = self.store[url]
        if found is None:
            return _error(400, "InvalidModelException", "Model name is not defined.")
        name, version = found
        if version in self.models.get(name, {}):
            words = f"Model version {version} is already registered for model {name}"
            return _error(409, "ConflictStatusException", words)
        workers = int(query.get("initial_workers", "0"))
        if workers and name in self.broken:
            words = f"Failed to start workers for model {name} version: {version}"
            return _error(500, "InternalServerException", words)
        self.models.setdefault(name, {})[version] = url
        self.workers[name] = workers
        if workers and query.get("synchronous") == "false":
            return 202, {"status": "Processing worker updates..."}
        rest = "" if workers else ". Use scale workers API to add workers for the model."
        return 200, {"status": f'Model "{name}" Version: {version} registered with {workers} initial workers{rest}'}

    def _scale(self, name: str, version: str, query: dict[str, str]) -> tuple[int, object]:
        workers = int(query.get("min_worker", "1"))
        self.workers[name] = workers
        if query.get("synchronous") != "true":
            return 202, {"status": "Processing worker updates..."}
        if name in self.broken:
            words = f"Failed to start workers for model {name} version: {version}"
            return _error(500, "InternalServerException", words)
        return 200, {"status": f"Workers scaled to {workers} for model: {name}, version: {version}"}

    def _list(self, query: dict[str, str]) -> tuple[int, object]:
        names, first = sorted(self.models), int(query.get("next_page_token", "0"))
        last = first + min(self.page, int(query.get("limit", "100")))
        rows = [{"modelName": name, "modelUrl": next(iter(self.models[name].values()))} for name in names[first:last]]
        return 200, ({"nextPageToken": str(last)} if last < len(names) else {}) | {"models": rows}

    def _describe(self, name: str, version: str) -> tuple[int, object]:
        versions = self.models[name]
        shown = versions if version == "all" else {next(iter(versions)): next(iter(versions.values()))}
        count = self.workers[name]
        rows = [
            {"modelName": name, "modelVersion": each, "modelUrl": url, "minWorkers": count, "batchSize": 1}
            | {"workers": [{"id": "9000", "status": "READY"}] * count}
            for each, url in shown.items()
        ]
        return 200, rows

    def _remove(self, name: str, version: str) -> tuple[int, object]:
        versions = self.models[name]
        version = version or next(iter(versions))
        if version == next(iter(versions)) and len(versions) > 1:
            return _error(403, "InvalidModelVersionException", f"Cannot remove default version for model {name}")
        del versions[version]
        if not versions:
            del self.models[name]
        return 200, {"status": f'Model "{name}" unregistered'}


def _error(status: int, kind: str, words: str) -> tuple[int, object]:
    return status, {"code": status, "type": kind, "message": words}


class _Unix(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True


@contextmanager
def running(
    fake: FakeTorchServe, unix: Path | None = None, tls: ssl.SSLContext | None = None
) -> Iterator[FakeTorchServe]:
    """Serve `fake` on loopback (with `tls` over https), or on a unix socket, and set its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _handle(self) -> None:
            parts = urlsplit(self.path)
            query = dict(parse_qsl(parts.query, keep_blank_values=True))
            fake.requests.append((self.command, parts.path, query))
            fake.hosts.append(self.headers["Host"])
            url = query.get("url", "")
            if url in fake.silent:
                fake.ended.wait()
            if url in fake.silent | fake.cut:
                self.close_connection = True
                return
            status, content = fake.answer(self.command, parts.path, query, self.headers.get("Authorization", ""))
            body = fake.raw or json.dumps(content, indent=2).encode()
            if url in fake.gateway:
                status, body = 502, b"<html>Bad Gateway</html>"
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = _handle

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server: _Unix | ThreadingHTTPServer
    if unix:
        server, fake.address = _Unix(str(unix), Handler), f"unix:{unix}"
    else:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        fake.address = f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
    fake.listens_on = server.fileno()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        fake.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()


def closed_port() -> int:
    """A loopback port without a listener."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
