"""`lockstep doctor`: what follows from what was seen of a machine, each problem with the command that cures it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lockstep.cli.main import main
from lockstep.core.variables import VARIABLES
from lockstep.devices.torch_build import describe
from lockstep_check.machine import command
from lockstep_check.machine.facts import Machine, look
from lockstep_check.machine.findings import Level, findings, known_variables

GB = 10**9
PROBLEM, ADVICE = Level.PROBLEM, Level.ADVICE
TORCH: dict[str, Any] = {
    "torch": "2.13.0+cpu", "cuda": "", "hip": "", "threads": 8, "interop_threads": 4, "cpu_capability": "AVX2",
    "mkl": "2025.1", "kind": "", "devices": [], "backends": ["oneDNN"],
}  # fmt: skip
HEALTHY = Machine(
    torch=TORCH,
    packages={"pillow-simd": "9.5"},
    cores=8,
    load=8.0,
    governors=["performance"],
    free_memory_bytes=20 * GB,
    total_memory_bytes=32 * GB,
    shared_memory_bytes=16 * GB,
    disks={"/here": 100 * GB},
    open_files=65536,
    environment={"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HOME": "/home/me"},
)
VISION = {"wanted_torch": {"torchvision": "2.9.0"}, "packages": {"torchvision": "0.24"}}
GPU = {"name": "H100", "memory_bytes": 80 * GB, "built_for": False}


def asked(machine: Machine) -> dict[str, str]:
    """What is to be done on a machine: cure by finding."""
    return {one.name: one.cure for one in findings(machine) if one.level is not Level.FACT}


def test_nothing_is_asked_for_on_a_healthy_machine() -> None:
    assert asked(HEALTHY) == {}


def test_a_busy_machine_is_told_before_a_quicker_library_for_images() -> None:
    busy = replace(HEALTHY, load=20.0, packages={"pillow": "11.0"})
    assert list(asked(busy)) == ["busy", "pillow"]
    assert list(asked(replace(busy, load=None))) == ["pillow"]


@pytest.mark.parametrize(
    ("change", "name", "level", "cure"),
    [
        ({"torch": None, "torch_failed": "ImportError: x"}, "torch-missing", PROBLEM, "pip install torch"),
        ({"gpus": [["H100", "535", "0"]]}, "torch-cpu-build", PROBLEM, "force-reinstall"),
        ({"gpus": [["H100", "535", "3"]]}, "gpu-errors", PROBLEM, "nvidia-smi -r"),
        ({"torch": {**TORCH, "cuda": "12.8", "devices": [GPU]}}, "device-not-built-for", PROBLEM, "--upgrade torch"),
        (VISION, "package-for-another-torch", PROBLEM, "torchvision torch"),
        ({"cores": 2}, "threads-too-many", ADVICE, "OMP_NUM_THREADS=2"),
        ({"load": 8.5}, "busy", ADVICE, "side by side"),
        ({"torch": {**TORCH, "mkl": "2024.2"}}, "first-vector-call", ADVICE, "torch.tanh(torch.zeros(1))"),
        ({"governors": ["performance", "powersave"]}, "governor", ADVICE, "cpupower frequency-set -g performance"),
        ({"free_memory_bytes": GB}, "memory-short", ADVICE, "--memory"),
        ({"shared_memory_bytes": 64 * 10**6}, "shared-memory-small", ADVICE, "--shm-size"),
        ({"disks": {"/here": GB}}, "disk-short", PROBLEM, "du -xh /here"),
        ({"open_files": 1024}, "files", ADVICE, "ulimit -n 65536"),
        ({"packages": {"pillow": "11.0"}}, "pillow", ADVICE, "pillow-simd"),
        ({"ascend_folder": "/usr/local/Ascend"}, "ascend-not-set-up", PROBLEM, "source /usr/local/Ascend/"),
        ({"has_npu": True}, "ascend-no-adapter", PROBLEM, "torch_npu"),
        ({"has_kfd": True, "may_use_kfd": False}, "rocm-no-permission", PROBLEM, "usermod"),
        ({"environment": {"NVIDIA_TF32_OVERRIDE": "1"}}, "variable-other", ADVICE, "export NVIDIA_TF32_OVERRIDE=0"),
        ({"environment": {"CUDA_LAUNCH_BLOCKING": "1"}}, "variable-other", ADVICE, "unset CUDA_LAUNCH_BLOCKING"),
        ({"environment": {"CUBLAS_WORKSPACE_CONFIG": ":0:0"}}, "variable-other", ADVICE, "=:4096:8"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_with_the_command_that_cures_it(
    change: dict[str, Any], name: str, level: Level, cure: str
) -> None:
    # given a machine with one thing wrong
    found = {one.name: one for one in findings(replace(HEALTHY, **change))}
    # then it is named, at its level, with its command, and no blank is left
    assert found[name].level is level
    assert cure in found[name].cure
    assert "{" not in found[name].title + found[name].meaning + found[name].cure
    assert found[name].source


def test_one_thread_chooses_its_kernels_alone() -> None:
    assert asked(replace(HEALTHY, torch={**TORCH, "mkl": "2024.2", "threads": 1})) == {}


def test_what_the_system_does_not_tell_is_no_finding() -> None:
    # given a machine of which nothing but torch is seen
    assert asked(Machine(torch=TORCH)) == {}


def test_problems_come_first_and_make_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = replace(HEALTHY, cores=2, load=0.5, has_npu=True)
    monkeypatch.setattr(command, "look", lambda: broken)
    assert main(["doctor"]) == 1
    said = capsys.readouterr().out
    assert said.startswith("1 problem, 1 to advise\n\nproblem: an NPU is here")
    assert main(["doctor", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert [one["level"] for one in answer["findings"]][:2] == ["problem", "advice"]
    monkeypatch.setattr(command, "look", lambda: replace(HEALTHY, cores=2))
    assert main(["doctor"]) == 0


def test_this_machine_is_looked_at_and_torch_is_asked_in_a_child(
    monkeypatch: pytest.MonkeyPatch, programs: Any
) -> None:
    # given the Python that starts at once
    monkeypatch.setattr("sys.executable", str(programs / "python"))
    # when this machine is looked at
    machine = look()
    # then torch's answer is what it is here
    assert machine.torch is not None, machine.torch_failed
    assert machine.torch["torch"] == describe()["torch"]
    assert machine.cores
    assert machine.disks
    assert findings(machine)


def test_variables_are_listed_with_what_they_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--variables"]) == 0
    said = capsys.readouterr().out
    assert all(name in said for name in known_variables())
    # and the options of the Ascend compiler, and names that recordings keep, are among them
    assert "ACL_OP_SELECT_IMPL_MODE" in said
    kept = {name for names in VARIABLES.values() for name in names}
    assert len(kept & set(known_variables())) > 15
