"""Whoever follows the commands that answers print gets further: none fails, and none denies the answer before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from cases import CASES, Case
from following import followed
from workplace import Workplace

SCRIPTS = Path(__file__).parent / "scripts"
Recorded = Callable[[Case, str], str]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Workplace:
    place = Workplace(tmp_path_factory.mktemp("followed"), programs)
    for script in SCRIPTS.glob("*.py"):
        place.script(script.name, script.read_text())
    return place


@pytest.fixture(scope="module")
def recorded(place: Workplace) -> Recorded:
    """Records a training once for all comparisons that take it."""

    def record(case: Case, mode: str) -> str:
        path = Case(case.script, mode, case.options, case.more).name
        if (place.path / path).exists():
            return path
        script = f"{case.script}.py"
        if case.script == "in_code":
            done = place.run("python", script, mode, path)
        else:
            ranks = ("torchrun", "--standalone", "--nproc-per-node", "2")
            program = ranks if case.script == "ranks" else ("python",)
            command = (*program, script, mode, *case.more)
            done = place.record("-o", path, *case.options, "--", *command)
        assert done.code == 0, done.err
        return path

    return record


@pytest.mark.sampled(60)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_what_is_printed_next_can_be_followed(
    place: Workplace,
    recorded: Recorded,
    case: Case,
    request: pytest.FixtureRequest,
) -> None:
    # Given a training, and one that differs from it in one thing
    both = recorded(case, "sound"), recorded(case, case.mode)

    # When each command that is printed is typed
    found = followed(place, *both, *case.comparing)

    request.node.user_properties.append(("commands", len(found.commands)))

    # Then there is one, none fails, and none contradicts the comparison
    assert found.commands
    assert not found.faults, "\n".join([*found.faults, "", *found.outputs])
