"""The fixture `lockstep_gate` of pytest: a test that holds a training against its golden.

```python
def test_numerics(lockstep_gate):
    lockstep_gate("golden", train)
```

`pytest --lockstep-update "why"` makes goldens that are missing and replaces those that differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lockstep_gate.gating import Gated
    from lockstep_gate.trainings import Training


def pytest_addoption(parser: pytest.Parser) -> None:
    """Two options, by which goldens are replaced."""
    group = parser.getgroup("lockstep")
    group.addoption(
        "--lockstep-update", default="", metavar="REASON",
        help="make goldens that are missing, replace those that differ; the reason is kept with them",
    )  # fmt: skip
    group.addoption(
        "--lockstep-force",
        action="store_true",
        help="replace a golden although the verdict is a fault",
    )


class LockstepGate:
    """Holds trainings against goldens; the fixture `lockstep_gate` gives one.

    Parameters
    ----------
    folder
        What relative goldens are relative to: where the test's file lies.
    aside
        Where recordings of this run go.
    reason
        Why goldens are replaced; "" to leave them.
    force
        Whether also where the verdict is a fault.
    """

    def __init__(self, folder: Path, aside: Path, *, reason: str, force: bool) -> None:
        self._folder, self._aside, self._reason, self._force = folder, aside, reason, force
        self._count = 0

    def __call__(
        self,
        golden: str | Path,
        train: Callable[[], object] | Sequence[str],
        *,
        steps: str = "",
        calibrates: bool = True,
    ) -> Gated:
        """Train once and fail where it leaves the golden.

        Parameters
        ----------
        golden
            Its folder, relative to the test's file.
        train
            A function that trains, seeds included, or a command as a list.
        steps
            Which steps a new golden holds, `"0:2"` by default.
        calibrates
            Whether a new golden is trained twice, for the noise of each site.

        Returns
        -------
        Gated
            What was found, where the training agrees or the golden was replaced.

        Raises
        ------
        pytest.fail.Exception
            If it does not.
        LockstepError
            If the golden is missing or damaged.
        """
        from lockstep.errors import ExitCode
        from lockstep_gate.gating import Update, gate_training
        from lockstep_gate.golden import open_golden
        from lockstep_gate.summary import as_text

        place = self._folder / golden
        self._count += 1
        update = Update(self._reason, self._force, calibrates) if self._reason else None
        gated = gate_training(
            open_golden(place), _training(train), self._aside / f"gated{self._count}",
            steps=steps, ends_early=not callable(train), update=update,
        )  # fmt: skip
        if gated.exit_code != ExitCode.AGREES:
            pytest.fail(as_text(gated), pytrace=False)
        return gated


def _training(train: Callable[[], object] | Sequence[str]) -> Training:
    from lockstep_gate.trainings import CalledTraining, CommandTraining, check_callable

    if callable(train):
        return CalledTraining(train)
    if not isinstance(train, (list, tuple)):
        check_callable(train)
    return CommandTraining(list(train), lambda event: None, {})


@pytest.fixture
def lockstep_gate(request: pytest.FixtureRequest, tmp_path: Path) -> LockstepGate:
    """Hold a training against its golden: `lockstep_gate("golden", train)`."""
    return LockstepGate(
        request.path.parent, tmp_path,
        reason=request.config.getoption("--lockstep-update"),
        force=request.config.getoption("--lockstep-force"),
    )  # fmt: skip
