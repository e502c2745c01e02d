"""A seed that a real scheduler believes in: it announces itself, is healthy, and records what it is told to bring.

It brings nothing. `refused` names objects (by a part of their URL) whose download fails, as when the
store refuses them. The messages are dfdaemon's own (`dragonfly_api`).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager

import grpc
from dragonfly_api import common_pb2, dfdaemon_pb2, scheduler_pb2

NAME = "seed-double"
_ID = f"127.0.0.1-{NAME}-seed"
_SUPER_SEED = 1
_SERVING = b"\x08\x01"  # grpc.health.v1.HealthCheckResponse
_SERVICES = ("dfdaemon.v2.DfdaemonUpload", "dfdaemon.v2.DfdaemonDownload")


class FakeSeed:
    """A seed that records its orders."""

    def __init__(self) -> None:
        self.orders: list[common_pb2.Download] = []
        self.refused: tuple[str, ...] = ()
        self.port = 0

    def download(
        self, request: dfdaemon_pb2.DownloadTaskRequest, context: grpc.ServicerContext
    ) -> Iterator[dfdaemon_pb2.DownloadTaskResponse]:
        self.orders.append(request.download)
        if any(part in request.download.url for part in self.refused):
            context.abort(grpc.StatusCode.INTERNAL, f"GET {request.download.url} answered 403")
        started = dfdaemon_pb2.DownloadTaskStartedResponse(content_length=1)
        yield dfdaemon_pb2.DownloadTaskResponse(host_id=_ID, peer_id="p", download_task_started_response=started)

    def announce(self, scheduler: str) -> None:
        """Tell the scheduler; it uses seeds that it has found healthy, and looks every 30 s."""
        host = common_pb2.Host(
            id=_ID,
            type=_SUPER_SEED,
            hostname=NAME,
            ip="127.0.0.1",
            port=self.port,
            download_port=self.port,
            os="linux",
            cpu=common_pb2.CPU(times=common_pb2.CPUTimes()),
            memory=common_pb2.Memory(),
            network=common_pb2.Network(),
            disk=common_pb2.Disk(),
            build=common_pb2.Build(),
        )
        with grpc.insecure_channel(scheduler) as channel:
            announce = channel.unary_unary(
                "/scheduler.v2.Scheduler/AnnounceHost",
                request_serializer=scheduler_pb2.AnnounceHostRequest.SerializeToString,
                response_deserializer=lambda empty: empty,
            )
            announce(scheduler_pb2.AnnounceHostRequest(host=host), timeout=10)


@contextmanager
def running() -> Iterator[FakeSeed]:
    """A seed that serves on loopback."""
    seed = FakeSeed()
    server = grpc.server(futures.ThreadPoolExecutor(8))
    download = grpc.unary_stream_rpc_method_handler(
        seed.download,
        request_deserializer=dfdaemon_pb2.DownloadTaskRequest.FromString,
        response_serializer=dfdaemon_pb2.DownloadTaskResponse.SerializeToString,
    )
    check = grpc.unary_unary_rpc_method_handler(lambda _request, _context: _SERVING)
    server.add_generic_rpc_handlers(
        (
            *(grpc.method_handlers_generic_handler(each, {"DownloadTask": download}) for each in _SERVICES),
            grpc.method_handlers_generic_handler("grpc.health.v1.Health", {"Check": check}),
        )
    )
    seed.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield seed
    finally:
        server.stop(0).wait()
