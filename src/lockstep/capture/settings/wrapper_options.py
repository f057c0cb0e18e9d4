"""How a model was wrapped for several ranks: the options of DistributedDataParallel and FSDP."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

from torch.nn import Module
from torch.nn.parallel import DistributedDataParallel

_OF_DDP = (
    "broadcast_buffers",
    "forward_sync_buffers",
    "find_unused_parameters",
    "gradient_as_bucket_view",
    "static_graph",
    "bucket_bytes_cap",
)
_OF_FSDP1 = ("sharding_strategy", "mixed_precision", "cpu_offload")
_OF_FSDP2 = ("mp_policy", "offload_policy", "reshard_after_backward", "gradient_divide_factor")


def wrapper_options(module: Module) -> dict[str, str]:
    """The options of a wrapper in words, by its name and theirs; nothing of what is none."""
    return dict(_options(module))


def _options(module: Module) -> Iterator[tuple[str, str]]:
    own = vars(module)
    if isinstance(module, DistributedDataParallel):
        yield from _told("DistributedDataParallel", own, _OF_DDP)
        yield "DistributedDataParallel communication hook", str(bool(own.get("_comm_hooks")))
    sharded = sys.modules.get("torch.distributed.fsdp")
    if sharded is not None and isinstance(module, sharded.FullyShardedDataParallel):
        yield from _told("FullyShardedDataParallel", own, _OF_FSDP1)
    if sharded is not None and isinstance(module, sharded.FSDPModule):
        state = vars(module._get_fsdp_state())
        groups = state.get("_fsdp_param_groups") or [state.get("_fsdp_param_group")]
        if groups[0] is not None:  # None: nothing of its own is sharded
            yield from _told("fully_shard", vars(groups[0]), _OF_FSDP2)


def _told(name: str, values: dict[str, Any], wanted: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    for option in wanted:
        if option in values:
            yield f"{name} {option}", str(values[option])
