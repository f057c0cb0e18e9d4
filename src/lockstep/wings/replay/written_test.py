"""Which of the calls that were run again a test is written of, and what it tells."""

from __future__ import annotations

import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

from lockstep.core.errors import UsageError
from lockstep.core.text import shell_line
from lockstep.replay.refusals import CannotReplay
from lockstep.store.reader import Recording
from lockstep.wings.replay.replayed_call import ReplayedCall
from lockstep.wings.replay.story import Story

_PACKAGES = ("torch", "numpy", "transformers", "torch_npu", "triton")


def write_test(
    folder: Path, done: list[ReplayedCall], run: Recording, story: Story | None, instead: str
) -> str:
    """Write a stand-alone test of the call that an origin's story is about, or that is furthest beyond what is allowed.

    Says in a sentence what it did.

    Parameters
    ----------
    folder
        A new one.
    done
        Calls that were run again.
    run
        The recording that the last of them are of.
    story
        What is told of an origin; None where there is none.
    instead
        What it computes instead, in words, or "".

    Raises
    ------
    UsageError
        If no call is beyond what is allowed and there are several, or it cannot be written down.
    OutputExistsError
        If the folder is there, or cannot be written.
    """
    one = story.tested if story is not None and story.tested is not None else _chosen(done)
    from lockstep.replay.standalone.folder import Background, file_name, write_folder  # loads torch
    from lockstep.replay.standalone.proof import proof_of

    try:
        proof = proof_of(one.call, like=one.chosen.like)
    except CannotReplay as error:
        raise UsageError(f"no test of {one.call.site} can be written: {error}") from error
    manifest = run.ranks[one.call.rank].manifest
    versions = {"python": manifest.python.split()[0]} | {
        name: manifest.packages[name] for name in _PACKAGES if name in manifest.packages
    }
    device = next((record.content.device for record in one.call.records), "cpu")
    because = story.cannot_show if story is not None else ""
    told = Background(
        one.results, device, versions, instead,
        story="" if story is None else story.words,
        cannot_show=because,
        as_recorded=one.chosen.crossed,
    )  # fmt: skip
    write_folder(folder, proof, told)
    shows = f"\nThis test cannot show it, because {because}." if because else ""
    command = shell_line([*_pytest(), str(folder)])
    return (
        f"wrote {folder / file_name(proof)}, its tensors and README.md{shows}\n\n"
        f"What next: run it, here or where that device is\n  {command}"
    )


def _pytest() -> list[str]:
    """How pytest is started where torch is; another one on the path may be of another Python."""
    found = shutil.which("pytest")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return ["pytest"]
    return [sys.executable, "-m", "pytest"] if find_spec("pytest") is not None else ["pytest"]


def _chosen(done: list[ReplayedCall]) -> ReplayedCall:
    held = [one for one in done if one.held]
    if not held:
        why = next((one.refused for one in done if one.refused), "it gives nothing")
        raise UsageError(f"no test can be written: nothing was run again ({why})")
    worst = max(held, key=lambda one: one.worst)
    if worst.worst > 1.0 or len(held) == 1:
        return worst
    raise UsageError(
        f"a test of which call? {len(held)} were run again, and all are sound; give one with --site and --step"
    )
