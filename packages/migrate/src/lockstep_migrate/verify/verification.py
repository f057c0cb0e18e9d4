"""`lockstep migrate verify`: run the original and the migrated files, record both, and compare."""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from lockstep.compare import Comparison, compare_recordings, headline, tally_of
from lockstep.errors import ExitCode, UsageError
from lockstep.terminal import counted
from lockstep_migrate.files.collection import Collection
from lockstep_migrate.plan import Plan
from lockstep_migrate.verify.migrated_lines import Behinds
from lockstep_migrate.verify.screen import Result, Verification, print_verification
from lockstep_migrate.verify.trials import STEPS, Trial, Trials

_LAST_LINES = 6
_NEUTRAL = "neutral"
_FOREIGN = (
    "Migrate to neutral to prove the rewriting here, or record both, each where it runs, and compare them:"
    " lockstep record, lockstep compare."
)
_AROUND = (
    "It is installed from there, or named by its absolute path inside a script. Set PYTHONPATH to the folder that it"
    " is imported from, or use relative paths."
)
_REPEAT = (
    "This is the original against itself. Make it repeat itself (verify fixes the seeds of Python, NumPy and torch;"
    " what it draws elsewhere, from the clock or the system, is its own), and run this again."
)
_CPU_ONLY = "Code that only runs where an accelerator is did not run here: do this again on a machine that has one."
_NEEDS_CUDA = re.compile("cuda|nvidia|nccl", re.IGNORECASE)


def verify(
    plan: Plan,
    collection: Collection,
    command: tuple[str, ...],
    *,
    report: Path | None = None,
    outputs: Iterable[Path] = (),
    to_error: bool = False,
) -> int:
    """Run a command with the original and with the migrated files, and print how they compare.

    Both run in copies of the project, with the same seed, and are ended after the first steps. Where they differ, the
    copies, the recordings and what the command printed are kept.

    Returned: 0 if they agree, 1 if they differ, 2 if nothing can be said here.
    Raises UsageError if the command cannot be started.
    """
    if not plan.new_files and not any(file.changed for file in plan.files):
        nothing = Verification(Result.VERIFIED, "no file changes, so there is nothing to compare")
        print_verification(nothing, to_error=to_error)
        return nothing.result.exit_code
    folder = Path(tempfile.mkdtemp(prefix="lockstep-verify-")).resolve()
    keep = False
    try:
        results = folder / "results" if report is None else report.resolve() / "verification"
        trials = Trials(plan, collection, command, folder, results, outputs)
        verification = _Verifier(plan, collection, command, trials).verification()
        keep = verification.result.exit_code != 0
        if keep:
            kept = f"Copies, recordings and what the command printed are kept in {folder}"
            kept += "" if report is None else f" and {results}"
            verification = replace(verification, notes=(*verification.notes, kept))
        elif report is not None:
            kept = f"The recordings and what the command printed are in {results}"
            verification = replace(verification, notes=(*verification.notes, kept))
        print_verification(verification, to_error=to_error)
        return verification.result.exit_code
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def check_command(command: tuple[str, ...], outputs: Iterable[Path]) -> None:
    """Check a command before anything is written.

    Raises UsageError if it does not exist, or names what is to be written to one of `outputs`.
    """
    if shutil.which(command[0]) is None:
        raise UsageError(
            f"{command[0]}: command not found; give the command as you would type it, after --"
        )
    resolved = [output.resolve() for output in outputs]
    for word in command:
        place = Path(word).resolve()
        if any(place.is_relative_to(output) for output in resolved):
            raise UsageError(
                f"{word}: is one of the migrated files; give verify the command that runs the"
                " original, it runs both"
            )


