"""A store with a directory of any size and one small file, and mounts of it."""

from __future__ import annotations

from tests.mount.mounted import Mounted, Mounter
from tests.servers.in_thread import InThread
from tests.servers.vast import BUCKET, Keys, VastStore

Running = InThread[VastStore]


def name_of(number: int) -> str:
    return f"photo-{number:07}.jpg"


def huge_store(count: int) -> Running:
    return InThread(VastStore(Keys((count, lambda number: f"huge/{name_of(number)}"), (1, lambda _: "small.txt"))))


def mount(mounter: Mounter, running: Running, *options: str) -> Mounted:
    url = f"s3://127.0.0.1:{running.server.port}/{BUCKET}"
    # The log of each request is off, because it would distort the measurement.
    return mounter.mount(url, "--anonymous", *options, log_level="info")
