"""The changes that publishers make to a store: replace, truncate, delete and upload again, about
once a second and in bursts.
"""

from __future__ import annotations

import random
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.fuzz.store import Store

_LARGE_BYTES = 1 << 20
KEPT = "/kept"
"""Keys with this ending are replaced but never deleted, so their directories stay."""


def churn(store: Store, seed: int) -> None:
    """Change objects until the process ends."""
    rng = random.Random(seed ^ 0xC4024)
    large = [key for key in store.settings.keys if ((found := store.get(key)) and found.size_bytes >= _LARGE_BYTES)]
    time.sleep(max(store.settings.phases.start - time.monotonic(), 0))
    while True:
        time.sleep(rng.uniform(0.2, 1.6))
        count = 100 if rng.random() < 0.1 else rng.randint(2, 24)
        for _ in range(count):
            key = rng.choice(large) if large and rng.random() < 0.3 else rng.choice(store.settings.keys)
            change(store, rng, key)
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0, 0.05))


def change(store: Store, rng: random.Random, key: str) -> None:
    """Change one object once."""
    found = store.get(key)
    size = store.settings.sizes[store.index[key]]
    if found is None:
        store.put(key, size)
        return
    what = rng.random()
    if what < 0.5:
        store.put(key, found.size_bytes)
    elif what < 0.62:
        store.put(key, rng.choice([size, max(size - rng.randint(0, 4096), 0), size + rng.randint(0, 4096)]))
    elif what < 0.72:
        store.put(key, rng.choice([0, 1, found.size_bytes // 2, max(found.size_bytes - 1, 0)]))
    elif what < 0.8:
        store.put(key, found.size_bytes, found.serial)  # The same content and the same ETag again.
    elif what < 0.86:
        store.put(key, found.size_bytes)
        _later(rng, lambda: store.put(key, found.size_bytes, found.serial))  # A change and its reversal.
    elif not key.endswith(KEPT):
        store.delete(key)
        again = found.serial if rng.random() < 0.3 else None
        _later(rng, lambda: store.put(key, found.size_bytes if again else size, again))


def _later(rng: random.Random, put: object) -> None:
    assert callable(put)
    timer = threading.Timer(rng.choice([0.0, 0.01, 0.3, 1.0, 3.0]), put)
    timer.daemon = True
    timer.start()
