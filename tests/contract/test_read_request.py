"""The promises of every origin's signed GETs, fetched with an independent HTTP client."""

from __future__ import annotations

import re
import time
from contextlib import aclosing
from dataclasses import replace
from urllib.parse import parse_qs, urlsplit

import pytest

from d7yfs.errors import AccessDenied, VersionGone
from d7yfs.objects import ByteRange
from d7yfs.origins.origin import Origin
from tests.contract.reading import garbled, get, refusal, secrets_of
from tests.contract.stores import Store
from tests.contract.test_list_and_stat import storable_names

pytestmark = pytest.mark.store

BODY = bytes(range(256)) * 40
KINDS = pytest.mark.parametrize("presigned", [True, False], ids=["presigned", "signed"])


class Clock:
    def __init__(self) -> None:
        self.now = time.time()

    def __call__(self) -> float:
        return self.now


@KINDS
async def test_any_range_with_one_request(store: Store, origin: Origin, presigned: bool) -> None:
    version = await origin.stat(store.put("object", BODY))
    request = await origin.read_request(version, presigned=presigned)
    for wanted in (ByteRange(0, 1), ByteRange(100, 4000), ByteRange(len(BODY) - 1, len(BODY))):
        reply = await get(request, wanted)
        assert reply.status_code == 206
        assert reply.headers["Content-Range"] == f"bytes {wanted.start}-{wanted.stop - 1}/{len(BODY)}"
        assert reply.content == BODY[wanted.start : wanted.stop]
    assert (await get(request)).content == BODY


async def test_odd_names_are_signed_right(store: Store, origin: Origin, request: pytest.FixtureRequest) -> None:
    for name in storable_names(store, request):
        version = await origin.stat(store.put(name, name.encode()))
        for presigned in (True, False):
            reply = await get(await origin.read_request(version, presigned=presigned))
            assert reply.content == name.encode()


@KINDS
@pytest.mark.parametrize("change", ["replaced", "deleted"])
async def test_wrong_version_is_stale(store: Store, origin: Origin, presigned: bool, change: str) -> None:
    version = await origin.stat(store.put("object", BODY))
    request = await origin.read_request(version, presigned=presigned)
    if change == "replaced":
        store.put("object", BODY[::-1])
    else:
        store.delete("object")
    assert isinstance(refusal(await get(request, ByteRange(0, 10))), VersionGone)


async def test_presigned_signs_neither_range_nor_conditions(store: Store, origin: Origin) -> None:
    version = await origin.stat(store.put("object", BODY))
    request = await origin.read_request(version, presigned=True)
    assert not secrets_of(replace(request, url="")), "the URL alone is signed"
    query = parse_qs(urlsplit(request.url).query)
    assert request.signature_params
    assert request.signature_params <= set(query)
    signed = {name.lower() for values in query.values() for value in values for name in re.split("[;,]", value)}
    assert not {name for name in signed if name == "range" or name.startswith("if-")}
    assert secrets_of(request), "it is signed at all"
    assert time.time() + 60 < request.expires_at <= time.time() + 7 * 24 * 3600


async def test_signed_keeps_the_signature_out_of_the_url(store: Store, origin: Origin) -> None:
    version = await origin.stat(store.put("object", BODY))
    request = await origin.read_request(version, presigned=False)
    assert not request.signature_params
    secrets = secrets_of(request)
    assert secrets
    assert not [secret for secret in secrets if secret in request.url]
    signed = re.search(r"Headers=([^,]*)", request.headers["Authorization"])
    assert not {name for name in (signed[1].split(";") if signed else ()) if name == "range" or name.startswith("if-")}


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
            assert (await get(again)).content == BODY
            assert await origin.read_request(version, presigned=presigned) is again


@KINDS
async def test_garbled_signature_is_refused(store: Store, origin: Origin, presigned: bool) -> None:
    version = await origin.stat(store.put("object", BODY))
    request = await origin.read_request(version, presigned=presigned)
    assert isinstance(refusal(await get(garbled(request))), AccessDenied)


@KINDS
async def test_signature_of_wrong_keys_is_refused(store: Store, origin: Origin, presigned: bool) -> None:
    version = await origin.stat(store.put("object", BODY))
    async with aclosing(store.denied()) as denied:
        with pytest.raises(AccessDenied):  # where a token is needed, there is none to sign with
            raise refusal(await get(await denied.read_request(version, presigned=presigned)))
