"""A fuzz of real mounts, written from docs/semantics.md alone: random operations under faults, judged by what the store held and when.

`python -m tests.fuzz --kind network --operations 1000000 --seed 1` runs one kind of fault and prints what it counted; `make fuzz` is the
same. The store (`store.py`), its faults (`wire.py`, `lies.py`, `churn.py`) and its record of every version (`history.py`) are one process;
the clients (`clients.py`, `mapping.py`) are several, which judge each answer by the record (`oracle.py`); `campaign.py` runs daemons and
kills them. None of it imports d7yfs, but for the harness that mounts.
"""
