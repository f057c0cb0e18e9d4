"""A script cannot lose the recorder by setting PYTHONPATH anew; where it is lost all the same, that is said at once."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from workplace import Workplace

import lockstep

SOURCE = Path(lockstep.__file__).parents[1]
TRAINS_UNTIL_TOLD = """
    import sys
    from tiny import train
    train(steps=1)
    sys.stdin.readline()
    print("trained", flush=True)
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The programs of an environment in which Lockstep is installed as `pip install -e` does it."""
    environment = tmp_path / "environment"
    major, minor = sys.version_info[:2]
    packages = environment / "lib" / f"python{major}.{minor}" / "site-packages"
    packages.mkdir(parents=True)
    (environment / "bin").mkdir()
    (environment / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    home = Path(sys.base_prefix) / "bin"
    (environment / "pyvenv.cfg").write_text(f"home = {home}\n")
    places = [place for place in sys.path if "site-packages" in place]
    (packages / "_editable.pth").write_text("\n".join([str(SOURCE), *places]) + "\n")
    (packages / "lockstep_startup.pth").write_bytes((SOURCE / "lockstep_startup.pth").read_bytes())
    return environment / "bin"


@pytest.mark.cold
@pytest.mark.parametrize(
    "ways", [("",), pytest.param(("", "-I"), marks=pytest.mark.exhaustive)], ids=" ".join
)
def test_a_python_with_a_pythonpath_of_its_own_is_recorded(
    workplace: Workplace, installed: Path, ways: tuple[str, ...]
) -> None:
    # Given a script that sets PYTHONPATH anew, and has it ignored, in an environment with Lockstep
    workplace.script(
        "train.py",
        """
        import sys
        before = [sys.executable, sys.argv, sys.path, sys.flags.isolated, sorted(sys.modules)]
        sys.path.insert(0, "own")
        import helper, torch
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.ones(1, 3)).sum().backward()
            optimizer.step()
        before[-1] = [name for name in before[-1] if name in ("torch", "lockstep", "sitecustomize")]
        print(*before, helper.name, flush=True)
        """,
    )
    workplace.script("own/helper.py", "name = 'own'\n")
    workplace.script("own/sitecustomize.py", "print('own sitecustomize')\n")
    script = workplace.path / "train.sh"
    trainings = " && ".join(f"python {way} train.py" for way in ways)
    script.write_text(f"export PYTHONPATH=own\n{trainings}\n")
    path = os.pathsep.join([str(installed), workplace.environment["PATH"]])
    # When it runs bare, and recorded
    bare, recorded = (
        workplace.run(*command, "bash", script, environment={"PATH": path})
        for command in ((), ("lockstep", "record", "-o", "ref", "--"))
    )
    # Then both trainings are recorded, and what they see and print is that of the bare run
    assert (recorded.code, recorded.out, recorded.theirs) == (0, bare.out, bare.err)
    assert bare.out.count("own sitecustomize") == 1
    assert len(recorded.ours) == 1
    ranks = lockstep.open(workplace.path / "ref").ranks
    assert [rank.complete_steps for rank in ranks.values()] == [(0, 1)] * len(ways)


@pytest.mark.cold
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="processes are seen by /proc")
def test_a_python_that_cannot_be_armed_is_told_of_while_it_runs(workplace: Workplace) -> None:
    # Given a training that goes on until somebody has been told, in an environment that was cleared
    workplace.script("train.py", TRAINS_UNTIL_TOLD)
    cleared = ("env", "-i", f"PATH={workplace.environment['PATH']}", "OMP_NUM_THREADS=1")
    # When it is recorded
    process = workplace.start(
        "lockstep", "record", "-o", "ref", "--", *cleared, "python", "train.py"
    )
    with process:
        assert process.stderr is not None
        told = process.stderr.readline()
        while told and not told.startswith("lockstep: "):
            told = process.stderr.readline()
        _, rest = process.communicate("\n", timeout=300)
    # Then that it is not armed is said before it has ended, and at the end that nothing was recorded
    assert process.returncode == 2
    assert told.startswith("lockstep: not armed: python (pid ")
    assert "was started with an environment that was cleared; nothing of it is recorded" in told
    assert rest.count("lockstep: ") == 1
    assert "nothing was recorded: the command started no Python that loads" in rest


@pytest.mark.cold
def test_of_an_armed_training_nothing_is_told_while_it_runs(workplace: Workplace) -> None:
    # Given a training that looks on while others could be told of it, and forks a child that has torch too
    workplace.script(
        "train.py",
        """
        import os, time
        from tiny import train
        train(steps=2)
        if not (child := os.fork()):
            os.execv("/bin/sh", ["sh", "-c", "read line < /proc/self/stat; exit 0"])
        os.waitpid(child, 0)
        time.sleep(2.0)  # the looks are half a second apart
        """,
    )
    ended = workplace.record("-o", "ref", "--", "python", "train.py")
    assert ended.code == 0
    assert len(ended.ours) == 1
    assert "recorded rank0 steps 0-1 (" in ended.ours[0]
