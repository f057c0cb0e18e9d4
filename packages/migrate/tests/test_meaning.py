"""Strings whose meaning is told by what the script does with them: places, names to compare, fields, paths."""

from __future__ import annotations

import io
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType

import pytest
from migrating import migrated


@pytest.mark.parametrize(
    "script",
    [
        # a constant that stands for a device, beside another or compared by its name
        'CUDA = "cuda"; CPU = "cpu"\nd = CUDA if torch.cuda.is_available() else CPU\nprint(d == CUDA)',
        'GPU = torch.device("cuda")\nprint(torch.device("cpu") == GPU)',
        'print(torch.device("cpu") == torch.device("cuda"), torch.device("cuda") != torch.device("cpu"))',
        # members that must stay different
        'import enum\nclass D(enum.Enum):\n    CPU = "cpu"\n    CUDA = "cuda"\nprint(len(D))',
        'import enum\nclass B(enum.Enum):\n    NCCL = "nccl"\n    GLOO = "gloo"\nprint(len(B))',
        # a script that takes its default back itself says so as before
        (
            'device = "cuda"\nif device == "cuda" and not torch.cuda.is_available():\n'
            '    print("falling back")\n    device = "cpu"\nprint(torch.zeros(1, device=device))'
        ),
        # a registry keeps its key at both ends
        'R = {}\ndef put(n):\n    R[n] = 1\nput("cuda")\nprint(R["cuda"])',
        # fields, paths and names of modules are no devices
        'from collections import namedtuple\nr = namedtuple("R", ["cuda", "cpu"])(1, 2)\nprint(r.cuda)',
        'import os\nprint(os.path.join("usr", "cuda"), "cuda" in __import__("sys").modules)',
        'import sys as s\nfrom sys import modules\nprint("cuda" in s.modules, "cuda" not in modules)',
        # a property is read, not called
        "class T:\n    @property\n    def cuda(self):\n        return 3\nprint(T().cuda)",
        # the parent is of the script's own
        (
            "class A:\n    def cuda(self, on=True):\n        return on\n"
            "class B(A):\n    def cuda(self, on=True):\n        return super().cuda(on)\n"
            "print(B().cuda(False))"
        ),
    ],
)
@pytest.mark.parametrize("target", ["neutral", "xpu"])
def test_a_script_that_runs_on_the_cpu_prints_the_same(
    script: str, target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a module `cuda`, which builds for GPUs load when they like
    monkeypatch.setitem(sys.modules, "cuda", ModuleType("cuda"))
    # and a script that names the device in a way that is no place to put something
    before, after = tmp_path / "before.py", tmp_path / "after.py"
    before.write_text(f"import torch\n{script}\n")
    # when it is migrated
    after.write_text(migrated(before.read_text(), target))
    # then both print the same
    assert _printed(after) == _printed(before) != ""


def _printed(script: Path) -> str:
    out = io.StringIO()
    with redirect_stdout(out):
        runpy.run_path(str(script), run_name="__main__")
    return out.getvalue()
