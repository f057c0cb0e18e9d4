"""Turn facts about a machine into advice and problems, each with the command that cures it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

from lockstep_check.data_files import filled, rows_of
from lockstep_check.machine.facts import Machine

_HERE = Path(__file__).parent
_LEAST_MEMORY_BYTES = 2_000_000_000
_LEAST_SHARED_BYTES = 1_000_000_000
_LEAST_DISK_BYTES = 5_000_000_000
_LEAST_FILES = 4096
_UNSET = "unset"
_STRUCK_MKL = "2024.2"
"""With which the race was seen; not with 2025.0 (https://github.com/pytorch/pytorch/issues/188792)."""


class Level(Enum):
    """How urgent a finding is."""

    PROBLEM = "problem"
    ADVICE = "advice"
    FACT = "fact"


@dataclass(frozen=True, slots=True)
class MachineFinding:
    """One thing about this machine; `cure` is a command, "" for facts."""

    name: str
    level: Level
    title: str
    meaning: str
    cure: str
    source: str


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable, or an option of a compiler, that is known.

    recommended: Its value while runs are compared; "" for none, "unset" where it should not be there.
    advise: Values that are advised against; None for all but those of `fine`.
    """

    name: str
    meaning: str
    recommended: str
    source: str
    is_option: bool
    advise: tuple[str, ...] | None
    fine: tuple[str, ...]

    def is_advised_against(self, value: str) -> bool:
        """Whether another value is better."""
        if self.recommended == "" or value == self.recommended:
            return False
        return value not in self.fine if self.advise is None else value in self.advise


@cache
def known_variables() -> Mapping[str, Variable]:
    """Every variable and option of the table, by its name."""
    return {row["name"]: _variable(row) for row in rows_of(_HERE / "variables.yaml")}


def _variable(row: Mapping[str, Any]) -> Variable:
    advise = row.get("advise")
    return Variable(
        **{key: str(row[key]) for key in ("name", "meaning", "recommended", "source")},
        is_option=row.get("option", False),
        advise=None if advise is None else tuple(map(str, advise)),
        fine=tuple(map(str, row.get("advise_not", ()))),
    )


@cache
def _words() -> Mapping[str, Mapping[str, str]]:
    return {row["id"]: row for row in rows_of(_HERE / "findings.yaml")}


def findings(machine: Machine) -> list[MachineFinding]:
    """Everything about a machine, problems first."""
    order = list(Level)
    return sorted(_all(machine), key=lambda one: order.index(one.level))


def _all(machine: Machine) -> Iterator[MachineFinding]:
    yield from _of_torch(machine)
    yield from _of_devices(machine)
    yield from _of_processor(machine)
    yield from _of_memory(machine)
    yield from _of_images(machine)
    yield from _of_variables(machine.environment)


def _found(kind: str, /, **blanks: object) -> MachineFinding:
    row = _words()[kind]
    texts = {key: str(value) for key, value in blanks.items()}
    parts = {key: filled(row.get(key, ""), texts) for key in ("title", "meaning", "cure", "source")}
    return MachineFinding(kind, Level(row["level"]), **parts)


def _of_torch(machine: Machine) -> Iterator[MachineFinding]:
    torch = machine.torch
    if torch is None:
        yield _found("torch-missing", why=machine.torch_failed)
        return
    build = (
        f"CUDA {torch['cuda']}"
        if torch["cuda"]
        else f"ROCm {torch['hip']}"
        if torch["hip"]
        else "the CPU"
    )
    backends = ", ".join(torch["backends"])
    yield _found(
        "torch",
        version=torch["torch"],
        build=build,
        capability=torch["cpu_capability"],
        backends=backends,
    )
    for package, wanted in machine.wanted_torch.items():
        if wanted and wanted != torch["torch"].partition("+")[0]:
            yield _found(
                "package-for-another-torch", package=package, version=machine.packages[package],
                wanted=wanted, installed=torch["torch"],
            )  # fmt: skip


def _of_devices(machine: Machine) -> Iterator[MachineFinding]:
    torch = machine.torch
    for device in [] if torch is None else torch["devices"]:
        size = device["memory_bytes"]
        memory = f"{_size(size)} of memory" if size else "memory is not told"
        yield _found("device", name=device["name"], memory=memory)
        if device["built_for"] is False:
            yield _found("device-not-built-for", name=device["name"])
    for name, driver, errors in machine.gpus:
        yield _found("gpu-driver", version=driver, name=name)
        if errors.isdigit() and int(errors):
            yield _found("gpu-errors", name=name, count=errors)
    for one in machine.unseen:
        yield _found("unknown", what=one.what, why=one.why)
    if machine.gpus and torch is not None and not (torch["cuda"] or torch["hip"]):
        yield _found("torch-cpu-build", device=machine.gpus[0][0])
    if machine.has_kfd and not machine.may_use_kfd:
        yield _found("rocm-no-permission")
    if machine.has_npu and "torch-npu" not in machine.packages:
        yield _found("ascend-no-adapter")
    if machine.ascend_folder and not machine.environment.get("ASCEND_HOME_PATH"):
        yield _found("ascend-not-set-up", folder=machine.ascend_folder)


def _of_processor(machine: Machine) -> Iterator[MachineFinding]:
    threads = None if machine.torch is None else machine.torch["threads"]
    if machine.cores is not None and threads is not None:
        yield _found("cores", cores=machine.cores, threads=threads)
        if threads > machine.cores:
            yield _found("threads-too-many", cores=machine.cores, threads=threads)
    if machine.cores is not None and machine.load is not None and machine.load > machine.cores:
        yield _found("busy", load=f"{machine.load:.1f}", cores=machine.cores)
    mkl = "" if machine.torch is None else machine.torch["mkl"]
    if mkl.startswith(_STRUCK_MKL) and threads is not None and threads > 1:
        yield _found("first-vector-call", mkl=mkl)
    other = [one for one in machine.governors if one != "performance"]
    if other:
        yield _found("governor", governor=", ".join(other))
    if not machine.governors:
        why = "the system does not tell, as in a virtual machine: it is the host's"
        yield _found("unknown", what="the CPU's governor", why=why)
    if machine.open_files is not None and 0 < machine.open_files < _LEAST_FILES:
        yield _found("files", limit=machine.open_files)


def _of_memory(machine: Machine) -> Iterator[MachineFinding]:
    free, total = machine.free_memory_bytes, machine.total_memory_bytes
    if free is None or total is None:
        yield _found("unknown", what="memory", why="the system does not tell")
    else:
        yield _found("memory", free=_size(free), total=_size(total))
        if free < _LEAST_MEMORY_BYTES:
            yield _found("memory-short", free=_size(free))
    shared = machine.shared_memory_bytes
    if shared is not None and shared < _LEAST_SHARED_BYTES:
        yield _found("shared-memory-small", size=_size(shared))
    for folder, room in machine.disks.items():
        name = "disk" if room >= _LEAST_DISK_BYTES else "disk-short"
        yield _found(name, folder=folder, free=_size(room))


def _of_images(machine: Machine) -> Iterator[MachineFinding]:
    packages = machine.packages
    if "pillow" in packages and "pillow-simd" not in packages:
        yield _found("pillow", version=packages["pillow"])
    for name in packages:
        if name.startswith(("opencv", "pillow-simd")):
            yield _found("image-library", package=name, version=packages[name])


def _of_variables(environment: Mapping[str, str]) -> Iterator[MachineFinding]:
    for name, variable in known_variables().items():
        value = environment.get(name)
        if value is None:
            continue
        if not variable.is_advised_against(value):
            yield _found("variable", name=name, value=value, meaning=variable.meaning)
            continue
        is_unset = variable.recommended == _UNSET
        yield _found(
            "variable-other", name=name, value=value, meaning=variable.meaning, source=variable.source,
            recommended="no value" if is_unset else variable.recommended,
            cure=f"unset {name}" if is_unset else f"export {name}={variable.recommended}",
        )  # fmt: skip


def _size(count: float) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"
