"""Write the list of torch's functions and layers that Apple's GPU has no kernel for.

    python benchmarks/migrate/mps_operators.py

reads the table of operators that the installed torch brings along: an operator with kernels for the CPU and for CUDA,
none for MPS, and none for every device stops on Apple's GPU. The list is data of the package.
"""

from __future__ import annotations

import datetime
import inspect
import re
from collections import defaultdict
from pathlib import Path

import torch
import torchgen
import yaml

LIST = (
    Path(__file__).resolve().parents[2]
    / "packages/migrate/src/lockstep_migrate/torch/tables/mps_lacks.txt"
)
OPERATORS = Path(torchgen.__file__).parent / "packaged/ATen/native/native_functions.yaml"
EVERYWHERE = {
    "MPS",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
    "CompositeImplicitAutograd",
}
# torch sends these to the CPU by itself (MPSFallback.mm).
SENT = {"_linalg_svd", "_slow_conv2d_forward", "col2im", "embedding_renorm_"}
# Public functions that are written in terms of an operator of another name.
IN_TERMS_OF = {"torch.linalg.eigvalsh": "_linalg_eigh", "torch.linalg.lstsq": "ormqr"}
PLACES = {
    "torch": (torch, ""),
    "torch.nn.functional": (torch.nn.functional, ""),
    "torch.linalg": (torch.linalg, "linalg_"),
    "torch.special": (torch.special, "special_"),
}


def main() -> None:
    """Write the list."""
    lacking = operators()
    found = {name for operator in lacking for name in public_names(operator)}
    found |= {name for name, operator in IN_TERMS_OF.items() if operator in lacking}
    functions = {name.rpartition(".")[2] for name in found if ".functional." in name}
    found |= {f"torch.nn.{layer}" for layer in layers(functions)}
    version = torch.__version__.split("+")[0]
    header = (
        f"# Source: native_functions.yaml of torch {version} ({torch.version.git_version})\n"
        f"# Date: {datetime.date.today()}\n# Made by benchmarks/migrate/mps_operators.py.\n"
    )
    LIST.write_text(header + "\n".join(sorted(found)) + "\n")
    print(f"{LIST.name}: {len(found)} names")


def operators() -> set[str]:
    """The operators, without their overloads, that no overload has a kernel for MPS of."""
    keys: dict[str, set[str]] = defaultdict(set)
    for one in yaml.safe_load(OPERATORS.read_text()):
        name = one["func"].split("(")[0].split(".")[0]
        keys[name] |= {key.strip() for group in one.get("dispatch", {}) for key in group.split(",")}
    with_kernels = {name for name, found in keys.items() if {"CPU", "CUDA"} <= found}
    lacking = {name for name in with_kernels if not keys[name] & EVERYWHERE} - SENT
    # `_aminmax` is left from before `aminmax`, which has a kernel.
    return {
        name
        for name in lacking
        if "MPS" not in keys.get(name.strip("_"), ()) and not re.search(r"backward|quantize", name)
    }


def public_names(operator: str) -> set[str]:
    """The functions of torch that an operator is called by."""
    bare = operator.strip("_")
    stems = {bare, *(bare.removesuffix(end) for end in ("_forward", "_ex", "_with_noise"))}
    methods = {f".{stem}()" for stem in stems if "_" in stem and hasattr(torch.Tensor, stem)}
    return methods | {
        f"{place}.{stem.removeprefix(start)}"
        for place, (module, start) in PLACES.items()
        for stem in stems
        if stem.startswith(start) and callable(getattr(module, stem.removeprefix(start), None))
    }


def layers(functions: set[str]) -> set[str]:
    """The layers whose `forward` calls one of these functions."""
    return {
        name
        for name, layer in vars(torch.nn).items()
        if inspect.isclass(layer)
        and "forward" in vars(layer)
        and set(re.findall(r"F\.(\w+)\(", inspect.getsource(layer.forward))) & functions
    }


if __name__ == "__main__":
    main()
