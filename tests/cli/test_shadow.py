"""Where another project brings a package `lockstep`, the command line and the recorded process say so."""

from __future__ import annotations

import pytest
from workplace import Workplace


def test_another_project_is_told_of_once_and_the_verb_does_its_work(workplace: Workplace) -> None:
    # Given what pip leaves of the other project
    folder = workplace.path / "site" / "lockstep_ml-9.1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: lockstep-ml\nVersion: 9.1\n")
    (folder / "RECORD").write_text("lockstep/__init__.py,,\n")
    # When it is there, and when it is not
    beside, alone = (
        workplace.run("lockstep", "--version", environment={"PYTHONPATH": path})
        for path in (
            f"{folder.parent}:{workplace.environment.get('PYTHONPATH', '')}",
            workplace.environment.get("PYTHONPATH", ""),
        )
    )
    # Then one line says so, and the answer is the same
    assert (beside.code, beside.out) == (alone.code, alone.out) == (0, alone.out)
    assert (alone.err, len(beside.ours)) == ("", 1)
    assert "lockstep-ml 9.1, another project, is installed here" in beside.ours[0]


@pytest.mark.cold
def test_a_recorded_python_with_another_package_of_the_name_says_so(workplace: Workplace) -> None:
    # Given a folder on the command's path that holds another package `lockstep`, which it uses
    other = workplace.path / "other" / "lockstep"
    other.mkdir(parents=True)
    (other / "__init__.py").write_text("mine = 'theirs'\n")
    command = 'PYTHONPATH="$1:$PYTHONPATH" exec python -c "$0"'
    code = "import lockstep, tiny; print(lockstep.mine)"
    # When it is recorded
    ended = workplace.record("-o", "ref", "--", "sh", "-c", command, code, other.parent)
    # Then it runs as it is, and it is said why nothing was recorded
    assert (ended.code, ended.theirs) == (2, "")
    assert ended.out.endswith("theirs\n")
    assert f"is another project's ({other / '__init__.py'})" in ended.ours[0]
    assert "nothing was recorded: Lockstep could not be loaded" in ended.ours[1]
