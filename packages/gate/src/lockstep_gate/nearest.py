"""Choose the golden of the machine that is most like the one that made a recording."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.errors import CorruptError
from lockstep.recordings import Recording
from lockstep_gate.golden import Variant

_NUMBERS = re.compile(r"\d+")
_ODD = re.compile(r"[^A-Za-z0-9.]+")


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine of a training, as far as the choice of a golden needs it.

    devices: As the manifest has them ("cpu", or kind and model of an accelerator).
    release: That of its framework, without what follows a `+`.
    architecture: Of the processor.
    ranks: How many processes trained together.
    framework: What it trained with.
    """

    devices: tuple[str, ...]
    release: str
    architecture: str
    ranks: int
    framework: str = "torch"

    @property
    def name(self) -> str:
        """The name of its variant: letters, digits, `.` and `-` alone."""
        several = (f"{self.ranks}ranks",) if self.ranks > 1 else ()
        parts = (*self.devices, self.architecture, f"{self.framework}{self.release}", *several)
        return "-".join(_ODD.sub("-", part).strip("-.") for part in parts if part)[:150]


def machine_of(recording: Recording) -> Machine:
    """Return the machine that made a recording. Raises CorruptError if it holds no rank."""
    ranks = list(recording.ranks.values())
    if not ranks:
        raise CorruptError(recording.path, "holds no rank of a training")
    manifest = ranks[0].manifest
    framework = recording.other_framework or "torch"
    release = manifest.packages.get(framework, "").partition("+")[0]
    devices = tuple(dict.fromkeys(_model(one) for one in manifest.devices))
    machine = manifest.platform.get("machine", "")
    return Machine(devices, release, machine, manifest.world_size, framework)


def _model(device: str) -> str:
    """A device without its number: a training on cuda:1 is one on cuda:0."""
    return re.sub(r"^([a-z]+):\d+", r"\1", device)


def nearest(variants: Sequence[Variant], machine: Machine) -> Variant:
    """The variant whose machine is most like this one.

    First counts how many ranks train, then the kind of device, its model, the framework, its release (the closest, the
    older of two as close) and the processor; of equals the first by name.
    """
    return min(variants, key=lambda one: (_distance(machine_of(one.recording), machine), one.name))


def _distance(golden: Machine, here: Machine) -> tuple[float, ...]:
    return (
        golden.ranks != here.ranks,
        _kinds(golden) != _kinds(here),
        golden.devices != here.devices,
        golden.framework != here.framework,
        *_releases_apart(golden.release, here.release),
        golden.architecture != here.architecture,
    )


def _kinds(machine: Machine) -> set[str]:
    return {one.split()[0].partition(":")[0] for one in machine.devices if one.split()}


def _releases_apart(golden: str, here: str) -> tuple[float, ...]:
    """How far two releases are apart: major, minor, patch; half a step more where the golden is the newer."""
    pairs = zip(_release(golden), _release(here), strict=True)
    return tuple(abs(left - right) + 0.5 * (left > right) for left, right in pairs)


def _release(version: str) -> tuple[int, int, int]:
    numbers = [int(one[:9]) for one in _NUMBERS.findall(version)[:3]]
    major, minor, patch = (*numbers, 0, 0, 0)[:3]
    return major, minor, patch


def differing_words(golden: Machine, here: Machine) -> str:
    """Return the differences of the golden's machine, in words; "" if it is the same."""
    aspects = (
        ("ranks", str(golden.ranks), str(here.ranks)),
        ("device", "+".join(golden.devices), "+".join(here.devices)),
        (here.framework, golden.release, here.release)
        if golden.framework == here.framework
        else ("framework", golden.framework, here.framework),
        ("processor", golden.architecture, here.architecture),
    )
    return ", ".join(
        f"{name} {left or 'unknown'} there and {right or 'unknown'} here"
        for name, left, right in aspects
        if left != right
    )
