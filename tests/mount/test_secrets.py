"""No secret reaches a log, a status, an error text or an extended attribute, in any failure."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from tests.mount.conftest import MIB, bytes_of, faulty_url
from tests.mount.mounted import Mounter, run, within
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon, error
from tests.servers.in_thread import InThread
from tests.servers.s3_faults import S3Faults

pytestmark = [pytest.mark.mount]

KEY_ID = "AKIDKEYIDKEYIDKEYID0"
SECRET_KEY = "secret+key/secret+key/secret+key/0000000"
TOKEN = "session//token//session//token//0000"
HEADER = "Bearer-of-a-tenants-secret"
NEVER = (SECRET_KEY, TOKEN, HEADER, "AWS4-HMAC-SHA256", "X-Amz-Signature", "X-Amz-Security-Token", "Signature=")


def test_no_secret_anywhere(mounter: Mounter, faulty: InThread[S3Faults], tmp_path: Path) -> None:
    bodies = {
        f"b/{name}": bytes_of(seed, 6 * MIB) for seed, name in enumerate(("good", "busy", "denied", "gone", "odd"))
    }
    for key, body in bodies.items():
        faulty.do(faulty.server.put, key, body)
    said: list[str] = []
    with InThread(FakeDfdaemon()) as dfdaemon:
        dragonfly = tmp_path / "dragonfly_config.json"
        dragonfly.write_text(json.dumps({"proxy": dfdaemon.server.url, "header": {"X-Tenant": HEADER, "Host": HEADER}}))
        env = {
            "AWS_ACCESS_KEY_ID": KEY_ID,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_SESSION_TOKEN": TOKEN,
            "TRITON_DRAGONFLY_CONFIG_PATH": str(dragonfly),
        }
        mounted = mounter.mount(
            faulty_url(faulty),
            "--xattr",
            "--read-timeout",
            "2s",
            "--metadata-ttl",
            "0",
            "--log-format",
            "json",
            env=env,
        )
        assert mounted.read("good") == bodies["b/good"]
        proxied = dfdaemon.server.requests_for("b/good")
        assert {request.headers["x-tenant"] for request in proxied} == {HEADER}, "the header must really be sent"
        assert "X-Amz-Signature" in proxied[0].target
        direct = [request for request in faulty.server.requests if "authorization" in request.headers]
        assert direct, "signatures must really be sent"

        dfdaemon.do(lambda: dfdaemon.server.script(error(500, "proxy"), faults.drop, forever=True))
        for name, fault in {
            "busy": faults.status(503, {}, b"<Error><Code>SlowDown</Code></Error>"),
            "denied": faults.status(403, {}, b"<Error><Code>SignatureDoesNotMatch</Code></Error>"),
            "gone": faults.status(412),
            "odd": faults.status(302, {"Location": "http://127.0.0.1:1/?X-Amz-Signature=1"}),
        }.items():
            faulty.do(partial(faulty.server.script, fault, key=f"b/{name}", forever=True))
            with pytest.raises(OSError):  # noqa: PT011  # the test checks the texts
                mounted.read(name)
        faulty.do(
            lambda: faulty.server.script(
                faults.status(403, {}, b"<Error><Code>AccessDenied</Code></Error>"), key="b", forever=True
            )
        )
        mounted.names()

        point = mounter.point()
        url = faulty_url(faulty)
        for arguments in (
            ("status", "--json"),
            ("status", "--settings"),
            ("status", mounted.point, "--json"),
            ("stat", mounted.point / "good", "--json"),
            ("reload", mounted.point, "--json"),
            ("check", mounted.point),
            ("ls", url),
            ("mount", url, "--cache-dir", tmp_path / "cache", point),
            ("check", url, "--cache-dir", tmp_path / "cache", "--settings", "--log-level", "debug"),
            ("check", url, "--cache-dir", tmp_path / "cache", "--json"),
        ):
            done = run(*arguments, env=env)
            assert done.stdout + done.stderr
            said += [done.stdout, done.stderr]
        path = mounted.point / "good"
        said += [repr(within(20, lambda: [os.getxattr(path, name) for name in os.listxattr(path)]))]
        said += [mounted.log(), mounted.said]
        lines = [json.loads(line) for line in mounted.log().splitlines()]
        assert {"warning", "info"} <= {line["level"] for line in lines}
    for text in said:
        for secret in NEVER:
            assert secret not in text
    cached = [path for path in mounted.cache_dir.rglob("*.map") if any(s.encode() in path.read_bytes() for s in NEVER)]
    assert cached == []
