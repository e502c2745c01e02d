"""What every origin's signed GETs promise: fetched here with an independent HTTP client."""

from __future__ import annotations

import logging
import math
import re
import time
import traceback
from contextlib import aclosing
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from d7yfs.errors import D7yfsError
from d7yfs.objects import ByteRange
from d7yfs.origins.origin import Origin, ReadRequest
from tests.contract.stores import Store
from tests.contract.test_list_and_stat import ODD_NAMES

pytestmark = pytest.mark.store

BODY = bytes(range(256)) * 40
KINDS = pytest.mark.parametrize("presigned", [True, False], ids=["presigned", "signed"])


async def fetch(request: ReadRequest, wanted: ByteRange | None = None, **headers: str) -> httpx.Response:
    sent = {**request.headers, **headers}
    if wanted:
        sent["Range"] = wanted.http()
    async with httpx.AsyncClient(trust_env=False) as client:
        return await client.get(request.url, headers=sent)


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@KINDS
async def test_any_range_with_one_request(store: Store, origin: Origin, presigned: bool) -> None:
    version = await origin.stat(store.put("object", BODY))
    request = await origin.read_request(version, presigned=presigned)
    assert request.headers["If-Match"] == version.validator
    for wanted in (ByteRange(0, 1), ByteRange(100, 4000), ByteRange(len(BODY) - 1, len(BODY))):
        reply = await fetch(request, wanted)
        assert reply.status_code == 206
        assert reply.headers["Content-Range"] == f"bytes {wanted.start}-{wanted.stop - 1}/{len(BODY)}"
        assert reply.content == BODY[wanted.start : wanted.stop]
    assert (await fetch(request)).content == BODY


@KINDS
@pytest.mark.parametrize("name", ODD_NAMES)
async def test_odd_names_are_signed_right(store: Store, origin: Origin, name: str, presigned: bool) -> None:
    if name in store.unstorable:
        return
    version = await origin.stat(store.put(name, name.encode()))
    reply = await fetch(await origin.read_request(version, presigned=presigned))
    assert reply.content == name.encode()


@KINDS
async def test_replaced_object_is_refused(store: Store, origin: Origin, presigned: bool) -> None:
    version = await origin.stat(store.put("object", BODY))
    request = await origin.read_request(version, presigned=presigned)
    store.put("object", BODY[::-1])
    assert (await fetch(request, ByteRange(0, 10))).status_code == 412


async def test_presigned_signs_neither_range_nor_conditions(store: Store, origin: Origin) -> None:
    version = await origin.stat(store.put("object", BODY))
    request = await origin.read_request(version, presigned=True)
    query = parse_qs(urlsplit(request.url).query)
    assert query["X-Amz-SignedHeaders"] == ["host"]
    assert set(request.headers) == {"If-Match"}
    assert set(query) == request.signature_params
    assert time.time() + 800 < request.expires_at <= time.time() + 900


async def test_signed_keeps_the_signature_out_of_the_url(store: Store, origin: Origin) -> None:
    version = await origin.stat(store.put("object", BODY))
    request = await origin.read_request(version, presigned=False)
    assert urlsplit(request.url).query == ""
    signed = re.search(r"SignedHeaders=([^,]*)", request.headers["Authorization"])
    assert signed
    assert not {name for name in signed[1].split(";") if name == "range" or name.startswith("if-")}
    assert not request.signature_params


@KINDS
async def test_requests_are_reused_for_half_their_life(store: Store, presigned: bool) -> None:
    key = store.put("object", BODY)
    clock = Clock()
    async with aclosing(store.origin(clock=clock)) as origin:
        version = await origin.stat(key)
        first = await origin.read_request(version, presigned=presigned)
        clock.now += (first.expires_at - clock.now) / 2 - 1
        assert await origin.read_request(version, presigned=presigned) is first
        assert await origin.read_request(version, presigned=not presigned) is not first
        clock.now += 2
        assert await origin.read_request(version, presigned=presigned) is not first


@KINDS
async def test_fresh_signs_anew(store: Store, presigned: bool) -> None:
    key = store.put("object", BODY)
    clock = Clock()
    async with aclosing(store.origin(clock=clock)) as origin:
        version = await origin.stat(key)
        first = await origin.read_request(version, presigned=presigned)
        for later in (0, 60):
            clock.now += later
            again = await origin.read_request(version, presigned=presigned, fresh=True)
            assert again is not first
            assert (await fetch(again)).content == BODY
            assert await origin.read_request(version, presigned=presigned) is again


@KINDS
async def test_garbled_signature_is_refused(store: Store, origin: Origin, presigned: bool) -> None:
    version = await origin.stat(store.put("object", BODY))
    request = await origin.read_request(version, presigned=presigned)

    def garble(text: str) -> str:
        return re.sub(r"(Signature=)[0-9a-f]{8}", r"\g<1>00000000", text)

    headers = {name: garble(value) for name, value in request.headers.items()}
    garbled = ReadRequest(garble(request.url), headers, math.inf)
    assert (garbled.url, garbled.headers) != (request.url, request.headers)
    assert (await fetch(garbled)).status_code == 403


@KINDS
async def test_expired_signature_is_refused_and_fresh_heals_it(store: Store, origin: Origin, presigned: bool) -> None:
    version = await origin.stat(store.put("object", BODY))
    with store.signing_at(-3600):
        stale = await origin.read_request(version, presigned=presigned)
    assert (await fetch(stale)).status_code == 403
    fresh = await origin.read_request(version, presigned=presigned, fresh=True)
    assert (await fetch(fresh)).status_code == 200


@KINDS
async def test_signature_of_wrong_keys_is_refused(store: Store, origin: Origin, presigned: bool) -> None:
    version = await origin.stat(store.put("object", BODY))
    async with aclosing(store.denied()) as denied:
        request = await denied.read_request(version, presigned=presigned)
        assert (await fetch(request)).status_code == 403


async def test_no_secret_is_ever_written(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    key = store.put("object", BODY)
    requests = []
    written = []
    for opened in (store.origin(), store.denied(), store.no_such_bucket(), store.unreachable()):
        async with aclosing(opened) as origin:
            written += [origin.url, origin.identity, repr(origin)]
            for what in (store.prefix, key):
                try:
                    written.append(repr(await (origin.stat(what) if what == key else origin.list(what))))
                except D7yfsError as error:
                    written += [str(error), repr(error), "".join(traceback.format_exception(error))]
    async with aclosing(store.origin()) as origin:
        version = await origin.stat(key)
        for presigned in (True, False):
            for fresh in (False, True):
                request = await origin.read_request(version, presigned=presigned, fresh=fresh)
                written.append(repr(request))
                requests.append(request)
    text = caplog.text + "".join(written)
    signatures = {
        match[1]
        for r in requests
        for match in re.finditer(r"Signature=(\w+)", f"{r.url} {r.headers.get('Authorization')}")
    }
    assert len(signatures) >= 2
    assert not [secret for secret in (store.secret, "not-the-secret", *signatures) if secret in text]
    assert "AWS4" not in text
