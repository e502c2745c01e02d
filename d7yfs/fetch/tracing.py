"""Requests for data in the trace."""

from __future__ import annotations

from collections.abc import Awaitable
from time import perf_counter

from d7yfs.fetch.transfer import Transfer
from d7yfs.logs import TRACE
from d7yfs.origins.headers import request_id


async def traced(attempt: Awaitable[None], name: str, transfer: Transfer) -> None:
    """Await an `attempt` of `transfer`, with a line in the trace. Raises what it raises."""
    if not TRACE.is_on:
        await attempt
        return
    began_at, rest, before, failure = perf_counter(), transfer.rest, transfer.position, ""
    transfer.reply = None
    try:
        await attempt
    except BaseException as error:
        failure = type(error).__name__
        raise
    finally:
        reply, size_bytes = transfer.reply, transfer.position - before
        outcome = ", ".join(filter(None, (str(reply.status) if reply else "", failure, f"{size_bytes} bytes")))
        way = f"to {transfer.proxy.url}" if transfer.proxy is not None else "to the store"
        facts = {"start": rest.start, "stop": rest.stop, "bytes": size_bytes, "status": reply.status if reply else None}
        named = request_id(reply.headers) if reply else ""
        TRACE.tell_request("GET", name, outcome, began_at, way=way, request_id=named, range_said=str(rest), **facts)
