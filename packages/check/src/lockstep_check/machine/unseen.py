"""Tell what of this machine's accelerators could not be seen, and why."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_ACCELERATOR_CLASSES = ("0x03", "0x12")
"""First byte of a PCI class: display controllers, and processing accelerators (PCI Code and ID Assignment, 1.15)."""


@dataclass(frozen=True, slots=True)
class _Vendor:
    """Where a vendor's devices are found.

    number: Of the vendor on the PCI bus.
    nodes: Pattern of the driver's files in /dev.
    tool: The driver's program, which tells of its version and of errors.
    build: Which entry of `lockstep.devices.torch_build` tells that torch was built for them; "" for a plug-in's.
    kind: As `torch.device` calls them.
    """

    name: str
    number: str
    nodes: str
    tool: str
    build: str
    kind: str


_VENDORS = (
    _Vendor("NVIDIA", "0x10de", "nvidia[0-9]*", "nvidia-smi", "cuda", "cuda"),
    _Vendor("AMD", "0x1002", "kfd", "rocm-smi", "hip", "cuda"),
    _Vendor("Ascend", "0x19e5", "davinci[0-9]*", "npu-smi", "", "npu"),
)


@dataclass(frozen=True, slots=True)
class Unseen:
    """Something that nobody could tell, and why."""

    what: str
    why: str


def unseen(
    root: Path, torch: Mapping[str, Any] | None, *, may_use: Callable[[Path], bool] | None = None
) -> list[Unseen]:
    """Return what could not be seen of accelerators.

    root: Folder that holds `sys` and `dev`: /.
    torch: As `lockstep.devices.torch_build` tells it; None where it failed.
    may_use: Whether this process may open a device's file; None asks the system.
    """
    able = may_use or (lambda node: os.access(node, os.R_OK | os.W_OK))
    bus = root / "sys/bus/pci/devices"
    found: list[Unseen] = []
    for vendor in _VENDORS:
        nodes = sorted((root / "dev").glob(vendor.nodes))
        if nodes or _is_on_bus(bus, vendor.number):
            found.extend(_of_vendor(vendor, nodes, torch, able))
    if not (bus.is_dir() or found):
        why = "the system does not list its PCI devices, as in some containers"
        found.append(Unseen("accelerators that torch does not see", why))
    return found


def _is_on_bus(bus: Path, vendor: str) -> bool:
    return any(
        _read(one / "vendor") == vendor and _read(one / "class").startswith(_ACCELERATOR_CLASSES)
        for one in (bus.iterdir() if bus.is_dir() else ())
    )


def _of_vendor(
    vendor: _Vendor,
    nodes: Sequence[Path],
    torch: Mapping[str, Any] | None,
    able: Callable[[Path], bool],
) -> Iterator[Unseen]:
    name = vendor.name
    closed = [one.name for one in nodes if not able(one)]
    if not nodes:
        why = "no file of its driver is in /dev: the driver is not loaded, or the container was not given it"
        yield Unseen(f"the {name} device on the PCI bus", why)
    elif closed:
        yield Unseen(f"the {name} device", f"this user may not open /dev/{', /dev/'.join(closed)}")
    if shutil.which(vendor.tool) is None:
        why = f"{vendor.tool} is not on the path"
        yield Unseen(f"driver and error counters of the {name} device", why)
    if torch is not None and torch["kind"] != vendor.kind:
        built = torch[vendor.build] if vendor.build else ""
        why = "it was built for it and finds none" if built else "it has no backend for it"
        yield Unseen(f"the {name} device in torch {torch['torch']}", why)


def counters_unseen(gpus: Sequence[Sequence[str]], why_not: str) -> Iterator[Unseen]:
    """Tell what `nvidia-smi` did not say.

    gpus: Name, driver and count of uncorrected errors of each device.
    why_not: What it said where it failed.
    """
    if why_not:
        yield Unseen("driver and error counters of NVIDIA devices", f"nvidia-smi: {why_not}")
    for name, driver, errors in gpus:
        if not errors.isdigit():
            yield Unseen(f"memory errors of {name}", f"its driver {driver} does not count them")


def _read(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""
