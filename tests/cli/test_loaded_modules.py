"""What `lockstep compare` loads: the rooms that every comparison needs, and the plug-in of its own verb alone."""

from __future__ import annotations

import subprocess
import sys

import pytest

from lockstep.testing.fixtures import FaultyPair

MOST_MODULES = 200
"""With those of packages, which hold a docstring and a list of names."""

PROGRAM = """
import sys
from lockstep.cli.main import main
code = main(sys.argv[1:])
loaded = [name for name in sys.modules if name.partition(".")[0].startswith("lockstep")]
print(*loaded, sep="\\n", file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def loaded(lockstep_faulty_pair: FaultyPair) -> set[str]:
    """The modules of Lockstep that a comparison loads in a new process."""
    pair = lockstep_faulty_pair
    command = [sys.executable, "-c", PROGRAM, "compare", str(pair.reference), str(pair.candidate)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return set(done.stderr.split())


def test_a_comparison_loads_few_modules(loaded: set[str]) -> None:
    assert "lockstep.comparison" in loaded
    assert len(loaded) <= MOST_MODULES, len(loaded)


def test_a_comparison_loads_no_other_verb_and_no_room_for_rare_cases(loaded: set[str]) -> None:
    # given what such a comparison has no use for: other verbs, ranks that are put together, a writer, noise, operators
    # of devices, object storage, step logs, windows, other machines, layouts of two frameworks, tables
    unused = (
        "lockstep.wings.", "lockstep_", "lockstep.unify.by_", "lockstep.unify.one_recording", "lockstep.store.writer",
        "lockstep.store.other_tools", "lockstep.judge.calibration", "lockstep.capture.", "lockstep.devices.",
        "lockstep.store.storage", "lockstep.locate.step_log", "lockstep.locate.from_one_state",
        "lockstep.cli.elsewhere", "lockstep.core.tensor_layouts",
        "lockstep.align.summed", "lockstep.reading.record_tables",
    )  # fmt: skip
    # then none of it is loaded
    assert [name for name in sorted(loaded) if name.startswith(unused)] == []