class _Verifier:
    """Decides what two runs of a command say about a migration."""

    def __init__(
        self, plan: Plan, collection: Collection, command: tuple[str, ...], trials: Trials
    ) -> None:
        self._plan, self._collection, self._command = plan, collection, command
        self._trials = trials
        self._behinds = Behinds(plan)

    def verification(self) -> Verification:
        """Run what has to be run, and say what it proves."""
        original = self._trials.original
        if original.code and not original.has_steps:
            return self._original_failed(original)
        migrated = self._trials.migrated
        if migrated.code and not original.code:
            return self._migrated_failed(migrated)
        if not original.recorded.recording.ranks and not migrated.recorded.recording.ranks:
            found = self._by_output(original, migrated)
        else:
            found = self._not_of_the_copy(migrated) or self._by_tensors(original, migrated)
        return replace(found, notes=(*found.notes, *self._notes(original, migrated)))

    # -- what ran

    def _original_failed(self, original: Trial) -> Verification:
        last = original.last_lines(_LAST_LINES)
        notes = []
        if any(map(_NEEDS_CUDA.search, last)):
            notes.append("It asks for CUDA: run this on a machine that has it.")
        migrated = self._trials.migrated
        if migrated.has_steps:
            record = ["lockstep", "record", "-o", "original", "--steps", STEPS, "--seed", "0", "--"]
            notes.append(
                "The migrated files do run here, and are recorded. To compare, record the original where it runs,"
                f" with {shlex.join([*record, *self._command])}, copy that to here, and give:"
                f" lockstep compare original {migrated.recorded.recording.path}"
            )
        elif migrated.code:
            notes.append(f"The migrated files do not run here either (exit code {migrated.code}).")
        return Verification(
            Result.UNPROVEN,
            f"the original does not run here (exit code {original.code}); it said last:",
            last_lines=last,
            notes=tuple(notes),
        )

    def _migrated_failed(self, migrated: Trial) -> Verification:
        last, target = migrated.last_lines(_LAST_LINES), self._plan.target
        foreign = target != _NEUTRAL and not migrated.has_steps
        if foreign and re.search(rf"No module named|{re.escape(target)}", "\n".join(last)):
            return Verification(
                Result.UNPROVEN,
                f"the migrated files are for {target}, which is not here; they said last:",
                last_lines=last,
                notes=(_FOREIGN,),
            )
        place = migrated.failing_place()
        return Verification(
            Result.FAILED,
            f"the migrated files end with exit code {migrated.code}, the original with 0;"
            " they said last:",
            last_lines=last,
            behind=self._behinds.of_place(place) if place is not None else (),
        )

    def _not_of_the_copy(self, migrated: Trial) -> Verification | None:
        """Whether the command went around the copy to the original files."""
        root = self._collection.root.resolve()
        changed = {str(root / file.path) for file in self._plan.files if file.changed}
        around = sorted(changed & migrated.sources())
        if not around:
            return None
        return Verification(
            Result.UNPROVEN,
            f"the command runs {around[0]} itself, not a copy of it that is migrated",
            notes=(_AROUND,),
        )

    # -- what it printed

    def _by_output(self, original: Trial, migrated: Trial) -> Verification:
        before, after = original.printed().splitlines(), migrated.printed().splitlines()
        why = f"no tensors were compared: {original.recorded.ended.why_nothing}"
        if not before and not after:
            return Verification(
                Result.UNPROVEN, "nothing was recorded, and nothing printed", notes=(why,)
            )
        if before == after:
            lines = counted(len(before), "line")
            return Verification(
                Result.SAME_OUTPUT,
                f"both end with exit code 0 and print the same {lines}",
                notes=(why,),
            )
        if self._trials.again.printed().splitlines() != before:
            return Verification(
                Result.UNPROVEN,
                "nothing was recorded, and the original prints something else each time",
                notes=(why,),
            )
        number = _first_difference(before, after)
        shown = [
            f"{side}: {lines[number] if number < len(lines) else '(ends before)'}"
            for side, lines in (("original", before), ("migrated", after))
        ]
        return Verification(
            Result.DIFFERS,
            f"line {number + 1} of what it prints:",
            last_lines=tuple(shown),
            notes=(why,),
        )

    # -- what it computed

    def _by_tensors(self, original: Trial, migrated: Trial) -> Verification:
        reference, candidate = original.recorded.recording, migrated.recorded.recording
        comparison = compare_recordings(reference, candidate)
        if _is_equal(comparison):
            return Verification(Result.VERIFIED, _equality(comparison), notes=_only_cpu(comparison))
        again = self._trials.again.recorded.recording
        own = compare_recordings(reference, again)
        if _is_equal(own):
            return self._judged(comparison, "the original repeats itself bit by bit")
        if own.exit_code() != ExitCode.AGREES:
            return _unrepeatable(own)
        comparison = compare_recordings(reference, candidate, noise=[again])
        return self._judged(comparison, "what the original differs by from itself is allowed for")

    def _judged(self, comparison: Comparison, how: str) -> Verification:
        code = comparison.exit_code()
        if code == ExitCode.FAILED:
            words = "nothing differs, but the two cannot be compared whole"
            return Verification(Result.UNPROVEN, words, comparison=comparison)
        if comparison.other_precision_alone:
            return Verification(Result.AGREES, headline(comparison), notes=_only_cpu(comparison))
        if code == ExitCode.AGREES:
            tally = tally_of(comparison.findings)
            return Verification(
                Result.AGREES,
                f"{_compared(comparison)} on {' and '.join(_devices(comparison))}: {tally.equal} are bitwise equal,"
                f" {tally.inside} inside tolerance ({how})",
                notes=_only_cpu(comparison),
            )
        behind: tuple[str, ...] = ()
        if comparison.origins:
            behind = self._behinds.of_origin(self._trials.migrated, comparison.origins[0])
        return Verification(
            Result.DIFFERS,
            f"{how}, but the migrated files compute something else",
            comparison=comparison,
            behind=behind,
        )

    # -- notes

    def _notes(self, original: Trial, migrated: Trial) -> tuple[str, ...]:
        return (
            *self._unloaded(migrated),
            *_exit_codes(original, migrated),
            *_overwritten(original),
        )

    def _unloaded(self, migrated: Trial) -> tuple[str, ...]:
        """Changed files that the command did not load: nothing is known of them."""
        if not migrated.has_steps:
            return ()
        changed = [
            file.path for file in self._plan.files if file.changed and file.path.suffix == ".py"
        ]
        loaded = {migrated.ground.relative(source) for source in migrated.sources()}
        missing = [str(path) for path in changed if path not in loaded]
        if not missing:
            return ()
        count = f"{len(missing)} of {counted(len(changed), 'changed file')}"
        return (f"{count} took no part in it: {_listed(missing)}.",)


