"""Triton's kernels give the CPU's numbers; its interpreter runs them here."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.skipif(
    importlib.util.find_spec("triton") is None,
    reason="Triton is not installed (280 MB): `make test-device` installs it",
)
def test_kernels_in_the_interpreter_give_the_numbers_of_the_cpu() -> None:
    # given tensors of all dtypes, laid out in several ways, in a process that has not imported Triton yet
    command = [sys.executable, str(HERE / "triton_beside_cpu.py"), "--tensors", "52"]
    # when Triton's interpreter takes their numbers
    done = subprocess.run(
        [*command, "--largest", "12000"], capture_output=True, text=True, check=False,
        env={**os.environ, "TRITON_INTERPRET": "1"},
    )  # fmt: skip
    # then all are those of the CPU's kernels
    assert done.returncode == 0, done.stdout + done.stderr
    assert "different" not in done.stdout.splitlines()[-1]
    assert "digests equal" in done.stdout
