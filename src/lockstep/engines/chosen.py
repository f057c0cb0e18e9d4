"""The engine that a command asks for, at work ahead of its comparison."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from pathlib import Path
from typing import Any

from lockstep.align.ranks import pair_ranks
from lockstep.comparison import Wait, equal_by_files, runs_whole_steps
from lockstep.core.errors import UsageError
from lockstep.engines.computed_ahead import computed_ahead
from lockstep.engines.engine_pieces import Engine, Job, Pieces, state_of
from lockstep.engines.local_pool import LocalPool
from lockstep.engines.ray_tasks import RayTasks, check_ray
from lockstep.store.reader import Recording

NAMES = ("local", "ray")


def engine_named(name: str, *, workers: int | None, cluster: str) -> Engine:
    """Start an engine. Raises UsageError if there is no such cluster, or an address is given that no engine uses."""
    check_engine(name, cluster=cluster)
    many = workers or _processors()
    return RayTasks(cluster, many) if name == "ray" else LocalPool(many)


def check_engine(name: str, *, cluster: str) -> None:
    """Check what can be told of an engine before it is started, as that may come late or never.

    Raises UsageError if an address is given that no engine uses, Ray is not installed, or nothing answers at the
    address.
    """
    if cluster and name != "ray":
        raise UsageError("--cluster names a Ray cluster; give --engine ray too")
    if name == "ray":
        check_ray(cluster)


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def at_work(
    engine: Callable[[], Engine],
    recordings: tuple[Recording, Recording],
    paths: tuple[Path, Path],
    forms: Sequence[str],
    options: Mapping[str, Any],
    *,
    told: Callable[[str], None],
    steps: Collection[int] | None = None,
) -> AbstractContextManager[Wait | None]:
    """Have an engine compute parts of a comparison for as long as the block lasts.

    Where the laws can be applied to whole steps, these are the questions that they ask, a step each: they take most of
    the time, and judge what else would be run again call by call. Else the comparison is cut into pieces. Ranks that
    are put together to one are not cut: the comparison computes all. Ranks that are equal by their files are in no
    piece.

    engine: Starts it, once what is left of the comparison is worth it.
    recordings, paths, forms: The two, as they are compared, by the paths and forms by which workers open them.
    options: Arguments of `compare_recordings` that can be sent: paths and plain values.
    told: Called with a sentence if workers are lost.
    """
    ranks = pair_ranks(*recordings)
    if any(one.put_together_of is not None for one in recordings):
        return nullcontext()
    by_laws = (
        options["rerun"] and options["rule"] == "error-model" and runs_whole_steps(*recordings)
    )
    by_default = (
        options["rule"] == "error-model"
        and steps is None
        and not any(map(options.get, ("mapping", "calibration", "noise")))
    )
    equal = equal_by_files(*recordings, ranks) if by_default else {}
    opened = {name: both for name, both in ranks.both.items() if name not in equal}
    if not (opened or by_laws):
        return nullcontext()
    both_forms = (forms[0], forms[-1]) if forms else ("", "")
    sent = {**options, "steps": None if steps is None else tuple(sorted(steps))}

    @cache
    def job() -> Job:
        states = {
            f"{path}/{both[side].path.name}": state_of(both[side])
            for side, path in enumerate(paths)
            for both in ranks.both.values()
        }
        return Job(str(Path.cwd()), str(paths[0]), str(paths[1]), sent, both_forms, states)

    return computed_ahead(engine, job, Pieces({} if by_laws else opened, steps), told)
