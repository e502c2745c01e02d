"""Numbers of an account in words, for people. Pure."""

from __future__ import annotations


def show_size_roughly(size_bytes: float) -> str:
    """A size for people: three digits and a binary unit."""
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if amount >= 100 else f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.4g} TiB"


def show_count(count: int, one: str, many: str = "") -> str:
    """A number of things: `1 file`, `2 files`; `many` where an s does not make the plural."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
