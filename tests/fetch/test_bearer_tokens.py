"""Bearer tokens, which reach dfdaemon and other hosts only where the user says so."""

from __future__ import annotations

import logging

import pytest

from d7yfs.errors import TokenWithheld
from d7yfs.fetch.bearer_tokens import PAUSE_S, BearerTokens
from d7yfs.origins.origin import ReadRequest

TOKEN = ReadRequest("https://store/b/m", {"authorization": "Bearer 5ecre7"}, 1.0)
SIGNED = ReadRequest("https://store/b/m?X-Goog-Signature=5ecre7", {"If-Match": "1"}, 1.0)


def test_a_token_is_withheld_and_that_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    tokens = BearerTokens("gs://b")
    for now in (0.0, 1.0):
        with pytest.raises(TokenWithheld, match="not for dfdaemon") as caught:
            tokens.judge(TOKEN, "gs://b/m", now)
    assert "--p2p-tokens" in str(caught.value)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "gs://b: " in caplog.text
    assert "5ecre7" not in caplog.text + str(caught.value) + tokens.warning


def test_after_a_pause_a_file_tries_again() -> None:
    tokens = BearerTokens()
    assert not tokens.is_direct(0.0)
    tokens.note(TOKEN, 0.0)
    assert tokens.is_direct(PAUSE_S - 1)
    assert not tokens.is_direct(PAUSE_S)
    tokens.judge(SIGNED, "gs://b/m", PAUSE_S)
    assert not tokens.is_direct(PAUSE_S)
    assert not tokens.warning


def test_where_the_store_may_not_stand_in_reads_fail() -> None:
    tokens = BearerTokens(required=True)
    with pytest.raises(TokenWithheld, match="without fallback"):
        tokens.judge(TOKEN, "gs://b/m", 0.0)
    assert not tokens.is_direct(0.0)


def test_with_the_option_it_goes_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    tokens = BearerTokens("gs://b", allowed=True)
    tokens.judge(TOKEN, "gs://b/m", 0.0)
    tokens.judge(TOKEN, "gs://b/n", 0.0)
    assert not tokens.is_direct(0.0)
    assert len(caplog.records) == 1
    assert "goes to dfdaemon" in tokens.warning
