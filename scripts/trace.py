"""Prints the modules that a cold lookup and a cold read pass, with their calls: `python
scripts/trace.py`.

It needs root and /dev/fuse. A daemon mounts a store that this script serves, with a profile hook in
each of its threads. One signal begins the recording of an operation, another ends it. It counts the
modules of d7yfs whose code ran, and calls between functions of different modules. A coroutine
counts when it starts, not each time it resumes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from opcode import opmap
from pathlib import Path
from types import FrameType
from typing import Any

OBJECTS = {"model/1/model.bin": 8 << 20, "model/config.pbtxt": 300}
ETAG = '"0123456789abcdef0123456789abcdef"'
WAIT_S = 20.0
SETTLE_S = 0.5
"""Seconds in which the tasks of an operation may still run."""


class Handler(BaseHTTPRequestHandler):
    """A server with the part of S3 that a mount needs: a flat listing, and ranges of objects."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Send a listing, or a range of an object."""
        path, _, _query = self.path.partition("?")
        key = path.removeprefix("/bucket").strip("/")
        if not key:
            entries = "".join(
                f"<Contents><Key>{each}</Key><Size>{size}</Size><ETag>{ETAG}</ETag>"
                "<LastModified>2024-01-01T00:00:00.000Z</LastModified></Contents>"
                for each, size in OBJECTS.items()
            )
            body = f"<ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
            self._send(200, body.encode(), {"Content-Type": "application/xml"})
            return
        size = OBJECTS.get(key)
        if size is None:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>", {})
            return
        first, _, last = self.headers.get("Range", f"bytes=0-{size - 1}").removeprefix("bytes=").partition("-")
        start, stop = int(first), min(int(last or size - 1), size - 1) + 1
        self._send(206, b"\x07" * (stop - start), {"ETag": ETAG, "Content-Range": f"bytes {start}-{stop - 1}/{size}"})

    do_HEAD = do_GET

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(body))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


class Recording:
    """The calls between modules in one process, while it is on."""

    def __init__(self, report: Path) -> None:
        self.calls: Counter[tuple[str, str]] = Counter()
        self.modules: set[str] = set()
        self._report = report
        self._is_on = False
        signal.signal(signal.SIGUSR1, self._begin)
        signal.signal(signal.SIGUSR2, self._end)
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    def _begin(self, *_: Any) -> None:
        self.calls.clear()
        self.modules.clear()
        self._is_on = True
        self._report.with_suffix(".on").touch()

    def _end(self, *_: Any) -> None:
        self._is_on = False
        calls = [[*pair, count] for pair, count in self.calls.items()]
        partial = self._report.with_suffix(".part")
        partial.write_text(json.dumps({"modules": sorted(self.modules), "calls": calls}))
        partial.rename(self._report)

    def _hook(self, frame: FrameType, event: str, _argument: object) -> None:
        if not self._is_on or event != "call":
            return
        callee = frame.f_globals.get("__name__", "")
        if not callee.startswith("d7yfs.") or callee.startswith("d7yfs.logs"):
            return
        if frame.f_code.co_filename.startswith("<"):
            return  # made by Python, as the constructors of dataclasses are
        self.modules.add(callee)
        code, at = frame.f_code.co_code, frame.f_lasti
        if at >= 0 and code[at] == opmap["RESUME"] and code[at + 1] & 3:
            return  # It resumes.
        caller = frame.f_back.f_globals.get("__name__", "") if frame.f_back is not None else ""
        if caller.startswith("d7yfs.") and caller != callee:
            self.calls[caller, callee] += 1


def daemon(report: str, arguments: list[str]) -> None:
    """Run `d7yfs` with these arguments under a recording."""
    from d7yfs.cli import main

    Recording(Path(report))
    main(arguments)


def until(path: Path) -> None:
    """Wait until a file exists, and remove it."""
    deadline = time.monotonic() + WAIT_S
    while not path.exists():
        if time.monotonic() > deadline:
            raise SystemExit(f"the daemon has not answered within {WAIT_S:.0f} s")
        time.sleep(0.01)
    path.unlink()


def main() -> None:
    """Mount, look up, read, and print."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as scratch:
        mountpoint, report = Path(scratch, "mount"), Path(scratch, "report")
        mountpoint.mkdir()
        url = f"s3://http://127.0.0.1:{server.server_address[1]}/bucket"
        arguments = ["mount", url, str(mountpoint), "--anonymous", "--foreground", "--cache-dir", f"{scratch}/cache"]
        arguments += ["--takeover", "off", "--metrics-listen", "none"]  # one process, which has the hooks
        process = subprocess.Popen([sys.executable, __file__, "daemon", str(report), *arguments])
        try:
            deadline = time.monotonic() + WAIT_S
            while not os.path.ismount(mountpoint) and time.monotonic() < deadline:
                time.sleep(0.05)
            time.sleep(SETTLE_S)
            path = mountpoint / "model/1/model.bin"
            for title, operation in (
                ("cold lookup", lambda: path.stat()),
                ("cold read", lambda: _read(path)),
            ):
                process.send_signal(signal.SIGUSR1)
                until(report.with_suffix(".on"))
                operation()
                time.sleep(SETTLE_S)
                process.send_signal(signal.SIGUSR2)
                deadline = time.monotonic() + WAIT_S
                while not report.exists() and time.monotonic() < deadline:
                    time.sleep(0.01)
                recorded = json.loads(report.read_text())
                report.unlink()
                calls = sorted(recorded["calls"], key=lambda call: -call[2])
                total = sum(count for _, _, count in calls)
                print(f"{title}: {len(recorded['modules'])} modules, {total} calls between modules")
                print("  modules:", " ".join(name.removeprefix("d7yfs.") for name in recorded["modules"]))
                for caller, callee, count in calls:
                    print(f"  {count:5} {caller.removeprefix('d7yfs.')} -> {callee.removeprefix('d7yfs.')}")
        finally:
            subprocess.run(["umount", "--lazy", str(mountpoint)], check=False, stderr=subprocess.DEVNULL)
            process.terminate()
            process.wait(WAIT_S)


def _read(path: Path) -> None:
    with path.open("rb", buffering=0) as file:
        assert len(file.read(128 << 10)) == 128 << 10


if __name__ == "__main__":
    if sys.argv[1:2] == ["daemon"]:
        daemon(sys.argv[2], sys.argv[3:])
    else:
        main()
