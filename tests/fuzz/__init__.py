"""A fuzz of real mounts: random operations under faults, judged by the versions that the store had
and when.

The rules come from docs/semantics.md alone. `python -m tests.fuzz --kind network --operations
1000000 --seed 1` runs one kind of fault and prints its counts. `make fuzz` does the same.

The store (`store.py`), its faults (`wire.py`, `lies.py`, `churn.py`) and its record of every
version (`history.py`) are one process. The clients (`clients.py`, `mapping.py`) are several
processes. They judge each answer by the record (`oracle.py`). `campaign.py` runs daemons and kills
them. Only the harness that mounts imports d7yfs.
"""
