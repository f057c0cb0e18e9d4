"""`lockstep serve`: a trained model, answering over HTTP and gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from fractions import Fraction
from pathlib import Path
from typing import Any

import click

from lockstep import options
from lockstep.errors import ExitCode, UsageError
from lockstep.terminal import say


def _port(context: click.Context, parameter: click.Parameter, value: str) -> int | None:
    if value == "off":
        return None
    if not value.isdecimal() or int(value) > 65535:
        raise click.BadParameter("is a port, 0 for a free one, or off")
    return int(value)


def _event_loop_run() -> Callable[[Coroutine[Any, Any, None]], None]:
    """What runs the server: uvloop, where there is one for this system."""
    try:
        from uvloop import run
    except ImportError:
        return asyncio.run
    return run


def _share(context: click.Context, parameter: click.Parameter, value: str) -> Fraction:
    try:
        share = Fraction(value.removesuffix("%")) / (100 if value.endswith("%") else 1)
    except (ValueError, ZeroDivisionError) as error:
        raise click.BadParameter("is a share, such as 5% or 0.05") from error
    if not 0 < share <= 1:
        raise click.BadParameter("is above 0 and at most 100%")
    return share


def _replicas(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, int]:
    least, between, most = value.partition("..")
    if not least.isdecimal() or (between and not most.isdecimal()):
        raise click.BadParameter("is a number, or two such as 1..4")
    found = int(least), int(most or least)
    if not 1 <= found[0] <= found[1]:
        raise click.BadParameter("is 1 or more, the smaller of two first")
    return found


@click.command()
@click.argument("models", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--http",
    "http_port",
    default="8000",
    callback=_port,
    metavar="PORT",
    show_default=True,
    help="Serve HTTP on this port; 0 takes a free one, off none.",
)
@click.option(
    "--grpc",
    "grpc_port",
    default="8001",
    callback=_port,
    metavar="PORT",
    show_default=True,
    help="Serve gRPC on this port; 0 takes a free one, off none.",
)
@click.option(
    "--host",
    default="127.0.0.1",
    show_default=True,
    help="Listen on this address; other machines need a token.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Answer only clients that send this file's content as `Authorization: Bearer ...`.",
)
@options.option(
    "--device", default="cpu", words="Several, as in cuda:0,cuda:1, get runners in turn."
)
@click.option(
    "--runners",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Run each version in this many processes, restarted when they die; 0 runs it in the server.",
)
@options.option("--engine", "engine_name", choices=["embedded", "ray"], default="embedded")
@options.option("--cluster", "address", old=["--address"])
@click.option(
    "--replicas",
    default="1",
    show_default=True,
    callback=_replicas,
    metavar="N|MIN..MAX",
    help="Run this many replicas of each version on Ray; of a range, as many as requests need.",
)
@options.option("--threads", default=0)
@click.option(
    "--most",
    type=click.IntRange(1),
    help="Put at most this many instances into one run.  [default: as many as take 10 ms, and at least 32]",
)
@click.option(
    "--batch",
    "--batch-always",
    "batch",
    is_flag=True,
    help="Run requests together even if the graph does not prove that they are independent.",
)
@click.option(
    "--shadow",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="REF",
    help="Compare the model with this one after the response has been sent. Repeatable, by names.",
)
@click.option(
    "--share",
    default="1%",
    callback=_share,
    show_default=True,
    help="Compare this share of requests with --shadow: 5% or 0.05.",
)
@click.option(
    "--tolerance",
    metavar="VALUE",
    help="Allow outputs to differ from --shadow by this relative distance: 0.02, 30dB, or a report of `quantize --json`"
    ".  [default: the value that `quantize` wrote into the model, else rounding]",
)
@click.option(
    "--record",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Keep the first request that differs from --shadow in this folder.",
)
@click.option(
    "--waiting",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="Refuse requests if more than this many instances wait.",
)
@options.option(
    "--timeout",
    default=60.0,
    words="For a request the time counts from its arrival.",
)
@click.option(
    "--most-bytes",
    type=options.Size(1024),
    default=256 << 20,
    help="Refuse larger requests, as in 64MB.  [default: 256MiB]",
)
def serve(
    models: tuple[Path, ...], http_port: int | None, grpc_port: int | None, host: str,
    token_file: Path | None, device: str, runners: int, engine_name: str,
    address: str | None, replicas: tuple[int, int], threads: int,
    most: int | None, batch: bool, shadow: tuple[Path, ...], share: Fraction, tolerance: str | None,
    record: Path | None, waiting: int, timeout: float, most_bytes: int,
) -> int:  # fmt: skip
    """Serve MODELS by the Open Inference Protocol until Ctrl-C: clients of Triton and KServe work unchanged.

    A model is a file (.onnx, .pt2 of torch.export, .pt of TorchScript, a servable.py of your own),
    a folder with a folder for each version (1, 2, ...), or a folder of such folders. Lockstep runs
    waiting requests together if the graph proves that no row reaches another request, or if you
    pass --batch. It answers this machine only, unless you pass --host.

    \b
    lockstep serve model.onnx
    lockstep serve models --http 9000 --grpc off
    lockstep serve models --engine ray --cluster 10.0.0.1:6379 --replicas 1..8
    lockstep serve quantised.onnx --shadow model.onnx --share 5% --record left
    """
    if http_port is None and grpc_port is None:
        raise UsageError(
            "--http off --grpc off: nothing would be listened at; leave one of them out"
        )
    try:
        from lockstep_serve.access import gate_for
        from lockstep_serve.cluster.engine import ClusterEngine
        from lockstep_serve.cluster.scale import Scale
        from lockstep_serve.engine import Engine
        from lockstep_serve.parity.shadow import Shadow
        from lockstep_serve.parity.shadowing import Shadowing
        from lockstep_serve.parity.tolerance import tolerance_from
        from lockstep_serve.repository import Limits, Repository
        from lockstep_serve.server import Addresses, Bounds, serve_models
    except ImportError as error:
        raise UsageError(
            f"{error.name} is not installed here: pip install 'lockstep-numerics[serve]'"
        ) from error

    shadows: dict[str, Shadow] = {}

    def listening(repository: Repository, addresses: dict[str, str]) -> None:
        shadows.update(repository.shadows)
        for entry in repository.index():
            version = f" version {entry.version}" if entry.version else ""
            served = f"is served, {entry.batching}"
            state = served if entry.state == "READY" else f"is not served: {entry.reason}"
            say(f"{entry.name}{version} {state}")
        for transport, address in addresses.items():
            click.echo(f"{transport} {address}")

    limits = Limits(device, most, waiting, timeout, runners, threads, batch)
    addresses, gate = Addresses(host, http_port, grpc_port), gate_for(host, token_file)
    bounds = Bounds(most_bytes=most_bytes)
    if (record is not None or tolerance is not None) and not shadow:
        name = "--tolerance" if record is None else "--record"
        raise UsageError(f"{name}: is of what leaves a reference; give one by --shadow")
    allowed = None if tolerance is None else tolerance_from(tolerance)
    shadowing = None
    if shadow:
        shadowing = Shadowing(shadow, share, record, device.split(",")[0], timeout, allowed)
    engine: Engine | None = None
    if engine_name == "ray":
        if runners or "," in device:
            raise UsageError(
                "--engine ray: Ray places replicas; give --replicas, and one --device for all of them"
            )
        engine = ClusterEngine(address, Scale(*replicas, timeout_s=timeout))
    elif address is not None or replicas != (1, 1):
        raise UsageError("--cluster, --replicas: are of a Ray cluster; give --engine ray too")
    try:
        _event_loop_run()(
            serve_models(models, limits, addresses, bounds, gate, shadowing, engine, listening)
        )
    finally:
        for name, one in shadows.items():
            say(f"{name} beside its reference: {one.parity.sentence()}")
    return ExitCode.AGREES
