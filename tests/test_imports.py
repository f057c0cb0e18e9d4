"""What is loaded when: `import lockstep` and `lockstep --help` are to be quick."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "polars", "numpy", "rich")


@pytest.mark.parametrize(
    "statement",
    [
        "import lockstep",
        "from lockstep.cli.main import main; assert main(['--help']) == 0",
        "from lockstep.cli.main import main; assert main(['--version']) == 0",
    ],
)
def test_nothing_heavy_is_loaded(statement: str) -> None:
    script = f"import sys\n{statement}\nassert not set(sys.modules) & set({HEAVY}), sys.modules"

    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)
