"""One process that answers over HTTP and gRPC."""

from __future__ import annotations

import contextlib
import gc
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc
import uvicorn

from lockstep.errors import UsageError
from lockstep_serve.access import Gate, guarded
from lockstep_serve.engine import Engine
from lockstep_serve.metrics import Metrics
from lockstep_serve.parity.shadowing import ParityMetrics, Shadowing, begin_shadows
from lockstep_serve.protocol.bounded_http import bounded_http
from lockstep_serve.protocol.grpc_service import InferenceService, add_inference_service
from lockstep_serve.protocol.rest import RestService
from lockstep_serve.repository import GRACE_S, Limits, Repository


@dataclass(frozen=True, slots=True)
class Addresses:
    """Where to listen: a host, and a port for each transport; 0 for a free one, None for none."""

    host: str = "127.0.0.1"
    http: int | None = 8000
    grpc: int | None = 8001

    @property
    def written(self) -> str:
        """The host as it stands before a port."""
        return f"[{self.host}]" if ":" in self.host else self.host


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits for clients: `most_bytes` a request, sent within `patience_s`."""

    most_bytes: int = 256 << 20
    patience_s: float = 60.0


async def serve_models(
    paths: Sequence[Path],
    limits: Limits,
    addresses: Addresses,
    bounds: Bounds,
    gate: Gate,
    shadowing: Shadowing | None,
    engine: Engine | None,
    listening: Callable[[Repository, dict[str, str]], None],
) -> None:
    """Serve models until the process is interrupted.

    paths: Where the models are.
    limits: How they are run.
    addresses: Where to listen.
    bounds: What clients may ask.
    gate: Which clients may.
    shadowing: What models are held against, if anything.
    engine: What runs models, which is begun and closed here; without, this machine does as the limits say.
    listening: Is called once requests are answered, with the address by transport.

    Raises UsageError if a path is no model, a port is taken, or the engine cannot begin.
    """
    repository, metrics = Repository(paths, limits, engine), Metrics()
    told: dict[str, str] = {}
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(repository.engine.close)
        await repository.engine.begin()
        stack.push_async_callback(repository.close)
        await repository.load_all()
        if shadowing is not None:
            await begin_shadows(repository, shadowing)
            metrics.registry.register(ParityMetrics(repository.shadows))
        if addresses.grpc is not None:
            server = grpc.aio.server(
                options=[
                    ("grpc.max_receive_message_length", bounds.most_bytes),
                    ("grpc.max_send_message_length", -1),
                    ("grpc.so_reuseport", 0),
                ]
            )
            add_inference_service(InferenceService(repository, metrics), server, gate)
            try:
                port = server.add_insecure_port(f"{addresses.written}:{addresses.grpc}")
            except RuntimeError as error:
                raise UsageError(
                    f"--grpc {addresses.grpc}: cannot be listened at; 0 takes a free port"
                ) from error
            await server.start()
            stack.push_async_callback(server.stop, GRACE_S)
            told["grpc"] = f"{addresses.written}:{port}"
        gc.collect()
        gc.freeze()  # what was loaded stays; to look through it takes a third of a second, again and again
        if addresses.http is None:
            listening(repository, told)
            await server.wait_for_termination()
            return
        listener = _listener(addresses.host, addresses.http)
        service = RestService(
            repository, metrics, most_bytes=bounds.most_bytes, patience_s=bounds.patience_s
        )
        stack.push_async_callback(service.close)
        told = {"http": f"http://{addresses.written}:{listener.getsockname()[1]}", **told}
        config = uvicorn.Config(
            guarded(service.application(), gate), log_level="warning", access_log=False, server_header=False,
            lifespan="off", proxy_headers=False, timeout_graceful_shutdown=int(GRACE_S),
            http=bounded_http(bounds.patience_s),
        )  # fmt: skip
        listening(repository, told)
        await uvicorn.Server(config).serve(sockets=[listener])


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # What is accepted inherits it: else the body of a response waits 40 ms for the receipt of its header.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(1024)
    except OSError as error:
        listener.close()
        raise UsageError(
            f"--http {port}: cannot be listened at ({error.strerror or error}); 0 takes a free port"
        ) from error
    return listener
