"""Which of the calls that were run again a test is written of, and what it tells."""

from __future__ import annotations

from pathlib import Path

from lockstep.core.errors import UsageError
from lockstep.replay.refusals import CannotReplay
from lockstep.store.reader import Recording
from lockstep.wings.replay.replayed_call import ReplayedCall

_PACKAGES = ("torch", "numpy", "transformers", "torch_npu", "triton")


_OTHERS = "The candidate runs other operators in its place, each sound by itself; this is what the reference runs."


def write_test(folder: Path, done: list[ReplayedCall], run: Recording, instead: str) -> str:
    """Write a stand-alone test of the call that is furthest beyond what is allowed; says in a sentence what it did.

    Parameters
    ----------
    folder
        A new one.
    done
        Calls that were run again.
    run
        The recording that the last of them are of.
    instead
        What it computes instead, in words, or "".

    Raises
    ------
    UsageError
        If no call is beyond what is allowed and there are several, or it cannot be written down.
    OutputExistsError
        If the folder is there, or cannot be written.
    """
    one = _chosen(done)
    from lockstep.replay.standalone.folder import Story, file_name, write_folder  # loads torch
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
    note = _OTHERS if one.chosen.run == "reference" else ""
    write_folder(folder, proof, Story(one.results, device, versions, instead, note))
    return f"wrote {folder / file_name(proof)}, its tensors and README.md; run it with: pytest {folder}"


def _chosen(done: list[ReplayedCall]) -> ReplayedCall:
    held = [one for one in done if one.held]
    if not held:
        why = next((one.refused for one in done if one.refused), "it gives nothing")
        raise UsageError(f"no test can be written: nothing was run again ({why})")
    worst = max(held, key=lambda one: one.worst)
    if worst.worst > 1.0 or len(held) == 1:
        return worst
    if {one.chosen.run for one in held} == {"reference", "candidate"} and len(held) == 2:
        return held[
            0
        ]  # the candidate calls something else: what the reference calls is what it should give
    raise UsageError(
        f"a test of which call? {len(held)} were run again, and all are sound; give one with --site and --step"
    )
