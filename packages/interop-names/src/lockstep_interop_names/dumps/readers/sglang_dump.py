"""Tensors of SGLang's dumper, a file a tensor: `sglang_dump_*/forward_pass_id=0___name=hidden___layer_id=3.pt`.

Since 0.5 it names them `dump_*/step=0___rank=0___dump_index=5___name=hidden___layer_id=3.pt`. What it was told
beside the name (a layer, say) stands in front of it as a path; a pass is a step.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

from lockstep.errors import CorruptError
from lockstep.recordings import LaterTensor, Mesh, NotSeen, ReadCall, digested
from lockstep.terminal import listed
from lockstep_interop_names.dumps.named_sites import Spot, calls_of
from lockstep_interop_names.dumps.readers.tensor_folder import what_contradicts, what_is_missing
from lockstep_interop_names.dumps.torch_file import noted_in, tensors_in

_FOLDER = re.compile(r"(?:sglang_)?dump_.*?(?:_(\d{1,4}))?")
_PART = re.compile(r"(\w+?)=(.*)", re.DOTALL)
_PARALLEL = ("sglang_parallel_info", "megatron_parallel_info")
_MOST_AXES = 6
_STEPS = ("forward_pass_id", "step")
"""What a pass is counted by: the first in earlier versions, the second in later ones."""
_OWN = (*_STEPS, "name", "rank", "dump_index")


def recognises(path: Path) -> bool:
    """Whether a folder holds such files, or folders of them."""
    return any(True for _ in _files(path))


def _files(path: Path) -> Iterator[tuple[Path, dict[str, str], int]]:
    """Files with what their names tell, and the rank that their folder does."""
    if path.is_symlink() or not path.is_dir():
        return
    inside = [one for one in sorted(path.iterdir()) if _FOLDER.fullmatch(one.name) and one.is_dir()]
    for folder in (path, *(one for one in inside if not one.is_symlink())):
        found = _FOLDER.fullmatch(folder.resolve().name)
        rank = int(found[1]) if found and found[1] else 0
        for file in sorted(folder.glob("*=*.pt")):
            parts = [_PART.fullmatch(part) for part in file.stem.split("___")]
            told = {part[1]: part[2] for part in parts if part is not None}
            tells_call = "name" in told and any(key in told for key in _STEPS)
            if all(parts) and tells_call and not file.is_symlink():
                yield file, told, rank


def read(path: Path) -> Iterator[ReadCall | NotSeen]:
    """Yield a call for each tensor, and what such a dump lacks."""
    found: list[tuple[Spot, LaterTensor]] = []
    dims: dict[tuple[int, int, str], str] = {}
    places: dict[int, dict[str, tuple[int, int]]] = {}
    wrong: list[str] = []
    for file, told, rank in _files(path):
        above = [f"{key}{value}" for key, value in told.items() if key not in _OWN]
        step = next(told[key] for key in _STEPS if key in told)
        index = told.get("dump_index", "")
        spot = Spot(
            ".".join([*above, told["name"]]), step=int(step[:9]) if step.isdigit() else 0,
            rank=int(told["rank"][:6]) if told.get("rank", "").isdigit() else rank,
            time=(int(index[:12]),) if index.isdigit() else (),
        )  # fmt: skip
        inside = dict(tensors_in(file))
        # later versions put what is known of it beside the value
        one = inside.get("", inside.get("value"))
        if one is None:
            raise CorruptError(file, "holds no tensor, nor one under 'value'", advice="dump again")
        noted = {} if "" in inside else noted_in(file, "meta")
        if other := _other(told, noted):
            wrong.append(f"{file.name} is of {other} by what stands in it")
            one = replace(one, load=None, digest=None, note=f"its file is of {other}")
        found.append((spot, digested(one) if one.load else one))
        if noted:
            dims[spot.rank, spot.step, spot.module] = str(noted.get("dims") or "")
            places.setdefault(spot.rank, {}).update(_place(noted))
    yield from what_is_missing([spot for spot, _ in found], [])
    yield from what_contradicts(wrong)
    mesh = _mesh(places)
    for call in calls_of(found):
        text = dims.get((call.rank, call.step, call.module), "")
        yield replace(call, mesh=mesh, tensors=[replace(one, dims=text) for one in call.tensors])


def _other(told: Mapping[str, str], noted: Mapping[str, Any]) -> str:
    """What a file says in itself that its name says otherwise; "" for nothing."""
    both = {key: noted[key] for key in told if isinstance(noted.get(key), (str, int))}
    return listed([f"{key} {value}" for key, value in both.items() if str(value) != told[key]])


def _place(noted: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Where a rank stands along each axis of the mesh, and how many do: `tp_rank` and `tp_size`."""
    found: dict[str, tuple[int, int]] = {}
    for key in _PARALLEL:
        info: dict[Any, Any] = noted[key] if isinstance(noted.get(key), dict) else {}
        for name, size in info.items():
            axis, _, what = str(name).rpartition("_")
            place = info.get(f"{axis}_rank")
            if what == "size" and type(size) is int and type(place) is int and size > 1:
                found[axis] = (place, size)
    return found


def _mesh(places: Mapping[int, Mapping[str, tuple[int, int]]]) -> dict[str, int]:
    """The axes in the order in which ranks are counted along them; {} where they are in none."""
    axes = {axis: size for told in places.values() for axis, (_, size) in told.items()}
    if len(axes) > _MOST_AXES:
        return {}
    for order in permutations(axes):
        mesh = Mesh({axis: axes[axis] for axis in order})
        within = all(0 <= rank < mesh.ranks for rank in places)
        if (
            order
            and within
            and all(
                mesh.place(rank) == {axis: told.get(axis, (0, 1))[0] for axis in order}
                for rank, told in places.items()
            )
        ):
            return dict(mesh.sizes)
    return {}
