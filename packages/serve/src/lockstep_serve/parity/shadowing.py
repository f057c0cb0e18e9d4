"""Pair served models with their references, and report on both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily

from lockstep.errors import UsageError
from lockstep_serve.failures import RequestError
from lockstep_serve.parity.reference import ReferenceSource
from lockstep_serve.parity.shadow import Shadow
from lockstep_serve.parity.tolerance import Tolerance
from lockstep_serve.process_runner import ProcessRunner
from lockstep_serve.protocol.tensors import datatype_of
from lockstep_serve.repository import Repository, models_at, versions_of


@dataclass(frozen=True, slots=True)
class Shadowing:
    """References by `paths`, the `share` of requests that they are asked, where one that differs is `kept`, and what
    `tolerance` the user gives; None for what `quantize` has measured, or what rounding makes."""

    paths: Sequence[Path]
    share: Fraction
    kept: Path | None = None
    device: str = "cpu"
    timeout_s: float = 60.0
    tolerance: Tolerance | None = None


async def begin_shadows(repository: Repository, shadowing: Shadowing) -> None:
    """Open the references and give each its model.

    Raises UsageError if one cannot be opened, has no model of its name, or takes or gives something else.
    """
    references = {name: path for one in shadowing.paths for name, path in models_at(one)}
    models = {one.name for one in repository.index()}
    if len(references) == len(models) == 1:  # a file against a file: whatever they are called
        references = {next(iter(models)): next(iter(references.values()))}
    for model, path in references.items():
        if model not in models:
            raise UsageError(
                f"--shadow: no model is called {model}, as this reference is; there are {', '.join(sorted(models))}"
            )
        repository.shadows[model] = await _shadow(repository, model, path, shadowing)


async def _shadow(repository: Repository, model: str, path: Path, how: Shadowing) -> Shadow:
    try:
        served = repository.get(model)
    except RequestError as error:
        raise UsageError(f"--shadow: {error}") from error
    found = versions_of(path)
    if not found:
        raise UsageError(f"--shadow {path}: has no folder of a version in it, such as 1")
    signature = served.signature
    settings: dict[str, Any] = {
        "served": str(served.path.absolute()),
        "inputs": [[one.name, datatype_of(one.dtype), one.shape] for one in signature.inputs],
        "outputs": [[one.name, datatype_of(one.dtype), one.shape] for one in signature.outputs],
        "tolerance": None if how.tolerance is None else asdict(how.tolerance),
    }
    if how.kept is not None:
        settings["kept"] = str((how.kept / model).absolute())
    source = ReferenceSource(found[-1][1].absolute(), how.device, settings)
    runner = await ProcessRunner.started(source, timeout_s=how.timeout_s)
    return Shadow(model, runner, how.share, served.number)


class ParityMetrics:
    """The findings of shadows, for Prometheus; a collector of its client."""

    def __init__(self, shadows: Mapping[str, Shadow]) -> None:
        self._shadows = shadows

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The state of every model with a reference."""
        requests = GaugeMetricFamily(
            "lockstep_serve_shadowed_requests",
            "Requests of a model with a reference, by what became of them there.",
            labels=["model", "became"],
        )
        diverged = GaugeMetricFamily(
            "lockstep_serve_diverged",
            "Whether a request was found that left the reference.",
            labels=["model"],
        )
        for model, shadow in self._shadows.items():
            for became, count in shadow.parity.counts.items():
                requests.add_metric([model, became.replace(" ", "_")], count)
            diverged.add_metric([model], float(shadow.parity.first is not None))
        yield from (requests, diverged)
