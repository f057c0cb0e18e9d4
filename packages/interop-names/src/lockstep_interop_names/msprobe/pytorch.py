"""The names of `msprobe.pytorch`: a debugger that dumps steps, comparing, and seeds."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from lockstep.options import path_of
from lockstep_interop_names.faces.probe_compare import compare_probes
from lockstep_interop_names.faces.probe_debugger import DEBUGGER
from lockstep_interop_names.faces.seeds import seed_all

__all__ = ["PrecisionDebugger", "compare", "seed_all"]


def compare(
    input_param: Mapping[str, Any], output_path: str | os.PathLike[str], **kwargs: Any
) -> None:
    """Compare two dumps: `compare_result_TIME.csv`, and the verdict on the screen.

    Parameters
    ----------
    input_param
        `npu_path` and `bench_path`, each a dump.json or the folder of a dump.
    output_path
        The folder for the table, which is made where it is not there.
    kwargs
        What else the tool takes; the table is the same with it.

    Raises
    ------
    UsageError
        If a path is none, or nothing of the two can be paired.
    RecordingError
        If a dump is not there or cannot be read.
    """
    paths = [path_of(name, input_param.get(name)) for name in ("npu_path", "bench_path")]
    compare_probes(paths[0], paths[1], path_of("output_path", output_path))


class PrecisionDebugger:
    """Dumps what lies between `start` and `stop`; what cannot be done is said, and the training goes on.

    Parameters
    ----------
    config_path
        A config.json; what is given beside it stands in place of what it says.
    task
        "statistics", "tensor" or "overflow_check".
    dump_path
        Where to: into `DUMP_PATH/stepN/rankN`.
    level
        "L0" for modules, "L1" for operators, "mix" for both.
    step
        Numbers of the steps to dump; all where left out.
    model
        The model that is trained; `start` may have it too.
    """

    def __init__(
        self,
        config_path: str | None = None,
        task: str | None = None,
        dump_path: str | None = None,
        level: str | None = None,
        step: Sequence[int | str] | None = None,
        model: Any = None,
    ) -> None:
        DEBUGGER.configure(
            config_path, model, task=task, dump_path=dump_path, level=level, step=step
        )

    @classmethod
    def start(cls, model: Any = None) -> None:
        """Begin to dump."""
        DEBUGGER.start(model)

    @classmethod
    def stop(cls) -> None:
        """End the dump, and write its files."""
        DEBUGGER.stop()

    @classmethod
    def step(cls) -> None:
        """Tell that the next step begins."""
        DEBUGGER.step()
