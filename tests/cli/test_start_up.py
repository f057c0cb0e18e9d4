"""What a process of `lockstep compare` loads before it measures."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from lockstep.cli.compare import _absent
with _absent("wave"):
    try:
        import wave
    except ImportError:
        print("absent")
import wave
with _absent("wave"):
    import wave
print("there", wave is sys.modules["wave"])
"""


def test_a_module_is_absent_for_a_while_unless_somebody_has_it() -> None:
    # given a process that has not loaded a module
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False
    )
    # then it cannot be loaded while it is to be absent, can be afterwards, and what is loaded stays
    assert done.stdout.split("\n")[:2] == ["absent", "there True"], done.stderr
