"""Write the lists of torch's public names that `lockstep migrate` checks its output against.

    python benchmarks/migrate/torch_names.py

writes `torch.txt`, `xpu.txt` and `mps.txt` from the installed torch. The lists are data of the package,
which never imports torch itself; this script is for whoever brings them up to a new version of torch.
"""

from __future__ import annotations

import datetime
import importlib
import pkgutil
import types
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch

LISTS = Path(__file__).resolve().parents[2] / "packages/migrate/src/lockstep_migrate/names"

# Where a script's device code can lie: the module itself with the public modules below it.
TREES = {
    "torch": (
        "torch.accelerator",
        "torch.amp",
        "torch.autograd",
        "torch.backends",
        "torch.compiler",
        "torch.cpu",
        "torch.cuda",
        "torch.mtia",
        "torch.multiprocessing",
        "torch.nn.attention",
        "torch.nn.init",
        "torch.nn.parallel",
        "torch.nn.utils",
        "torch.optim",
        "torch.profiler",
        "torch.utils.data",
    ),
    "xpu": ("torch.xpu",),
    "mps": ("torch.mps",),
}
# These alone, without what lies below them.
MODULES = (
    "torch",
    "torch.distributed",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.default_hooks",
    "torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook",
    "torch.distributed.algorithms.join",
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.device_mesh",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.distributed.fsdp",
    "torch.distributed.fsdp.sharded_grad_scaler",
    "torch.distributed.launch",
    "torch.distributed.nn",
    "torch.distributed.optim",
    "torch.distributed.pipelining",
    "torch.distributed.rpc",
    "torch.distributed.run",
    "torch.distributed.tensor",
    "torch.distributed.tensor.parallel",
    "torch.hub",
    "torch.jit",
    "torch.linalg",
    "torch.nn",
    "torch.nn.functional",
    "torch.nn.modules",
    "torch.nn.modules.batchnorm",
    "torch.nn.modules.utils",
    "torch.random",
    "torch.serialization",
    "torch.storage",
    "torch.testing",
    "torch.utils",
    "torch.utils.checkpoint",
    "torch.utils.collect_env",
    "torch.utils.cpp_extension",
    "torch.utils.dlpack",
    "torch.version",
)
# Classes whose members scripts name. A generator, a storage or an event has its device's methods too.
CLASSES = (
    "torch.Event",
    "torch.Generator",
    "torch.Stream",
    "torch.Tensor",
    "torch.UntypedStorage",
    "torch.cuda.Event",
    "torch.cuda.Stream",
    "torch.device",
    "torch.nn.Module",
    "torch.profiler.ProfilerActivity",
    "torch.xpu.Event",
    "torch.xpu.Stream",
    "torch.mps.event.Event",
)
# Switches that answer through `__getattr__` and so are in no `dir`.
SWITCHES = (
    "torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_fp16_accumulation",
    "torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction",
    "torch.backends.cuda.matmul.allow_tf32",
    "torch.backends.cuda.matmul.fp32_precision",
    "torch.backends.cudnn.conv.fp32_precision",
    "torch.backends.cudnn.rnn.fp32_precision",
)


def main() -> None:
    """Write the three lists."""
    warnings.simplefilter("ignore")
    names = {
        target: {name for tree in trees for module in _modules(tree) for name in _names(module)}
        for target, trees in TREES.items()
    }
    for module in MODULES:
        names["torch"].update(_names(importlib.import_module(module)))
    for dotted in CLASSES:
        members = {f"{dotted}.{name}" for name in dir(resolve(dotted)) if _public(name)}
        names[_list_of(dotted)].update(members)
    for switch in SWITCHES:
        resolve(switch)
        names["torch"].add(switch)
    for target, found in names.items():
        own = sorted(name for name in found if _list_of(name) == target)
        (LISTS / f"{target}.txt").write_text(_header() + "\n".join(own) + "\n")
        print(f"{target}.txt: {len(own)} names")


def resolve(dotted: str) -> object:
    """The object of a dotted name: the longest prefix that is a module, then attributes."""
    parts = dotted.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:end]))
        except ImportError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AttributeError(dotted)


def _modules(root: str) -> Iterator[types.ModuleType]:
    module = importlib.import_module(root)
    yield module
    for info in pkgutil.iter_modules(getattr(module, "__path__", ())):
        # Some modules need a package or a library that is not here; their names cannot be asked.
        if _public(info.name):
            try:
                yield from _modules(f"{root}.{info.name}")
            except ImportError as error:
                print(f"left out {root}.{info.name}: {error}")


def _names(module: types.ModuleType) -> Iterator[str]:
    yield module.__name__
    # A module with properties (torch.backends.cudnn.benchmark) has them on its class.
    properties = set(dir(type(module))) - set(dir(types.ModuleType))
    for name in {*dir(module), *properties}:
        if _public(name) and _belongs(module, name):
            yield f"{module.__name__}.{name}"


def _belongs(module: types.ModuleType, name: str) -> bool:
    """Whether a name is torch's own, not something that the module imported for itself."""
    try:
        value = getattr(module, name)
    except (AttributeError, RuntimeError, AssertionError):
        return False
    if name in getattr(module, "__all__", ()):
        return True
    if isinstance(value, types.ModuleType):
        return value.__name__ == f"{module.__name__}.{name}"
    home = getattr(value, "__module__", None)
    return name != "TYPE_CHECKING" and (not isinstance(home, str) or home.split(".")[0] == "torch")


def _public(name: str) -> bool:
    return not name.startswith("_")


def _list_of(dotted: str) -> str:
    top = dotted.split(".")[1:2]
    return top[0] if top in (["xpu"], ["mps"]) else "torch"


def _header() -> str:
    version = torch.__version__.split("+")[0]
    return (
        f"# Source: torch {version}, build for CPU ({torch.version.git_version})\n"
        f"# Version: {version}\n"
        f"# Date: {datetime.date.today()}\n"
        "# Made by benchmarks/migrate/torch_names.py: asked of the imported modules.\n"
    )


if __name__ == "__main__":
    main()
