"""What contents are given to: `lockstep.store.writer.RankWriter` in a recording."""

from __future__ import annotations

from typing import Protocol

from lockstep.store.encoding import Row
from lockstep.store.small_tensors import SmallContent
from lockstep.store.tensors import RawTensor


class ContentSink(Protocol):
    """Takes rows and tensors."""

    def add_content(self, row: Row) -> None: ...

    def add_small_content(self, content: SmallContent) -> int: ...

    def add_tensor(self, tensor: RawTensor) -> int: ...
