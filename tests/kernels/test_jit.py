"""Compiling: what is kept, and what happens where nothing can be kept or compiled."""

from __future__ import annotations

import errno
import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from lockstep.kernels import jit
from lockstep.kernels.jit import available, compiled, part

pytestmark = pytest.mark.skipif(not available(), reason="Numba cannot be used here")


@part
def square(value: float) -> float:
    return value * value


def squares(values: np.ndarray) -> float:
    total = 0.0
    for position in range(values.size):
        total += square(values[position])
    return total


SIGNATURE = "float64(float64[::1])"
VALUES = np.array([3.0, 4.0])


def test_a_compiled_function_gives_the_numbers_of_the_plain_one() -> None:
    assert compiled(SIGNATURE)(squares)(VALUES) == 25.0


def test_machine_code_that_a_full_disk_does_not_take_runs_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a disk that takes nothing
    from numba.core import caching

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(caching.FunctionCache, "load_overload", lambda *_: None)
    monkeypatch.setattr(caching.FunctionCache, "save_overload", full)
    # when a function is compiled, then it works
    assert compiled(SIGNATURE)(squares)(VALUES) == 25.0


def test_without_a_place_for_machine_code_it_is_compiled_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given neither a writable source folder nor a home
    from numba.core import caching

    monkeypatch.setattr(caching.CompileResultCacheImpl, "_locator_classes", [])
    # when a function is compiled, then it works
    assert compiled(SIGNATURE)(squares)(VALUES) == 25.0


GENERAL_PATHS = """
import numpy as np, torch
from lockstep.measure.metrics import measure_tensors
from lockstep.devices.tensor_numbers import numbers_of
from lockstep.kernels import jit
from lockstep.kernels.jit import available
assert not available()
statistics, sketch = numbers_of(torch.arange(1000.0), with_sketch=True)
measured = measure_tensors(np.arange(4.0), np.arange(4.0) + 1, dtype="float64")
print(statistics.maximum, sketch.shape, measured.max_abs)
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize("away", ["NUMBA_DISABLE_JIT=1", "no Numba at all"])
def test_without_a_compiler_the_general_paths_are_taken(away: str) -> None:
    # given a process that cannot compile
    environment, script = dict(os.environ), GENERAL_PATHS
    if "=" in away:
        environment.update([away.split("=")])  # type: ignore[list-item]
    else:
        script = f"import sys; sys.modules['numba'] = None\n{script}"
    # when it takes numbers
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    # then it gets them
    assert done.stdout == "999.0 (256,) 1.0\n", done.stderr


def test_a_change_in_a_file_whose_parts_are_called_is_noticed(tmp_path: Path) -> None:
    # given functions that are kept, and call a part of another file, which calls one of a third
    header = "from lockstep.kernels.jit import compiled, part\n"
    once = f"{header}@part\ndef changed(value):\n    return value + 1.0\n"
    (tmp_path / "between.py").write_text(
        f"{header}from far import changed\n@part\ndef between(value):\n    return changed(value)\n"
    )
    function = tmp_path / "function.py"
    function.write_text(
        f"import sys\n{header}from between import between\n"
        + "".join(
            f"@compiled('float64(float64)')\ndef {name}(value):\n    return between(value)\n"
            for name in ("one", "two")
        )
        + "for name in sys.argv[1:]:\n    print(globals()[name](1.0))\n"
    )
    said, kept = [], []
    for text, order in (
        (once, "one two"),
        (once, "two one"),
        (once.replace("1.0", "2.0"), "one two"),
    ):
        # when the far file changes, and they are called in a new process, in any order
        (tmp_path / "far.py").write_text(text)
        ran = subprocess.run(
            [sys.executable, str(function), *order.split()],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        said.append([float(line) for line in ran.stdout.splitlines()])
        kept.append(len(list(tmp_path.glob("**/*.nbc"))))
    # then they give what the part now says, and are compiled no more than once for each
    assert said == [[2.0, 2.0], [2.0, 2.0], [3.0, 3.0]]
    assert kept == [2, 2, 4]


def test_loops_are_compiled_before_anything_needs_them(tmp_path: Path) -> None:
    # given a module of loops, a part and a name from elsewhere
    (tmp_path / "loops_of_a_test.py").write_text(
        "from lockstep.kernels.jit import compiled, part\nfrom lockstep.kernels.moments import _moments\n"
        "@part\ndef half(value):\n    return value / 2\n"
        "@compiled('float64(float64)')\ndef quarter(value):\n    return half(half(value))\n"
    )
    script = (
        "from lockstep.kernels import jit\nimport loops_of_a_test as module\n"
        "print(jit.loops(module))\njit.compile_now('loops_of_a_test', 'quarter')\n"
    )
    # when they are listed, and compiled
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    # then its own one is kept
    assert ran.stdout == "['quarter']\n"
    assert len(list(tmp_path.glob("**/*.nbc"))) == 1


LOOPS = """
from lockstep.kernels.jit import compiled

@compiled("float64(float64)")
def doubled(value):
    return 2 * value

@compiled("float64(float64)")
def halved(value):
    return value / 2
"""


def test_the_wait_for_the_compiler_is_said_once_and_not_where_machine_code_is_kept(
    tmp_path: Path,
) -> None:
    # given a file of two loops that were never compiled, and somebody who hears of it
    said: list[str] = []
    (tmp_path / "some_loops.py").write_text(LOOPS)

    def run() -> list[str]:
        said.clear()
        jit.say_before_compiling(said.append)
        loops = runpy.run_path(str(tmp_path / "some_loops.py"))
        assert loops["doubled"](2.0) == 8 * loops["halved"](1.0)
        jit.say_before_compiling(None)
        return list(said)

    # then both are compiled under one sentence, and the next process says nothing
    assert run() == [jit.WAIT]
    assert "python -m lockstep.kernels.every_loop" in jit.WAIT
    assert run() == []
    # and what is older than its source is compiled anew
    later_s = (tmp_path / "some_loops.py").stat().st_mtime + 100
    os.utime(tmp_path / "some_loops.py", (later_s, later_s))
    assert run() == [jit.WAIT]


@pytest.mark.skipif(importlib.util.find_spec("scipy") is None, reason="needs SciPy")
def test_numba_is_loaded_without_the_blas_that_no_loop_calls() -> None:
    # given a process of our own, where SciPy is installed
    script = (
        "import sys; from lockstep.kernels.jit import load_without_blas; load_without_blas()\n"
        "from lockstep.measure.passes import prepare; prepare()\n"
        "assert 'numba.np.arraymath' in sys.modules and 'scipy.linalg' not in sys.modules\n"
        "import numba.np.linalg; numba.np.linalg.ensure_blas()\n"
        "assert 'scipy.linalg' in sys.modules"
    )
    # then it is not loaded, and can be had by whoever asks afterwards
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_wait_is_said_once_where_two_threads_come_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # given a thread that has found nothing kept, and another one that says the wait meanwhile
    said: list[str] = []

    def another_was_quicker(dispatcher: object) -> bool:
        jit.say_before_compiling(None)
        return False

    monkeypatch.setattr(jit, "_is_kept", another_was_quicker)
    jit.say_before_compiling(said.append)

    # when
    jit._announce(object())

    # then
    assert said == []
