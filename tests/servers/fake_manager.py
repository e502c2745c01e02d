"""The jobs of Dragonfly's manager without Dragonfly: the open API as manager 2.5.1 gives it.

It checks the token and the arguments, and computes each task as the scheduler does, on its own
(`pkg/idgen/task_id.go`). `bring` plays the daemons: it gets a URL and the arguments, and returns the
host that has the object, or raises. `requests` records every job. tests/integration runs the same
command against the real manager.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

ARGUMENTS = {
    *(
        "type",
        "url",
        "urls",
        "piece_length",
        "tag",
        "application",
        "filtered_query_params",
        "headers",
        "username",
        "password",
    ),
    *("platform", "scope", "ips", "percentage", "count", "concurrent_task_count", "concurrent_peer_count", "timeout"),
}
"""The arguments of a preheat, `manager/types/job.go`."""

Bring = Callable[[str, dict[str, Any]], str]


class FakeManager:
    """A fake manager, and the faults that it can have."""

    def __init__(self, *, token: str = "5ecre7-t0ken", bring: Bring = lambda _url, _args: "seed-1") -> None:
        self.token = token
        self.bring = bring
        self.looks = 1
        """Looks at a job at which it still goes on."""
        self.requests: list[dict[str, Any]] = []
        """The bodies of the jobs."""
        self.status = 0
        """The status of every answer; 0 for its own."""
        self.body = b""
        """The body of every answer; empty for its own."""
        self.missed_looks = 0
        """Looks that get no answer at all."""
        self.clusters = 1
        """Clusters of schedulers: each has its own part in an outcome."""
        self.url = ""
        self._jobs: list[dict[str, Any]] = []
        self._looks: list[int] = []

    @property
    def tasks(self) -> list[str]:
        """The ids of all tasks that jobs have made."""
        return [task_id(url, job["args"]) for job in self.requests for url in job["args"]["urls"]]

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, Any]:
        if authorization != f"Bearer {self.token}":
            return 401, {"message": "Unauthorized"}
        if path == "/oapi/v1/jobs" and method == "POST":
            return self._create(json.loads(body))
        number = int(path.removeprefix("/oapi/v1/jobs/"))
        if self._looks[number - 1] < self.looks:
            self._looks[number - 1] += 1
            return 200, {"id": number, "state": "PENDING", "result": None}
        return 200, self._jobs[number - 1]

    def _create(self, job: dict[str, Any]) -> tuple[int, Any]:
        args = job["args"]
        if job["type"] != "preheat" or args["type"] != "file" or set(args) - ARGUMENTS:
            return 422, {"errors": f"unknown: {set(args) - ARGUMENTS}"}
        if not 4 << 20 <= args.get("piece_length", 4 << 20) <= 64 << 20:
            return 422, {"errors": "Key: 'PreheatArgs.PieceLength' Error:Field validation failed"}
        self.requests.append(job)
        parts = [self._part(args) for _ in range(self.clusters)]
        state = "FAILURE" if any(each["state"] == "FAILURE" for each in parts) else "SUCCESS"
        self._jobs.append({"id": len(self.requests), "state": state, "result": {"state": state, "job_states": parts}})
        self._looks.append(0)
        return 200, {"id": len(self.requests), "state": "PENDING", "args": args, "result": None}

    def _part(self, args: dict[str, Any]) -> dict[str, Any]:
        successes, failures = [], []
        for url in args["urls"]:
            try:
                host = self.bring(url, args)
            except OSError as error:
                failures.append(
                    {"url": url, "hostname": "seed-2", "ip": "10.0.0.2", "description": f"GET {url}: {error}"}
                )
            else:
                successes.append({"url": url, "hostname": host, "ip": "10.0.0.1"})
        if args["scope"] == "single_seed_peer":
            failures = []  # the scheduler leaves them out, and the job succeeds
        elif failures and not successes:
            return {
                "state": "FAILURE",
                "results": None,
                "error": f"all peers preheat failed: {failures[0]['description']}",
            }
        result = {"success_tasks": successes or None, "failure_tasks": failures or None, "scheduler_cluster_id": 1}
        return {"state": "SUCCESS", "results": [result], "error": ""}


def task_id(url: str, args: dict[str, Any]) -> str:
    """The id of the task that the scheduler makes of a URL and a job's arguments."""
    hidden = args["filtered_query_params"].split("&")
    parts = urlsplit(url)
    kept = sorted(pair for pair in parse_qsl(parts.query, keep_blank_values=True) if pair[0] not in hidden)
    length = str(args.get("piece_length", ""))
    named = urlunsplit(parts._replace(query=urlencode(kept))) + args["tag"] + args["application"] + length + "STANDARD"
    return hashlib.sha256(named.encode()).hexdigest()


@contextmanager
def running(manager: FakeManager) -> Iterator[FakeManager]:
    """`manager`, while it serves on loopback."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self._reply(self.rfile.read(int(self.headers["Content-Length"])))

        def do_GET(self) -> None:
            if manager.missed_looks:
                manager.missed_looks -= 1
                self.close_connection = True
                return
            self._reply(b"")

        def _reply(self, body: bytes) -> None:
            status, answer = manager.answer(self.command, self.path, self.headers.get("Authorization", ""), body)
            sent = manager.body or json.dumps(answer).encode()
            self.send_response(manager.status or status)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: the standard error belongs to the test."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        manager.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield manager
        server.shutdown()
        thread.join()
