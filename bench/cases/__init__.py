"""The cases by name, in the order in which they run. A new case is an entry in the list of its
kind.
"""

from __future__ import annotations

from collections.abc import Mapping

from bench.cases import daemons, names, scattered, streams
from bench.cases.case import Case

CASES: Mapping[str, Case] = {
    case.name: case for case in (*streams.CASES, *scattered.CASES, *names.CASES, *daemons.CASES)
}
