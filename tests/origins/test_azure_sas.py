"""Signatures against those of Microsoft's SDK for the same version.

Delegated ones are in test_azure_azurite."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from urllib.parse import parse_qs

import pytest
from azure.storage.blob import _shared_access_signature as sdk

from d7yfs.origins.azure.sas import VERSION, SasSigner, expiry_of, iso, timestamp

SECRET = b"0123456789abcdef" * 4
EXPIRES_AT = 1_800_000_000.9
MOMENT = datetime(2027, 1, 15, 8, 0, tzinfo=UTC)
DELEGATION = {
    "skoid": "oid",
    "sktid": "tid",
    "skt": "2027-01-15T07:00:00Z",
    "ske": "2027-01-15T13:00:00Z",
    "sks": "b",
    "skv": VERSION,
}
VERSION_ID = "2026-11-21T10:55:00.9876543Z"


@pytest.fixture
def same_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sdk, "X_MS_VERSION", VERSION)


@pytest.mark.usefixtures("same_version")
def test_container() -> None:
    theirs = sdk.generate_container_sas(
        "account", "models", account_key=base64.b64encode(SECRET).decode(), permission="rl", expiry=MOMENT
    )
    assert parse_qs(SasSigner("account", "models", SECRET).sign_container("rl", EXPIRES_AT)) == parse_qs(theirs)


@pytest.mark.usefixtures("same_version")
@pytest.mark.parametrize("key", ["a", "a/b c.onnx", "ünï/日本語+%", "a//b", "new\nline"])
@pytest.mark.parametrize("version_id", ["", VERSION_ID])
def test_blob(key: str, version_id: str) -> None:
    theirs = sdk.generate_blob_sas(
        "account",
        "models",
        key,
        account_key=base64.b64encode(SECRET).decode(),
        permission="r",
        expiry=MOMENT,
        version_id=version_id or None,
    )
    assert parse_qs(SasSigner("account", "models", SECRET).sign_blob(key, version_id, EXPIRES_AT)) == parse_qs(theirs)


def test_delegated_signature_names_its_key() -> None:
    query = parse_qs(SasSigner("account", "models", SECRET, DELEGATION).sign_blob("a", "", EXPIRES_AT))
    assert {name: query[name][0] for name in DELEGATION} == DELEGATION


def test_nothing_shows_a_secret() -> None:
    for signer in (SasSigner("account", "models", SECRET), SasSigner("account", "models", SECRET, DELEGATION)):
        assert SECRET.decode() not in repr(signer)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2027-01-15T08:00:00Z", 1_800_000_000.0),
        ("2027-01-15T09:00:00+01:00", 1_800_000_000.0),
        ("2027-01-15T08:00Z", 1_800_000_000.0),
        ("2027-01-15", 1_799_971_200.0),
        ("2027-01-15T08:00:00.5000000Z", 1_800_000_000.5),
    ],
)
def test_times(text: str, moment: float) -> None:
    assert timestamp(text) == moment


def test_expiry() -> None:
    assert iso(EXPIRES_AT) == "2027-01-15T08:00:00Z"
    assert expiry_of("sv=x&se=2027-01-15T08%3A00%3A00Z&sig=y") == 1_800_000_000.0
    assert expiry_of("sv=x&si=policy&sig=y") == float("inf")
    with pytest.raises(ValueError, match="isoformat"):
        expiry_of("se=tomorrow&sig=y")
