"""Open files of torch: a program of `torch.export` (.pt2) and a module of TorchScript (.pt, .ts)."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.errors import UsageError
from lockstep.terminal import message
from lockstep_serve.servable import Array, Arrays, Signature, TensorSpec, unserved

SIGNATURE = "signature.json"
"""Beside a module of TorchScript, which does not tell what it takes: lists of `{"name", "dtype", "shape"}`, by
"inputs" and "outputs". Beside a program it gives names to what it calls by its nodes."""


class TorchServable:
    """A callable of torch over tensors in the order of the signature.

    run: Takes tensors and gives a tensor, or a sequence or mapping of them.
    signature: Its tensors.
    device: Where it runs.
    """

    platform = "pytorch"

    def __init__(self, run: Callable[..., Any], signature: Signature, device: str) -> None:
        self._run, self.signature, self._device = run, signature, device

    def infer(self, inputs: Arrays) -> dict[str, Array]:
        """Run it without gradients; see `Servable`."""
        import torch

        with torch.inference_mode():
            given = [
                torch.from_numpy(np.require(inputs[one.name], requirements="W")).to(self._device)
                for one in self.signature.inputs
            ]
            results = _flat(self._run(*given))
        if len(results) != len(self.signature.outputs):
            raise ValueError(
                f"gave {len(results)} tensors, where its signature has {len(self.signature.outputs)}"
            )
        names = [one.name for one in self.signature.outputs]
        return {name: one.cpu().numpy() for name, one in zip(names, results, strict=True)}

    def moved(self, *, seed: int) -> TorchServable:
        """The model with every parameter at a neighbour of its number, for what rounding makes of it."""
        import torch

        run, draw = copy.deepcopy(self._run), np.random.default_rng(seed)
        with torch.no_grad():
            for one in run.parameters() if isinstance(run, torch.nn.Module) else ():
                if one.is_floating_point() and one.ndim:
                    signs = torch.from_numpy(draw.integers(-1, 2, tuple(one.shape))).to(one)
                    one.mul_(1 + torch.finfo(one.dtype).eps * signs)
        return TorchServable(run, self.signature, self._device)


class ProgramServable(TorchServable):
    """A program of `torch.export`, whose graph can be looked into.

    program: The `ExportedProgram`.
    signature, device: As of a `TorchServable`; its inputs in the program's order, by whatever names.
    """

    def __init__(self, program: Any, signature: Signature, device: str) -> None:
        super().__init__(program.module().to(device), signature, device)
        self._program = program

    def mixing(self, without: Collection[str]) -> str:
        """Why instances are not shown to be independent; see `HasGraph`."""
        from lockstep_serve.independence import program_graph

        inputs = zip(self.signature.inputs, self._program.graph_signature.user_inputs, strict=True)
        return program_graph.mixing(
            self._program, [own for told, own in inputs if told.name in without]
        )


def use_threads(threads: int) -> None:
    """Have all models of this process run by so many threads; 0 for as many as torch takes."""
    import torch

    if threads:
        torch.set_num_threads(threads)


def open_exported(path: Path, device: str) -> TorchServable:
    """Open a program that `torch.export.save` wrote. Raises UsageError if it is none."""
    import torch

    try:
        program = torch.export.load(path)
        values = {node.name: node.meta["val"] for node in program.graph.nodes if "val" in node.meta}
        inputs = [_spec(path, name, values[name]) for name in program.graph_signature.user_inputs]
        outputs = [
            _spec(path, name, values[name]) for name in program.graph_signature.user_outputs if name
        ]
        signature = Signature(tuple(inputs), tuple(outputs), most=_most(program))
        signature = _renamed(signature, path.parent / SIGNATURE)
        return ProgramServable(program, signature, device)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(
            f"{path}: is not a program of torch.export ({message(str(error))})"
        ) from error


def _renamed(signature: Signature, beside: Path) -> Signature:
    """The same with the names that `signature.json` gives, where it lies there: a program calls its results by nodes.

    Raises ValueError, KeyError, TypeError if it lists other tensors than the program's.
    """
    if not beside.is_file():
        return signature
    told = json.loads(beside.read_text())
    sides = []
    for what, own in (("inputs", signature.inputs), ("outputs", signature.outputs)):
        named = _told(told[what])
        if [(one.dtype, len(one.shape)) for one in named] != [
            (one.dtype, len(one.shape)) for one in own
        ]:
            raise ValueError(f"{beside.name} lists {what} that are not the program's")
        sides.append(
            tuple(replace(one, name=other.name) for one, other in zip(own, named, strict=True))
        )
    return replace(signature, inputs=sides[0], outputs=sides[1])


def _most(program: Any) -> int | None:
    """How many instances the program was exported for at most, by the range of its inputs' first axes."""
    found = []
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in program.graph_signature.user_inputs:
            shape = getattr(node.meta["val"], "shape", ())
            expression = getattr(getattr(shape[0], "node", None), "expr", None) if shape else None
            bounds = program.range_constraints.get(expression)
            if bounds is not None and bounds.upper.is_Integer:
                found.append(int(bounds.upper))
    return min(found, default=None)


def open_scripted(path: Path, device: str) -> TorchServable:
    """Open a module of TorchScript, with the signature that lies beside it.

    Raises UsageError if it is none, or no signature lies there.
    """
    import torch

    beside = path.parent / SIGNATURE
    try:
        told = json.loads(beside.read_text())
        signature = Signature(_told(told["inputs"]), _told(told["outputs"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{beside}: TorchScript does not tell what it takes; write that there as docs/serve.md shows"
            f" ({type(error).__name__}: {message(str(error))})"
        ) from error
    try:
        module = torch.jit.load(str(path), map_location=device).eval()
    except Exception as error:
        raise UsageError(
            f"{path}: is not a module of TorchScript ({message(str(error))})"
        ) from error
    return TorchServable(module, signature, device)


def _told(entries: Sequence[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(
        TensorSpec(one["name"], np.dtype(one["dtype"]), tuple(map(int, one["shape"])))
        for one in entries
    )


def _spec(path: Path, name: str, value: Any) -> TensorSpec:
    told = str(value.dtype).removeprefix("torch.")
    try:
        dtype = np.dtype(told)
    except TypeError:
        raise unserved(path, name, told) from None
    shape = tuple(extent if isinstance(extent, int) else -1 for extent in value.shape)
    return TensorSpec(name, dtype, shape)


def _flat(result: Any) -> list[Any]:
    if isinstance(result, dict):
        return [one for value in result.values() for one in _flat(value)]
    if isinstance(result, (tuple, list)):
        return [one for value in result for one in _flat(value)]
    return [result]
