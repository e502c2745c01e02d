"""`d7yfs status --cluster` with a Prometheus that is none, or away. tests/monitoring asks a real one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner

from d7yfs.cli.cluster import show_cluster
from d7yfs.cli.status import status
from d7yfs.errors import D7yfsError, UsageError


@contextmanager
def prometheus(answer: Any, code: int = 200) -> Iterator[tuple[str, list[str]]]:
    """Its URL, and the queries that it was asked; `answer` is the body, or a function of the query."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            (query,) = parse_qs(urlsplit(self.path).query)["query"]
            asked.append(query)
            body = answer(query) if callable(answer) else answer
            sent = body if isinstance(body, bytes) else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(sent)))
            self.end_headers()
            self.wfile.write(sent)

        def log_message(self, format: str, *args: object) -> None:
            """Log nothing: the standard error belongs to the test."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()
        thread.join()


def two_hosts(query: str) -> dict[str, Any]:
    result = [{"metric": {}, "value": [1.0, "2"]}] if "d7yfs_info" in query else []
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def test_it_asks_for_the_window_and_prints(capsys: pytest.CaptureFixture[str]) -> None:
    with prometheus(two_hosts) as (url, asked):
        show_cluster(url, "30m", as_json=False)
        show_cluster(url, "30m", as_json=True)
    text = capsys.readouterr().out
    assert text.startswith("2 mounts, none falls back to the store\nbytes in 30m: none\n")
    assert json.loads(text[text.index("{") :])["hosts"] == 2
    assert any("[30m]" in each for each in asked)
    assert not any("[6h]" in each for each in asked)


def test_no_mount_is_an_error() -> None:
    with (
        prometheus({"data": {"result": []}}) as (url, _),
        pytest.raises(D7yfsError, match="knows no mount"),
    ):
        show_cluster(url, "6h", as_json=False)


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (b"<html>", 200, "is no Prometheus"),
        ({"data": {"result": 1}}, 200, "is no Prometheus"),
        ({"data": {"result": [{"metric": {}}]}}, 200, "is no Prometheus"),
        ({"error": "parse error"}, 400, "answers 400 'parse error'"),
        (b"\x00" * (40 << 20), 200, "answers with more than"),
    ],
)
def test_an_answer_that_is_none(answer: Any, code: int, said: str) -> None:
    with prometheus(answer, code) as (url, _), pytest.raises(D7yfsError, match=said):
        show_cluster(url, "6h", as_json=False)


def test_no_server() -> None:
    with pytest.raises(D7yfsError, match="cannot be reached") as caught:
        show_cluster("http://127.0.0.1:9", "6h", as_json=False)
    assert "--prometheus" in caught.value.hint


@pytest.mark.parametrize(("url", "over"), [("ftp://x", "6h"), ("http://x:1", "6"), ("http://x:1", "6h]) or up")])
def test_values_that_are_none(url: str, over: str) -> None:
    with pytest.raises(UsageError):
        show_cluster(url, over, as_json=False)


@pytest.mark.parametrize(
    "options", [["--cluster"], ["--prometheus", "http://x"], ["--cluster", "--prometheus", "http://x", "/mnt"]]
)
def test_options_that_do_not_go_together(options: list[str]) -> None:
    outcome = CliRunner().invoke(status, options)
    assert isinstance(outcome.exception, UsageError)
    assert "--prometheus" in str(outcome.exception)
