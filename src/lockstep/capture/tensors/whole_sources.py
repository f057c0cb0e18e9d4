"""With `--save program`: the contents that are kept whole, as no recorded call makes them; up to a size."""

from __future__ import annotations

from lockstep.core.manifest import BATCHES_LEFT_OUT, SOURCES_LEFT_OUT, NotSeen
from lockstep.core.sizes import size_text
from lockstep.core.sketch import SKETCH_SIZE


class WholeSources:
    """Decides which contents are kept whole, and counts them.

    most_bytes: So many bytes of them are kept; of a content that goes beyond, the sketch.
    batches: Whether what comes from the batch may be kept: not with `--redact`.
    """

    def __init__(self, most_bytes: int, *, batches: bool) -> None:
        self.batches = batches
        self._most_bytes, self._kept_bytes = most_bytes, 0
        self._left_out = self._left_out_bytes = 0
        self._is_beyond: bool | None = None

    def expects(self, size_bytes: int) -> None:
        """So much of a first model is to come: where there is no room for all of it, a part would be of no use."""
        if self._is_beyond is None:
            self._is_beyond = self._kept_bytes + size_bytes > self._most_bytes

    def takes(self, size_bytes: int) -> bool:
        """Count a content that is to be kept, and tell whether there is room for it."""
        if not self._is_beyond and self._kept_bytes + size_bytes <= self._most_bytes:
            self._kept_bytes += size_bytes
            return True
        self._left_out += 1
        self._left_out_bytes += size_bytes
        return False

    def takes_small(self, count: int) -> bool:
        """Whether a tensor of so many elements is kept though a call makes it: its sketch takes no less room."""
        return self.batches and count <= SKETCH_SIZE

    def gaps(self) -> list[NotSeen]:
        """What is not kept, and how it would be."""
        found = []
        if self._left_out:
            needed = self._kept_bytes + self._left_out_bytes
            reason = (
                f"{self._left_out} tensors of {size_text(self._left_out_bytes)} go beyond --whole-bytes"
                f" {size_text(self._most_bytes)}, so that there are sketches of them alone; record with --save"
                f" program --whole-bytes {size_text(needed)}"
            )
            found.append(NotSeen(SOURCES_LEFT_OUT, reason, whole_bytes=needed))
        if not self.batches:
            reason = (
                "--redact keeps their sketches alone, and those of what operators draw and decide"
            )
            found.append(NotSeen(BATCHES_LEFT_OUT, reason))
        return found