def _is_equal(comparison: Comparison) -> bool:
    tally = tally_of(comparison.findings)
    return comparison.exit_code() == ExitCode.AGREES and 0 < comparison.compared == tally.equal


def _equality(comparison: Comparison) -> str:
    alone = comparison.unaligned_reference + comparison.unaligned_candidate
    more = f"; {counted(alone, 'call')} of one of them only" if alone else ""
    return (
        f"{_compared(comparison)} are bitwise equal on {' and '.join(_devices(comparison))}{more}"
    )


def _compared(comparison: Comparison) -> str:
    steps = len({finding.pair.present.step for finding in comparison.findings})
    return f"{counted(comparison.compared, 'tensor')} of {counted(steps, 'step')}"


def _devices(comparison: Comparison) -> list[str]:
    """Where it was computed."""
    return sorted({finding.pair.present.content.device for finding in comparison.findings})


def _only_cpu(comparison: Comparison) -> tuple[str, ...]:
    return (_CPU_ONLY,) if _devices(comparison) == ["cpu"] else ()


_OWN_WORDS = {
    True: "the original differs from itself when it is run again, so nothing is proven by it",
    False: "the original cannot be compared with itself when it is run again, so nothing is proven by it",
}


def _unrepeatable(own: Comparison) -> Verification:
    return Verification(
        Result.UNPROVEN,
        _OWN_WORDS[own.exit_code() == ExitCode.DIFFERS],
        comparison=own,
        notes=(_REPEAT,),
    )


def _exit_codes(original: Trial, migrated: Trial) -> tuple[str, ...]:
    if not original.code and not migrated.code:
        return ()
    codes = f"{original.code} with the original files and {migrated.code} with the migrated ones"
    return (f"The command ended with exit code {codes}.",)


def _overwritten(original: Trial) -> tuple[str, ...]:
    changed = [str(path) for path in original.linked.changed()]
    if not changed:
        return ()
    return (f"The command has written to what is linked, not copied: {_listed(changed)}.",)


def _first_difference(before: list[str], after: list[str]) -> int:
    shorter = min(len(before), len(after))
    return next((n for n in range(shorter) if before[n] != after[n]), shorter)


def _listed(names: list[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"
