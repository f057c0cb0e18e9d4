"""How fast whole tensors of other tools' dumps are read, beside the same tensors in a recording of Lockstep's own.

Every tensor is loaded and each of its bytes looked at once, with all files in memory already; the forms take turns.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch

import lockstep
from lockstep.core.manifest import Options
from lockstep.core.read_calls import ReadCall, ReadTensor
from lockstep.core.records import Content
from lockstep.core.site import Role
from lockstep.store.directory import RunDirectory
from lockstep.store.written_calls import CallsOfRank, WholeRankOnDisk, closed_manifest

Array = np.ndarray
TURNS = 7
COUNT, ELEMENTS = 12, 1 << 22


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory(prefix="lockstep-reading-") as name:
        print(table(Path(name)))


def table(directory: Path) -> str:
    """A row a form, in Markdown."""
    arrays = [
        np.random.default_rng(one).standard_normal(ELEMENTS, dtype="f4") for one in range(COUNT)
    ]
    forms = {
        name: contents(make(directory / name.replace(" ", "_"), arrays))
        for name, make in FORMS.items()
    }
    for found in forms.values():
        assert len(found) == COUNT
        assert all(
            np.array_equal(one.load().ravel(), array)
            for one, array in zip(found, arrays, strict=True)
        )
    taken: dict[str, list[float]] = {name: [] for name in forms}
    for _ in range(TURNS):
        for name, found in forms.items():
            start = time.perf_counter()
            for one in found:
                look_at(one.load())
            taken[name].append(time.perf_counter() - start)
    size = sum(array.nbytes for array in arrays)
    own = statistics.median(taken["Lockstep's own"])
    lines = ["| form | GB/s | of Lockstep's own |", "|---|---|---|"]
    for name, times in taken.items():
        median = statistics.median(times)
        lines.append(f"| {name} | {size / median / 1e9:.1f} | {100 * own / median:.0f} % |")
    return "\n".join(lines)


def look_at(array: Array) -> int:
    """Every byte of it."""
    return int(np.bitwise_xor.reduce(array.reshape(-1).view(np.uint64)))


def contents(path: Path) -> list[Content]:
    """The tensors, in order of time."""
    return [
        record.content for record in lockstep.open(path).records() if record.role is Role.OUTPUT
    ]


def own(path: Path, arrays: Sequence[Array]) -> Path:
    """A recording."""
    directory = RunDirectory.create(path, ["made"], Options(save="tensors"), force=False)
    calls, disk = CallsOfRank(0), WholeRankOnDisk(directory.path / "rank0")
    for array in arrays:
        disk.add(
            calls.made_of(
                ReadCall(0, "act", "torch.relu", [ReadTensor(Role.OUTPUT, "result", array)])
            )
        )
    disk.finish(closed_manifest(0, 1, ["made"]))
    directory.finish(exit_code=0)
    return path


def probe(
    path: Path, arrays: Sequence[Array], suffix: str, write: Callable[[Array, Path], Any]
) -> Path:
    """A dump of mindstudio-probe."""
    folder = path / "step0" / "rank0"
    (folder / "dump_tensor_data").mkdir(parents=True)
    data = {}
    for number, array in enumerate(arrays):
        name = f"Functional.relu.{number}.forward"
        file = f"{name}.output.0.{suffix}"
        write(array, folder / "dump_tensor_data" / file)
        leaf = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(array.shape), "Max": float(array.max()),
                "Min": float(array.min()), "Mean": float(array.mean()), "Norm": float(np.linalg.norm(array)),
                "requires_grad": False, "data_name": file}  # fmt: skip
        data[name] = {"input_args": [], "input_kwargs": {}, "output": [leaf]}
    dump = {
        "task": "tensor",
        "level": "L1",
        "framework": "pytorch",
        "dump_data_dir": "",
        "data": data,
    }
    (folder / "dump.json").write_text(json.dumps(dump))
    for name in ("stack.json", "construct.json"):
        (folder / name).write_text("{}")
    return path


def ptdbg(path: Path, arrays: Sequence[Array]) -> Path:
    """A dump of ptdbg_ascend."""
    folder = path / "step0" / "rank0"
    (folder / "dump").mkdir(parents=True)
    lines = []
    for number, array in enumerate(arrays):
        name = f"Functional_relu_{number}_forward_output"
        np.save(folder / "dump" / f"{name}.npy", array)
        numbers = [float(array.max()), float(array.min()), float(array.mean())]
        lines.append(json.dumps([name, 1, [], "torch.float32", list(array.shape), numbers]))
    (folder / "dump.pkl").write_text("\n".join(lines) + "\n")
    return path


def dumper(path: Path, arrays: Sequence[Array]) -> Path:
    """A file of torch.utils.dumper."""
    path = path.with_suffix(".h5")
    with h5py.File(path, "w") as file:
        for number, array in enumerate(arrays):
            file.create_dataset(f"Relu/{number + 1}/output/0", data=array).attrs.update(
                {"Type": 0, "DataType": 1}
            )
    return path


def saved(array: Array, path: Path) -> None:
    """As torch.save writes it."""
    torch.save(torch.from_numpy(array), path)


FORMS: dict[str, Callable[[Path, Sequence[Array]], Path]] = {
    "Lockstep's own": own,
    "mindstudio-probe, .pt": lambda path, arrays: probe(path, arrays, "pt", saved),
    "mindstudio-probe, .npy": lambda path, arrays: probe(
        path, arrays, "npy", lambda array, file: np.save(file, array)
    ),
    "ptdbg_ascend, .npy": ptdbg,
    "torch.utils.dumper, .h5": dumper,
}


if __name__ == "__main__":
    main()
