"""`lockstep serve`: a trained model, answering over HTTP and gRPC."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from lockstep.cli.notices import say
from lockstep.core.errors import UsageError
from lockstep.core.exit_codes import ExitCode


def _port(context: click.Context, parameter: click.Parameter, value: str) -> int | None:
    if value == "off":
        return None
    if not value.isdecimal() or int(value) > 65535:
        raise click.BadParameter("is a port, 0 for a free one, or off")
    return int(value)


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--http",
    "http_port",
    default="8000",
    callback=_port,
    metavar="PORT",
    show_default=True,
    help="Port of HTTP; 0 takes a free one, off none.",
)
@click.option(
    "--grpc",
    "grpc_port",
    default="8001",
    callback=_port,
    metavar="PORT",
    show_default=True,
    help="Port of gRPC; 0 takes a free one, off none.",
)
@click.option("--device", default="cpu", show_default=True, help="Where models run.")
@click.option(
    "--most",
    type=click.IntRange(1),
    default=32,
    show_default=True,
    help="Instances of one run, where the model does not fix them.",
)
@click.option(
    "--waiting",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Instances that may wait; beyond them a request is refused.",
)
@click.option(
    "--timeout",
    type=click.FloatRange(0.001),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long a run of a model may take.",
)
@click.option(
    "--most-bytes",
    type=click.IntRange(1024),
    default=256 << 20,
    show_default=True,
    help="How long a request may be.",
)
def serve(
    models: tuple[Path, ...], http_port: int | None, grpc_port: int | None, device: str, most: int,
    waiting: int, timeout: float, most_bytes: int,
) -> int:  # fmt: skip
    """Serve MODELS by the Open Inference Protocol until Ctrl-C: clients of Triton and KServe work unchanged.

    A model is a file (.onnx, .pt2 of torch.export, .pt of TorchScript, a servable.py of your own), a folder with a
    folder for each version (1, 2, ...), or a folder of such folders. Requests that wait are run together where the
    model was seen to keep the instances of a batch apart. Only this machine is answered.

    \b
    lockstep serve model.onnx
    lockstep serve models --http 9000 --grpc off
    """
    if http_port is None and grpc_port is None:
        raise UsageError(
            "--http off --grpc off: nothing would be listened at; leave one of them out"
        )
    try:
        from lockstep.wings.serve.repository import Limits, Repository
        from lockstep.wings.serve.server import Addresses, Bounds, serve_models
    except ImportError as error:
        raise UsageError(
            f"{error.name} is not installed here: pip install 'lockstep-numerics[serve]'"
        ) from error

    def listening(repository: Repository, addresses: dict[str, str]) -> None:
        for entry in repository.index():
            version = f" version {entry.version}" if entry.version else ""
            state = "is served" if entry.state == "READY" else f"is not served: {entry.reason}"
            say(f"{entry.name}{version} {state}")
        for transport, address in addresses.items():
            click.echo(f"{transport} {address}")

    limits = Limits(device, most, waiting, timeout)
    addresses = Addresses(http=http_port, grpc=grpc_port)
    asyncio.run(serve_models(models, limits, addresses, Bounds(most_bytes=most_bytes), listening))
    return ExitCode.AGREES
