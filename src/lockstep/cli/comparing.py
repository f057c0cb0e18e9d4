"""The options and the comparison that all comparing verbs share, with a progress bar."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from lockstep.cli import options as shared
from lockstep.cli.progress_bar import progress_bar
from lockstep.cli.sentences import say
from lockstep.comparison import Rule, Wait, compare_recordings, read_indices
from lockstep.core.errors import UsageError
from lockstep.core.finding import Comparison
from lockstep.core.progress import Progress
from lockstep.core.selection import StepSelection
from lockstep.core.text import spans
from lockstep.kernels.jit import load_without_blas
from lockstep.measure.passes import prepare as prepare_pass
from lockstep.store.reader import Recording, open_recording
from lockstep.unify.side_by_side import side_by_side

F = TypeVar("F", bound=Callable[..., Any])

_RULES = {"error-model": Rule.ERROR_MODEL, "fixed": Rule.FIXED}

_OF_TWO = ("metric", "calibration", "noise", "mapping", "dims")
"""Options that say nothing about a single recording."""

_OPTIONS = (
    shared.option("--judge", "rule", old=["--rule"]),
    shared.option("--calibration"),
    shared.option("--noise", multiple=True),
    shared.option("--mapping"),
    shared.option("--dims", multiple=True),
    shared.option(
        "--steps",
        default="",
        words="The ends too, if the last recorded step is among them. [default: all]",
    ),
    shared.memory(
        "Operators and steps that need more are judged without a re-run.",
        default=None,
        default_words="1GiB for an operator, half of what is free for a step",
    ),
    shared.forms,
    shared.option("--no-rerun", words="For recordings from strangers."),
    shared.allow_crash,
)


class Compared(NamedTuple):
    """A comparison, with its two recordings."""

    comparison: Comparison
    reference: Recording
    candidate: Recording


class Using(NamedTuple):
    """The engine that computes ahead, if one is asked for.

    engine: `local` or `ray`; None for none.
    workers: How many processes; None for one a processor.
    cluster: The address of a Ray cluster; "" for one of this machine.
    """

    engine: str | None = None
    workers: int | None = None
    cluster: str = ""


def options(function: F) -> F:
    """Give a verb the options that say how to compare; they go to `compared` as they are."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def check_two(reference: Path, candidate: Path) -> None:
    """Check that two recordings are given, and not one twice.

    Raises
    ------
    UsageError
        If both are the same.
    """
    if reference.exists() and candidate.exists() and reference.samefile(candidate):
        raise UsageError(
            f"{reference}: reference and candidate are the same recording; give two recordings"
        )


def check_one(**chosen: Any) -> None:
    """Check that no option says how to compare, where one recording is given. Raises UsageError if one does."""
    for name in _OF_TWO:
        if chosen.get(name):
            raise UsageError(f"--{name} belongs to a comparison; give a candidate too")


def compared(
    reference: Path,
    candidate: Path,
    *,
    rule: str,
    calibration: Path | None,
    noise: tuple[Path, ...],
    mapping: Path | None,
    dims: tuple[Path, ...] = (),
    steps: str,
    memory_bytes: int | None,
    no_rerun: bool,
    allow_crash: bool = False,
    forms: tuple[str, ...] = (),
    using: Using | None = None,
) -> Compared:
    """Compare two recordings as the options say, with a progress bar where somebody watches.

    Raises
    ------
    RecordingError
        If a recording cannot be read.
    UsageError
        If an option does not fit the recordings.
    """
    one, other = opened_in(forms, reference, candidate)
    recordings = side_by_side(one, other, dims)
    with progress_bar("comparing") as progress:
        chosen = _chosen_steps(recordings, steps, progress) if steps else None
        manner: dict[str, Any] = {
            "rule": rule, "calibration": calibration, "noise": noise, "mapping": mapping,
            "rerun": not no_rerun, "allow_crash": allow_crash, "memory_bytes": memory_bytes,
        }  # fmt: skip
        paths = None if dims else (reference, candidate)
        with _ahead(using or Using(), recordings, paths, forms, manner, chosen) as wait:
            read_indices(recordings, progress)
            prepare(recordings)
            opened: dict[str, Any] = {
                "calibration": _calibration(calibration) if calibration is not None else None,
                "noise": [_noise(path, reference) for path in noise],
                "rule": _RULES[rule],
            }
            given = manner | opened | {"steps": chosen, "progress": progress, "wait": wait}
            comparison = compare_recordings(*recordings, **given)
    return Compared(comparison, *recordings)


def _ahead(
    using: Using,
    recordings: tuple[Recording, Recording],
    given: tuple[Path, Path] | None,
    forms: tuple[str, ...],
    manner: dict[str, Any],
    steps: Collection[int] | None,
) -> AbstractContextManager[Wait | None]:
    """The engine at work, where one is asked for; what it takes is loaded then."""
    if using.engine is None:
        if using.workers or using.cluster:
            raise UsageError(
                "--workers and --cluster belong to an engine; give --engine local or --engine ray"
            )
        return nullcontext()
    from lockstep.engines.chosen import at_work, check_engine, engine_named

    check_engine(using.engine, cluster=using.cluster)
    started = partial(engine_named, using.engine, workers=using.workers, cluster=using.cluster)
    if given is None:
        return nullcontext()
    return at_work(started, recordings, given, forms, manner, told=say, steps=steps)


def opened_in(forms: tuple[str, ...], *paths: Path | None) -> list[Recording]:
    """Open one recording or two, each in the form that `--format` says: given once for both, or twice for each.

    Raises
    ------
    RecordingError
        If one cannot be read.
    UsageError
        If there are more forms than two.
    """
    return [
        open_recording(path, form=form)
        for path, form in zip(paths, form_of_each(forms), strict=False)
        if path is not None
    ]


def form_of_each(forms: tuple[str, ...]) -> tuple[str, str]:
    """Return the forms of reference and candidate.

    Raises
    ------
    UsageError
        If there are more than two.
    """
    if len(forms) > 2:
        raise UsageError(
            "--format is given three times; give it once for both recordings, or twice, once for each"
        )
    return (forms[0], forms[-1]) if forms else ("", "")


def prepare(recordings: Sequence[Recording]) -> None:
    """Load what measures whole tensors, where both sides have some."""
    if all(any(rank.has_tensors for rank in one.ranks.values()) for one in recordings):
        load_without_blas()
        prepare_pass()


def _chosen_steps(
    recordings: tuple[Recording, Recording], text: str, progress: Progress
) -> tuple[int, ...]:
    """The recorded steps among those that `--steps` asks for."""
    read_indices(recordings, progress)
    known = sorted(
        {
            step
            for recording in recordings
            for rank in recording.ranks.values()
            for step in rank.steps
        }
    )
    chosen = StepSelection.parse(text).numbers_in(known)
    if not chosen:
        raise UsageError(f"--steps {text}: not recorded; there are steps {spans(known) or 'none'}")
    return chosen


def _calibration(path: Path) -> Recording:
    recording = open_recording(path)
    if not recording.manifest.options.calibrate:
        raise UsageError(
            f"{path}: is not a calibration; make one with lockstep record --calibrate, or give plain"
            " recordings of the reference with --noise"
        )
    return recording


def _noise(path: Path, reference: Path) -> Recording:
    recording = open_recording(path)
    if reference.exists() and path.samefile(reference):
        raise UsageError(
            f"{path}: --noise is the reference itself, which shows no noise; record the same"
            " training again"
        )
    return recording
