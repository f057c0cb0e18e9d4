"""Name the parts that `--only` and `--skip` left out of two recordings."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep.core.manifest import Options
from lockstep.core.text import listed
from lockstep.store.reader import Recording


def left_out(reference: Recording, candidate: Recording) -> Iterator[str]:
    """Say which part of the model was not recorded; of which run, where the two differ."""
    said = [_words(one.manifest.options) for one in (reference, candidate)]
    if said[0] == said[1]:
        yield from said[0]
        return
    for side, words in zip(("reference", "candidate"), said, strict=True):
        yield from (f"{one} in the {side}" for one in words)


def _words(options: Options) -> list[str]:
    only = [f"all but {listed(options.only)} (--only)"] if options.only else []
    return only + ([f"{listed(options.skip)} (--skip)"] if options.skip else [])


__all__ = ["left_out"]
