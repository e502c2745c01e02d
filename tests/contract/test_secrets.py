"""No origin and no reader of its objects writes a secret, at any log level, in any failure."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable

import pytest

from d7yfs.errors import D7yfsError
from d7yfs.origins.origin import Origin, ReadRequest
from tests.contract.reading import reader, secrets_of
from tests.contract.stores import WRONG_SECRET, Store
from tests.servers import faults
from tests.servers.dfdaemon import FakeDfdaemon
from tests.servers.fault_proxy import FaultProxy

pytestmark = pytest.mark.store

BODY = bytes(range(256)) * 40
MARKS = ("AWS4", "GOOG4", "OSS4", "SharedKey", "Signature=", "-----BEGIN", "Bearer ey")
"""Words that stand next to signatures and keys."""
TROUBLES = (
    faults.honest,
    faults.status(403, {}, b"<Error><Code>SignatureDoesNotMatch</Code></Error>"),
    faults.status(503, {"Retry-After": "0"}),
    faults.status(307, {"Location": "http://localhost:1/?X-Amz-Signature=1&sig=1"}),
    faults.cut_after(5),
)


async def test_no_secret_is_ever_written(store: Store, faulty: FaultProxy, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = store.put("object", BODY)
    written: list[str] = []
    signed: list[ReadRequest] = []

    async def note(call: Awaitable[object]) -> object:
        try:
            result = await call
        except D7yfsError as error:
            written.extend([str(error), repr(error), error.hint, "".join(traceback.format_exception(error))])
            return None
        written.append(repr(result))
        return result

    async def exercise(origin: Origin) -> None:
        for call in (origin.list(store.prefix), origin.stat(key), origin.checksums(version)):
            await note(call)
        written.extend([origin.url, repr(origin.identity), repr(origin), repr(origin.describe())])
        await origin.aclose()

    async with FakeDfdaemon().running() as dfdaemon:
        origin = store.origin_at(faulty.url)
        version = await origin.stat(key)
        writable = store.writable(endpoint_url=faulty.url)
        for trouble in TROUBLES:
            faulty.script(trouble, forever=True)
            await note(origin.list(store.prefix))
            for presigned in (True, False):
                for fresh in (False, True):
                    request = await note(origin.read_request(version, presigned=presigned, fresh=fresh))
                    signed += [request] if isinstance(request, ReadRequest) else []
            await note(writable.put(store.prefix + "written", BODY, writable.condition("")))
            faulty.script(trouble, trouble)
            dfdaemon.tasks.clear()
            async with reader(origin) as direct, reader(origin, dfdaemon_url=dfdaemon.url) as through_dfdaemon:
                await note(direct.read(version))
                await note(through_dfdaemon.read(version, streamed=True))
        await exercise(origin)
        await writable.aclose()
        for other in (store.origin(), store.denied(), store.no_such_bucket()):
            await exercise(other)
        unreachable = store.unreachable()
        await note(unreachable.list(""))
        await unreachable.aclose()

    sent = [ReadRequest(each.target, each.headers, 0) for each in [*faulty.requests, *dfdaemon.requests]]
    secrets = {secret for request in [*signed, *sent] for secret in secrets_of(request)}
    assert len(secrets) >= 2, "signatures are what is looked for"
    text = caplog.text + "".join(written)
    assert "object" in text
    assert not [secret for secret in {*secrets, *store.secrets, WRONG_SECRET} if secret in text]
    assert not [mark for mark in MARKS if mark in text]
