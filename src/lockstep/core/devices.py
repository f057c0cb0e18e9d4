"""The devices that trainings run on: one catalogue of their names, libraries and collective backends.

Plug-ins add to it by the hook `lockstep_devices`. A text names a device by its whole spelling, `cuda` or `npu:0`:
`cpu_time` and `metadata` are none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

_INDEXED = re.compile(r"(\w+)(?::\d+)?")


@dataclass(frozen=True, slots=True)
class Device:
    """A type of devices, as PyTorch names it.

    Parameters
    ----------
    name
        The type of a `torch.device`, such as `npu`.
    aliases
        Other words for it, by which no `torch.device` goes: `gpu`, `ascend`.
    library
        The module that scripts import for it; "" where torch itself has it.
    backend
        The backend of collectives that is made for it; "" where there is none.
    method
        Whether tensors and modules have a method of its name that moves them there, as `.cuda()`.
    autocast
        Whether `torch.autocast` knows it without its library.
    target
        Whether `lockstep migrate` writes scripts for it without a plug-in.
    computes
        Whether tensors there have elements; those on `meta` have none.

    Examples
    --------
    >>> device_of("npu:0").backend
    'hccl'
    """

    name: str
    aliases: tuple[str, ...] = ()
    library: str = ""
    backend: str = ""
    method: bool = False
    autocast: bool = False
    target: bool = False
    computes: bool = True


_BUILT_IN = (
    Device("cpu", backend="gloo", method=True, autocast=True),
    Device("cuda", ("gpu", "hip", "rocm"), backend="nccl", method=True, autocast=True),
    Device("npu", ("ascend",), "torch_npu", "hccl", method=True, target=True),
    Device("xpu", backend="xccl", method=True, autocast=True, target=True),
    Device(
        "hpu",
        ("gaudi",),
        "habana_frameworks.torch",
        "hccl",
        method=True,
        autocast=True,
        target=True,
    ),
    Device("mps", autocast=True, target=True),
    Device("mlu", library="torch_mlu", backend="cncl", method=True),
    Device("musa", library="torch_musa", backend="mccl", method=True),
    Device("gcu", library="torch_gcu", backend="eccl", method=True),
    Device("xla", ("tpu",), "torch_xla", "xla", autocast=True),
    Device("mtia", backend="mtia"),
    Device("ipu", library="poptorch", method=True),
    Device("privateuseone"),
    Device("meta", computes=False),
)
_known = {one.name: one for one in _BUILT_IN}


def add_devices(devices: Iterable[Device]) -> None:
    """Add devices of plug-ins; one whose name is known already is not replaced."""
    for one in devices:
        _known.setdefault(one.name, one)


def devices() -> tuple[Device, ...]:
    """Return every known device, the built-in ones first."""
    return tuple(_known.values())


def device_of(text: str) -> Device | None:
    """Return the device that a text names, `npu` or `npu:0`; None where it names none.

    Examples
    --------
    >>> device_of("cuda:1").name, device_of("cpu_time"), device_of("metadata")
    ('cuda', None, None)
    """
    found = _INDEXED.fullmatch(text)
    return _known.get(found[1]) if found else None


def accelerators() -> tuple[Device, ...]:
    """Return the devices beside the processor that hold elements."""
    return tuple(one for one in devices() if one.computes and one.name != "cpu")


def spellings(*, of: Iterable[Device] | None = None) -> frozenset[str]:
    """Return the names of devices, and the other words for them."""
    given = devices() if of is None else of
    return frozenset(word for one in given for word in (one.name, *one.aliases))


__all__ = ["Device", "accelerators", "add_devices", "device_of", "devices", "spellings"]
