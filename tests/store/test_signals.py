"""What importing the store must leave alone."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.skipif(sys.platform != "linux", reason="reads the C structure as it is on Linux")
def test_ctrl_c_still_interrupts_a_script_that_waits() -> None:
    # Given the process-wide handling of SIGINT, flags included, which polars would replace by one
    # that restarts system calls
    script = """
import ctypes, signal

def handling():
    action = ctypes.create_string_buffer(512)
    ctypes.CDLL(None).sigaction(signal.SIGINT, None, action)
    return action.raw[:8], action.raw[136:140]  # handler, signal set, flags

before = handling()
import lockstep.store.writer
assert handling() == before, (handling(), before)
"""

    # When the store is imported, then it is the same
    subprocess.run([sys.executable, "-c", script], check=True)
