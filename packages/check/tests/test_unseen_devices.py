"""`lockstep doctor` on a machine with an accelerator that it cannot see all of."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from lockstep_check.machine.facts import Machine, look
from lockstep_check.machine.findings import Level, findings
from lockstep_check.machine.unseen import counters_unseen, unseen

CPU_BUILD = {"torch": "2.13.0+cpu", "cuda": "", "hip": "", "kind": ""}
CUDA_BUILD = {**CPU_BUILD, "torch": "2.13.0", "cuda": "12.8"}
WORKING = {**CUDA_BUILD, "kind": "cuda"}


def machine(
    root: Path, *, vendor: str, kind: str = "0x030200", nodes: tuple[str, ...] = ()
) -> Path:
    """A machine with one device on its bus, and files of its driver."""
    device = root / "sys/bus/pci/devices/0000:01:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text(f"{kind}\n")
    (root / "dev").mkdir()
    for node in nodes:
        (root / "dev" / node).touch()
    return root


@pytest.fixture
def no_tools(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.fixture
def smi(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tool.parent))


@pytest.mark.usefixtures("no_tools")
def test_a_device_without_driver_tool_and_backend_is_told_with_each_reason(tmp_path: Path) -> None:
    # given a GPU of which the bus alone knows
    root = machine(tmp_path / "root", vendor="0x10de")
    # when it is asked what could not be seen
    said = {one.what: one.why for one in unseen(root, CPU_BUILD)}
    # then each thing has its own reason
    assert "no file of its driver" in said["the NVIDIA device on the PCI bus"]
    assert said["driver and error counters of the NVIDIA device"] == "nvidia-smi is not on the path"
    assert said["the NVIDIA device in torch 2.13.0+cpu"] == "it has no backend for it"


@pytest.mark.usefixtures("smi")
def test_a_device_that_may_not_be_opened_is_told(tmp_path: Path) -> None:
    root = machine(tmp_path / "root", vendor="0x10de", nodes=("nvidia0", "nvidiactl"))
    said = {one.what: one.why for one in unseen(root, CUDA_BUILD, may_use=lambda node: False)}
    assert said == {
        "the NVIDIA device": "this user may not open /dev/nvidia0",
        "the NVIDIA device in torch 2.13.0": "it was built for it and finds none",
    }


@pytest.mark.usefixtures("smi")
def test_of_a_device_that_works_nothing_is_unseen(tmp_path: Path) -> None:
    root = machine(tmp_path / "root", vendor="0x10de", nodes=("nvidia0",))
    assert unseen(root, WORKING, may_use=lambda node: True) == []


@pytest.mark.usefixtures("no_tools")
@pytest.mark.parametrize(("vendor", "kind"), [("0x8086", "0x030000"), ("0x10de", "0x020000")])
def test_what_is_no_accelerator_of_these_vendors_is_not_told(
    tmp_path: Path, vendor: str, kind: str
) -> None:
    assert unseen(machine(tmp_path / "root", vendor=vendor, kind=kind), CPU_BUILD) == []


def test_a_bus_that_nobody_lists_is_told(tmp_path: Path) -> None:
    (only,) = unseen(tmp_path, CPU_BUILD)
    assert only.what == "accelerators that torch does not see"


def test_counters_that_a_device_does_not_have_are_not_zero_errors() -> None:
    # given a device that counts, one that does not, and a program that failed
    gpus = [["H100", "535", "0"], ["RTX 4090", "535", "[N/A]"]]
    # then the second alone is told, and the failure in the program's own words
    assert [one.what for one in counters_unseen(gpus, "")] == ["memory errors of RTX 4090"]
    (failed,) = counters_unseen([], "No devices were found")
    assert failed.why == "nvidia-smi: No devices were found"


def test_what_is_unseen_is_a_fact_of_the_page_and_no_problem(tmp_path: Path) -> None:
    seen = Machine(unseen=unseen(machine(tmp_path / "root", vendor="0x19e5"), CPU_BUILD))
    told = [one for one in findings(seen) if "Ascend" in one.title]
    assert {one.name for one in told} == {"unknown"}
    assert {one.level for one in told} == {Level.FACT}


def test_this_machine_can_be_asked() -> None:
    assert all(one.what and one.why for one in look().unseen)
