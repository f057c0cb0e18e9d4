"""The extension point of `lockstep migrate`: devices that scripts are written for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lockstep.plugin import SupportList, hookspec

__all__ = ["MigrationTarget", "SupportList", "lockstep_migration_targets"]


@dataclass(frozen=True, slots=True, eq=False)
class MigrationTarget:
    """A device that `lockstep migrate --to NAME` writes scripts for.

    Parameters
    ----------
    name
        What `--to` takes.
    device
        The device type in torch, such as `npu`; empty for the neutral target, whose scripts ask for it as they run.
    module
        The dotted name that stands for `torch.cuda`, such as `torch.npu`.
    imports
        A module that scripts must import for the device to exist, such as `torch_npu`.
    importable
        What import statements take for `module` where that is no module itself, such as `torch_npu.npu`.
    backend
        The collective backend that stands for `nccl`.
    method
        The method of tensors and modules that stands for `.cuda()`; empty where there is only `.to(device)`.
    is_device
        The attribute of tensors that stands for `.is_cuda`; empty where there is none.
    single
        Whether a machine has one such device, number 0.
    environment
        Environment variables, CUDA's name to the device's own: in Python, shell scripts and settings files.
    image
        The container image that stands for NVIDIA's, in Dockerfiles, scripts and compose files.
    container_options
        The options that give the device to a container, where CUDA's are `--gpus all` and `runtime: nvidia`.
    package_index
        Where packages that are built for the device come from, in the place of an index of CUDA's.
    folder
        What stands for a folder of the CUDA toolkit.
    launcher_device
        What stands for `gpu` in `torchrun --nproc_per_node=gpu`.
    native
        What to write instead of a CUDA kernel, in words.
    instead
        What to use instead of variables, programs and packages, in words, by the names of `files/surroundings.json`.
    rules
        The text of the target's own table; columns as in `lockstep_migrate.torch.table`.
    has_name
        Whether the device's software has a dotted name; no other name is ever written.
    libraries
        The device's word in libraries of `torch/libraries.csv`: `{"onnxruntime": "CANNExecutionProvider"}`.
    lacks
        Operators that the device's software cannot run; see `SupportList`.
    among
        Of the neutral target, the devices that its scripts may meet; Lockstep fills it in.
    """

    name: str
    device: str
    module: str
    has_name: Callable[[str], bool]
    rules: str = ""
    imports: str = ""
    importable: str = ""
    backend: str = ""
    method: str = ""
    is_device: str = ""
    single: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)
    image: str = ""
    container_options: str = ""
    package_index: str = ""
    folder: str = ""
    launcher_device: str = ""
    native: str = ""
    instead: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    lacks: Mapping[str, str] = field(default_factory=dict)
    among: tuple[MigrationTarget, ...] = ()


@hookspec
def lockstep_migration_targets() -> list[MigrationTarget]:  # type: ignore[empty-body]
    """Devices that `lockstep migrate` writes scripts for."""
