"""What `msprobe.pytorch` has for scripts: a debugger that dumps steps, and seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.wings.interop.faces.probe_debugger import DEBUGGER
from lockstep.wings.interop.faces.seeds import seed_all

__all__ = ["PrecisionDebugger", "seed_all"]


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
