"""Name the parts of a training that Lockstep cannot see, such as torch's own work between ranks."""

from __future__ import annotations

import sys
from typing import Any

from torch.nn import DataParallel, Module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from lockstep.core.manifest import GATHERED, IN_FLAT_PARAMETERS, OF_OTHER_RANKS, NotSeen


class Gaps(list[NotSeen]):
    """What is not seen, each noted once."""

    def add(self, gap: NotSeen | None) -> None:
        """Something is not seen, or nothing is wrong."""
        if gap is not None and gap not in self:
            self.append(gap)

    def renew(self, gap: NotSeen) -> None:
        """Something is not seen, of which less was told before."""
        self[:] = [one for one in self if one.what != gap.what]
        self.append(gap)


def gap_of(item: Module | Optimizer) -> NotSeen | None:
    """Return the unseen part of a training because of a module around its model, or an optimizer; None if none is."""
    if isinstance(item, DistributedDataParallel):
        return NotSeen(
            "how gradients are reduced over ranks",
            "DistributedDataParallel does it in compiled code; they are recorded before and after",
        )
    if isinstance(item, DataParallel) and len(item.device_ids) > 1:
        return NotSeen(
            "how replicas are made and gathered", "DataParallel does it in compiled code"
        )
    if _is(item, "torch.distributed.fsdp", "FSDPModule"):
        return NotSeen(GATHERED, "FSDP2 does it between operators")
    if _is(item, "torch.distributed.fsdp", "FullyShardedDataParallel"):
        return NotSeen(IN_FLAT_PARAMETERS, "FSDP1 keeps them in flat parameters of its own")
    if _is(item, "torch.distributed.optim", "ZeroRedundancyOptimizer"):
        return NotSeen(OF_OTHER_RANKS, "each rank records those of its own part")
    return None


def _is(item: Any, module: str, name: str) -> bool:
    """Whether an object is of a class in a module that may not have been imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(item, kind)
