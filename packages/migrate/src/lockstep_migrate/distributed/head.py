"""The head of a script of many processes: its rank, joining the others, sharing samples."""

from __future__ import annotations

from collections.abc import Callable

from lockstep_migrate.hookspecs import MigrationTarget

START_DOC = "Join the processes that torchrun started, each with a device of its own."
LOADER_DOC = "Build a data loader that gives each process its own share of a dataset."
UNWRAPPED_DOC = "Take the model itself out of what averages its gradients."

_RANKS = (
    "",
    "# Set by torchrun; a script that is started alone is the only process.",
    '{rank} = int(os.environ.get("RANK", "0"))',
    '{local_rank} = int(os.environ.get("LOCAL_RANK", "0"))',
    '{world_size} = int(os.environ.get("WORLD_SIZE", "1"))',
)
_START = (
    "",
    "",
    "def {start}():",
    f'    """{START_DOC}"""',
    "    if {world_size} == 1:",
    "        return",
    '    backend = "gloo"',
    "    if {available}:",
    "        {take_device}",
    "        backend = {backend}",
    "    {torch}.distributed.init_process_group(backend)",
)
_LOADER = (
    "",
    "",
    "def {training_loader}(loader, dataset, batch_size=1, shuffle=None, **options):",
    f'    """{LOADER_DOC}"""',
    "    if {world_size} == 1:",
    "        return loader(dataset, batch_size, shuffle, **options)",
    "    sampler = {torch}.utils.data.DistributedSampler(dataset, shuffle=bool(shuffle))",
    "    return loader(dataset, batch_size, sampler=sampler, **options)",
)
_UNWRAPPED = (
    "",
    "",
    "def {unwrapped}(model):",
    f'    """{UNWRAPPED_DOC}"""',
    "    wrapped = isinstance(model, {torch}.nn.parallel.DistributedDataParallel)",
    "    return model.module if wrapped else model",
)


def head_lines(
    names: dict[str, str],
    target: MigrationTarget,
    fill: Callable[[str], str],
    *,
    unwraps: bool,
    starts: bool,
) -> list[str]:
    """The lines, in the words of a module."""
    lines = [*_RANKS, *_START, *_LOADER, *(_UNWRAPPED if unwraps else ())]
    if starts:
        lines += ["", "", "{start}()"]
    words = {**names, **_device_words(target, names, fill), "torch": fill("torch")}
    return [part for line in lines for part in line.format(**words).split("\n")]


def takes_devices(target: MigrationTarget) -> bool:
    """Whether processes can have a device each: Apple's machines have one, which no collective backend serves."""
    return not target.device or target.has_name("{module}.set_device")


def _taking(target: MigrationTarget, line: str) -> str:
    """How a process takes its device; Habana's software does it together with registering its backend."""
    name = "habana_frameworks.torch.distributed.hccl.initialize_distributed_hpu"
    if not target.has_name(name):
        return line
    module, _, function = name.rpartition(".")
    return f"from {module} import {function}\n\n        {function}()"


def _device_words(
    target: MigrationTarget, names: dict[str, str], fill: Callable[[str], str]
) -> dict[str, str]:
    """How a process asks for its device; the CPU's own backend stays beside the device's, for tensors there."""
    if target.device:
        module = fill("{module}")
        return {
            "available": f"{module}.is_available()",
            "take_device": _taking(target, f"{module}.set_device({names['local_rank']})"),
            "backend": f'"cpu:gloo,{target.device}:{target.backend}"',
        }
    kind, found = fill("{type}"), fill("{backend}")
    return {
        "available": fill("torch.accelerator.is_available") + "()",
        "take_device": fill("torch.accelerator.set_device_index") + f"({names['local_rank']})",
        "backend": f'f"cpu:gloo,{{{kind}}}:{{{found}}}"',
    }
