"""Requests of the control plane in the trace."""

from __future__ import annotations

from collections.abc import Awaitable
from time import perf_counter
from typing import TYPE_CHECKING

from d7yfs.logs import TRACE
from d7yfs.origins.headers import request_id

if TYPE_CHECKING:
    from d7yfs.origins.rest import ControlReply

_WAY = "to the store, for names and versions"


async def traced(asked: Awaitable[ControlReply], method: str, subject: str) -> ControlReply:
    """The reply of `asked`, with a line in the trace. Raises what it raises."""
    if not TRACE.is_on:
        return await asked
    began_at, reply, outcome = perf_counter(), None, "given up"
    try:
        reply = await asked
    except Exception as error:
        outcome = type(error).__name__
        reply = getattr(error, "reply", None)  # of a store that is busy
        raise
    finally:
        said = outcome if reply is None else f"{reply.status}, {len(reply.body)} bytes"
        named = request_id(reply.headers) if reply is not None else ""
        TRACE.tell_request(method, subject, said, began_at, way=_WAY, request_id=named)
    return reply
