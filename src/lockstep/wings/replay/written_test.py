"""Choose the call that a test is written for, and print the result."""

from __future__ import annotations

import shutil
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from lockstep.core.errors import UsageError
from lockstep.core.records import Call
from lockstep.core.text import shell_line
from lockstep.replay.answers import Cut, Makes
from lockstep.replay.calls.refusals import CannotReplay
from lockstep.replay.smaller.cut import shapes_of
from lockstep.store.reader import Recording
from lockstep.wings.replay.replayed_call import ReplayedCall
from lockstep.wings.replay.replayed_module import ReplayedModule
from lockstep.wings.replay.replays import Replays
from lockstep.wings.replay.smaller_inputs import SmallerInputs
from lockstep.wings.replay.story import Story

if TYPE_CHECKING:
    from lockstep.wings.replay.standalone.folder import Background
    from lockstep.wings.replay.standalone.proof import Proof

_PACKAGES = ("torch", "numpy", "transformers", "torch_npu", "triton")


def write_test(
    folder: Path,
    one: ReplayedCall,
    run: Recording,
    story: Story | None,
    instead: str,
    *,
    smaller: SmallerInputs | None,
    replays: Replays,
) -> str:
    """Write a stand-alone test of a call.

    Says in a sentence what it did.

    folder: A new one.
    one: The call, as it was run again.
    run: The recording that the call is of.
    story: What is told of an origin; None where there is none.
    instead: What it computes instead, in words, or "".
    smaller: Smaller inputs on which it fails, where they were looked for.
    replays: What ran it again.

    Raises UsageError if it cannot be written down. Raises OutputExistsError if the folder is there, or cannot be
    written.
    """
    from lockstep.wings.replay.standalone.folder import (  # loads torch
        Background,
        file_name,
        write_folder,
    )
    from lockstep.wings.replay.standalone.proof import proof_of

    try:
        proof = proof_of(one.call, like=one.chosen.like)
    except CannotReplay as error:
        raise UsageError(f"no test of {one.call.site} can be written: {error}") from error
    versions, device = _versions(run, one.call), _device(one.call)
    because = story.cannot_show if story is not None else ""
    background = Background(
        one.results, device, versions, instead,
        story="" if story is None else story.words,
        cannot_show=because,
        as_recorded=one.chosen.crossed,
    )  # fmt: skip
    part, beside = (None, "") if smaller is None else _on_less(smaller, proof, background, replays)
    if part is None:
        write_folder(folder, proof, background)
    else:
        write_folder(folder, *part, (proof, background))
    shows = f"\nThis test cannot show it, because {because}." if because else ""
    return _wrote(folder / file_name(proof), f"{beside}{shows}", proof)


def write_module_test(folder: Path, one: ReplayedModule, run: Recording) -> str:
    """Write a stand-alone test of a module's forward: its calls in their order, on what entered it.

    Says in a sentence what it did.

    folder: A new one.
    one: The module, as it was run again.
    run: The recording that it is of.

    Raises UsageError if it cannot be written down. Raises OutputExistsError if the folder is there, or cannot be
    written.
    """
    call = one.module.call
    from lockstep.wings.replay.standalone.folder import Background, file_name, write_folder
    from lockstep.wings.replay.standalone.module_proof import module_proof

    try:
        proof = module_proof(one.module, like_its_own=one.like_its_own)
    except CannotReplay as error:
        raise UsageError(f"no test of {call.site} can be written: {error}") from error
    results = () if one.chained is None else one.chained.results
    background = Background(
        results, _device(call), _versions(run, call), as_recorded=one.recorded_off,
        not_run=tuple(f"{alone.call.site}: {link.refused}" for link, alone in one.links() if link.refused),
    )  # fmt: skip
    write_folder(folder, proof, background)
    return _wrote(folder / file_name(proof), "", proof)


def _wrote(file: Path, beside: str, proof: Proof) -> str:
    found_in = (
        ["env", f"PYTHONPATH={Path.cwd()}"] if proof.modules else []
    )  # of functions of the user's own
    command = shell_line([*found_in, *_pytest(), str(file.parent)])
    return (
        f"wrote {file}, its tensors and README.md{beside}\n\n"
        f"What next: run it, here or where that device is\n  {command}"
    )


def _versions(run: Recording, call: Call) -> dict[str, str]:
    manifest = run.ranks[call.rank].manifest
    return {"python": manifest.python.split()[0]} | {
        name: manifest.packages[name] for name in _PACKAGES if name in manifest.packages
    }


def _device(call: Call) -> str:
    return next((record.content.device for record in call.records), "cpu")


def _pytest() -> list[str]:
    """How pytest is started where torch is; another one on the path may be of another Python."""
    found = shutil.which("pytest")
    if found is not None and Path(found).parent == Path(sys.executable).parent:
        return ["pytest"]
    return [sys.executable, "-m", "pytest"] if find_spec("pytest") is not None else ["pytest"]


_Proven = tuple["Proof", "Background"]


def _on_less(
    smaller: SmallerInputs, proof: Proof, background: Background, replays: Replays
) -> tuple[_Proven | None, str]:
    """The test on smaller inputs, and what is said of it; none where it would tell another story than the whole one."""
    from lockstep.wings.replay.standalone.failing import failing
    from lockstep.wings.replay.standalone.folder import ORIGINAL, Smaller, file_name
    from lockstep.wings.replay.standalone.proof import proof_of

    one, shrunk = smaller.one, smaller.shrunk
    if shrunk is None or not shrunk.cut.ranges:
        return None, f"\n{smaller.words}"
    makes = shrunk.makes
    try:
        whole, like = replays.on_cut(one.call, one.chosen.like, makes, Cut())
        fails = failing(proof_of(whole, like=like))
        call, like = replays.on_cut(one.call, one.chosen.like, makes, shrunk.cut)
        part = proof_of(call, like=like)
        fails_too = failing(part)
    except CannotReplay as error:
        return None, f"\nIt is on all inputs: on fewer it cannot be written down ({error})."
    if not fails_too or not fails_too <= fails:
        return None, "\nIt is on all inputs: on fewer the test would not fail as it does on all."
    verb = "computes" if makes is Makes.CALL else "recorded"
    background_of_part = replace(
        background,
        results=shrunk.after,
        smaller=Smaller(shapes_of(one.call, shrunk.cut), smaller.words, verb),
    )
    return (part, background_of_part), (
        f"\nIt is on the smaller inputs; original/{file_name(proof, ORIGINAL)} is the same on all of them."
    )


def tested(done: list[ReplayedCall], story: Story | None) -> ReplayedCall:
    """The call that a test is written of: what an origin's story is about, or what is furthest beyond what is allowed.

    Raises UsageError if no call is beyond what is allowed and there are several.
    """
    return story.tested if story is not None and story.tested is not None else _furthest(done)


def _furthest(done: list[ReplayedCall]) -> ReplayedCall:
    held = [one for one in done if one.held]
    if not held:
        why = next((one.refused for one in done if one.refused), "it gives nothing")
        raise UsageError(f"no test can be written: nothing was run again ({why})")
    worst = max(held, key=lambda one: one.worst)
    if worst.worst > 1.0 or len(held) == 1:
        return worst
    raise UsageError(
        f"a test of which call? {len(held)} were run again, and all are sound; give one with --only and --steps"
    )
