"""Files of settings that tests write are their user's alone, as d7yfs asks for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _private_files() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)
