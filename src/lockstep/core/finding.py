"""The result of comparing two recordings: metrics, findings, origins and the comparison as a whole."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from lockstep.core.comparison_face import Shown
from lockstep.core.dtypes import least_relative_rounding
from lockstep.core.errors import ExitCode
from lockstep.core.laws import LawsVerdict
from lockstep.core.manifest import Event
from lockstep.core.not_compared import NotCompared
from lockstep.core.reason import Reason
from lockstep.core.records import Call, Content, TensorRecord, is_other_checksum_alone
from lockstep.core.site import Phase, Role, Site
from lockstep.core.step_rows import StepLogsCompared
from lockstep.core.told_facts import Told
from lockstep.core.windows import StateDifference

if TYPE_CHECKING:
    from lockstep.core.rank_findings import EqualRank

Axes = tuple[int, ...]


class Outcome(str, Enum):
    """The result for one pair of records."""

    AGREE = "agree"
    DIFFER = "differ"
    MISSING = "missing"
    INCOMPARABLE = "incomparable"


BY_LOCAL_ERROR = "local-error"
"""Who judged what was found by running one call alone in double precision."""


class Verdict(str, Enum):
    """The result for two recordings."""

    AGREE = "agree"
    DIVERGED = "diverged"
    INCOMPARABLE = "incomparable"


class Evidence(str, Enum):
    """Where the numbers of a measurement come from, best first."""

    DIGEST = "digest"
    TENSORS = "tensors"
    SKETCH = "sketch"
    STATISTICS = "statistics"
    NONE = "none"


class Kind(str, Enum):
    """The kind of a difference, in one word or two."""

    FAULT = "fault"
    NOISE = "noise"
    INHERITED = "inherited"
    AMPLIFIED = "amplified"
    MORE_ACCURATE = "more accurate than the reference"
    UNIFORM = "uniform precision change"
    DECISION = "decision flipped inside the noise"
    RANDOM = "random stream differs"
    RECOMPUTED = "computed again in backward with other random numbers"
    SETUP = "set-up differs"


class Instead(str, Enum):
    """The computation that explains a wrong result."""

    OPERATOR = "another operator"
    SETTING = "another setting"
    FACTOR = "a constant factor"
    SIGN = "the other sign"
    OFFSET = "a constant offset"
    ELEMENT = "one element"
    SLICE = "part of an axis"
    NOT_FINITE = "not finite"
    PRECISION = "another precision"
    ELSEWHERE = "the right result elsewhere"
    INPUT = "another input"
    TERM = "a missing or extra term"


@dataclass(frozen=True, slots=True)
class Explanation:
    """The candidate's computation in place of the right one, found by computing it.

    `share` is the part of the squared error that it explains, `1 - (residual / error)^2`, dimensionless.
    """

    kind: Instead
    words: str
    share: float


@dataclass(slots=True)
class Metrics:
    """How far a candidate tensor is from its reference; NaN where a number is not known.

    The formulae and their sources stand at `lockstep.measure.metrics`. With `Evidence.SKETCH` the cosine, `rel_l2` and
    `rmse` are estimates; with `Evidence.STATISTICS` `rel_l2` is a lower bound.
    """

    evidence: Evidence
    cosine: float = float("nan")
    max_abs: float = float("nan")
    accumulated_relative: float = float("nan")
    rel_l2: float = float("nan")
    kl_divergence: float = float("nan")
    standard_deviation: float = float("nan")
    mean_abs: float = float("nan")
    rmse: float = float("nan")
    max_relative: float = float("nan")
    mean_relative: float = float("nan")
    max_ulp: float = float("nan")
    within_1e_3: float = float("nan")
    within_5e_3: float = float("nan")
    nan_mismatch: int = 0
    inf_mismatch: int = 0


@dataclass(slots=True)
class Pair:
    """A reference record and the candidate record aligned with it; one side is None where the other has no partner.

    `method` says how the alignment was found. `layout` is the order that the reference's axes have in the candidate,
    extents of 1 left out, where both hold the same elements in different shapes; else None.
    """

    reference: TensorRecord | None
    candidate: TensorRecord | None
    method: str = ""
    layout: Axes | None = None

    @property
    def present(self) -> TensorRecord:
        """The reference record, or the candidate's where there is none."""
        record = self.reference or self.candidate
        assert record is not None
        return record

    @property
    def both(self) -> tuple[TensorRecord, TensorRecord]:
        """The records of both sides, where neither is missing."""
        assert self.reference is not None
        assert self.candidate is not None
        return self.reference, self.candidate

    @property
    def contents(self) -> tuple[Content, Content]:
        """The contents of both sides, where neither is missing."""
        reference, candidate = self.both
        return reference.content, candidate.content


@dataclass(slots=True)
class Finding:
    """The result for one pair: outcome, numbers, tolerance and the reason.

    `difference` is the symmetric relative Euclidean distance, `|c - r| / max(|c|, |r|)`; `tolerance` its limit
    here; `inherited` tells that the site's inputs explain it; `judged_by` which source of knowledge decided. `kind` is
    None for equal tensors and those that could not be judged.

    `floor` is the part of the tolerance that needs no difference of the inputs, relative like `difference`: the most
    that rounding at this site alone may make of the pair. It is the same for an origin and for an inherited difference,
    whose tolerance is wider. It is never below the unit roundoff of the dtype, by which numbers stand apart, 0 for
    whole numbers, and NaN for equal tensors and where nobody has judged by a floor.

    `overrules` tells that a re-run acquits the pair, and without one the judge convicts it.
    """

    pair: Pair
    outcome: Outcome
    metrics: Metrics
    difference: float
    tolerance: float
    reason: Reason
    inherited: bool = False
    kind: Kind | None = None
    judged_by: str = ""
    floor: float = float("nan")
    overrules: bool = False

    @property
    def margin(self) -> float:
        """How many times the tolerance the difference is."""
        if self.tolerance > 0:
            return self.difference / self.tolerance
        return float("inf") if self.difference > 0 else 0.0

    @property
    def rounds(self) -> bool:
        """Whether rounding is allowed here: the tolerance is no less than that of one element of the mean size.

        Where nothing rounds, as in a cast, tolerances are 0, or some spacings of the smallest subnormal numbers.
        """
        records = (self.pair.reference, self.pair.candidate)
        return not self.tolerance < max(
            (least_relative_rounding(one.dtype, one.content.numel) for one in records if one),
            default=0.0,
        )

    @property
    def is_by_checksum_alone(self) -> bool:
        """Return whether only checksums of a different tool differ, which is not judged."""
        left, right = self.pair.reference, self.pair.candidate
        if (
            left is None
            or right is None
            or self.outcome not in (Outcome.AGREE, Outcome.INCOMPARABLE)
        ):
            return False
        measured = self.metrics.evidence in (Evidence.STATISTICS, Evidence.NONE)
        return measured and is_other_checksum_alone(left.content, right.content)


@dataclass(frozen=True, slots=True)
class NamedSite:
    """A site as it is named to the user.

    `tensor` names the parameter for the phases init and optimizer, else the argument or "". `source` is `file:line` of
    the candidate's (else the reference's) call in the user's code.
    """

    rank: str
    step: int
    phase: Phase
    module: str
    module_class: str
    op: str
    call: int
    role: Role
    index: int
    tensor: str
    source: str


@dataclass(frozen=True, slots=True)
class Origin(NamedSite):
    """A site whose inputs agree and whose outputs do not.

    `library` is `file:line` of the library which the call in the user's code calls, or "".
    `explanation` says how the candidate computes instead, where that was found. `beside` tells of which tree beside
    the model the module is a part ("a second QNetwork, which no optimizer updates"), or "". `wrong_run` is "reference"
    or "candidate" where one of the two calls alone was shown to be wrong, or "". `between` says between which modules
    it lies where operators were not recorded, or "". `after_backward` tells that an operator outside of all modules ran
    when the backward of the step was over: clipping by hand, an average of gradients.
    """

    finding: Finding
    reason: Reason
    sequence: int = 0
    kind: Kind = Kind.FAULT
    library: str = ""
    explanation: Explanation | None = None
    beside: str = ""
    wrong_run: str = ""
    between: str = ""
    after_backward: bool = False


@dataclass(frozen=True, slots=True)
class CallPair:
    """Two aligned calls, or one without a partner; `method` says how the alignment was found.

    With `only_results` the two return the same tensor but need not compute the same: a fused operator and the last of
    its parts. Then just what they return corresponds, and it is judged with the calls around that have no partner.
    """

    reference: Call | None
    candidate: Call | None
    method: str
    only_results: bool = False

    @property
    def present(self) -> Call:
        """The reference call, or the candidate's where there is none."""
        call = self.reference or self.candidate
        assert call is not None
        return call

    @property
    def both(self) -> tuple[Call, Call]:
        """The calls of both sides, where neither is missing."""
        assert self.reference is not None
        assert self.candidate is not None
        return self.reference, self.candidate


@dataclass(frozen=True, slots=True)
class UniformChange:
    """A class of sites that all compute in a different precision in one of the runs.

    `name` says it in words ("matmul inputs round to fp16"), `members` are its sites in order of time. `of` counts the
    sites that might show it where it is in part of these, as one run's set-up explains; else it is 0. `is_of_dtypes`
    tells that recorded dtypes show it, rather than how far numbers are off.
    """

    name: str
    members: tuple[Site, ...]
    of: int = 0
    is_of_dtypes: bool = False


@dataclass(frozen=True, slots=True)
class UnalignedCalls:
    """Calls of one operator, from one line and in one module, that one run makes and the other does not.

    `side` is the run that makes them ("reference" or "candidate"), `step` the first one with them, `count` how many
    there are in all. `source` is the user's line, `library` that of the library which it calls, or "". Calls of one
    `region` stand between the same two aligned calls, or inside of the same module. `inside` tells that the module
    around has no partner either, `recomputed` that activation checkpointing ran them again. `returns_as` is the other
    run's operator that returns the same by other means, or "". `idiom` is what the calls are known as together with
    those around ("gradient clipping by norm"), or ""; `beside` tells that nothing trained depends on them, `around`
    that they only hold calls that are judged themselves, as a wrapper around the model does.
    """

    side: str
    rank: str
    step: int
    phase: Phase
    module: str
    op: str
    source: str
    library: str
    count: int
    region: int
    inside: bool = False
    recomputed: bool = False
    returns_as: str = ""
    idiom: str = ""
    beside: bool = False
    around: bool = False


@dataclass(frozen=True, slots=True)
class OtherClass:
    """A module path whose module has a different class in the candidate."""

    module: str
    reference: str
    candidate: str

    def __str__(self) -> str:
        name = self.module or "the model"
        return (
            f"{name} is a {self.reference} in the reference and a {self.candidate} in the candidate"
        )


@dataclass(frozen=True, slots=True)
class SetupDifference:
    """Something that the two runs were set up with otherwise, in words: versions, threads, precision.

    `setting` is its bare name, where `name` says more: of a module's or a generator's.
    """

    name: str
    reference: str
    candidate: str
    setting: str = ""

    @property
    def words(self) -> str:
        """Return the setting's name and its value in each run."""
        return f"{self.name} {self.reference} / {self.candidate}"

    def __str__(self) -> str:
        return f"set-up: {self.words}"


class Course(str, Enum):
    """How two trainings compare after their recorded steps."""

    EQUAL = "equal"
    APART = "part later"
    NOISE = "apart as the recorded steps are"
    UNKNOWN = "not recorded"


@dataclass(frozen=True, slots=True)
class Ends:
    """Two trainings after their recorded steps, and the distance of their ends.

    course: What became of them.
    reasons: What says so.
    certain: With `Course.APART`: whether it is more than rounding can make of it.
    parted_at: The first step whose loss differs where the recorded steps are equal bit by bit; None where none was
        seen.
    final_losses: The last loss of the reference and of the candidate, as far as both went.
    rel_l2, largest, largest_rel_l2: How far apart all parameters ended, `|c - r| / max(|c|, |r|)`, dimensionless and
        estimated from sketches; the parameter that is furthest apart, and how far. NaN and "" where it is not known.
    others_apart: Buffers and optimizer state that differ at the end where no parameter does.
    steps_to_record: Steps of both that show where the runs part, the first and the one behind the last; None where they
        do not.
    notes: What else is known.
    rank: The rank that decides, of several.
    """

    course: Course
    reasons: tuple[Told, ...] = ()
    certain: bool = False
    parted_at: int | None = None
    final_losses: tuple[float | None, float | None] = (None, None)
    rel_l2: float = float("nan")
    largest: str = ""
    largest_rel_l2: float = float("nan")
    steps_to_record: tuple[int, int] | None = None
    notes: tuple[Told, ...] = ()
    rank: str = ""
    others_apart: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Return the reasons as one sentence, "" without any."""
        words = "; ".join(self.reasons)
        return f"{self.rank}: {words}" if self.rank and words else words


@dataclass(frozen=True, slots=True)
class WhatNext:
    """The command to run next, on one line and quoted for a shell, and its purpose in `words`."""

    words: str
    command: str


@dataclass(frozen=True, slots=True)
class RanksCompared:
    """Numbers of the ranks that were compared, and how many the trainings had."""

    numbers: tuple[int, ...] = ()
    world_size: int = 0

    @property
    def are_all(self) -> bool:
        """Whether none was left out."""
        return len(self.numbers) >= self.world_size


@dataclass(frozen=True, slots=True)
class JudgedWindow:
    """One window that both trainings began with one state.

    Parameters
    ----------
    steps
        Its steps.
    verdict
        Its own verdict.
    origin
        Its first origin, None without one.
    differed
        Counts and generators that were not equal before the state was set, though they must be on every device.
    not_set
        Parts of the state that could not be set.
    distance
        How far the trained parameters were apart before, `|c - r| / |r|` over all of them, dimensionless; None where
        that is not known.
    left
        What the first step left otherwise after its update: means of the weights.
    precision
        The precision that one run computes in here and not in a window before or after, in words; "" for none.
    """

    steps: tuple[int, ...]
    verdict: Verdict
    origin: Origin | None = None
    differed: tuple[StateDifference, ...] = ()
    not_set: tuple[str, ...] = ()
    distance: float | None = None
    left: tuple[StateDifference, ...] = ()
    precision: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison(Shown):
    """Everything that comparing two recordings found.

    `agree` says that every loss, gradient and parameter of every step in `steps` was judged and explained;
    `not_compared` lists the others. `trained` is the number of steps that each training had in all, where it is known.
    `unrecorded` lists models that were trained too and are in no recording. `ends` says how the trainings went on after
    their recorded steps; it is None if that was not to be compared. `compiled` says in words which parts of which run
    were compiled: only the boundary of those was compared. `ranks` are the compared ones. `endings` tells of trainings
    that did not come to their own end, and `crashes` holds those of its sentences that tell of a failure; unless they
    were allowed, they are in `not_compared` too. `laws` is the answer of running both programs again, None if that was
    not done. `windows` are those that both trainings began with one state, empty if none was set; each was compared by
    itself. `step_logs` is the comparison of the rows of all steps, recorded or not, None if there are none. With
    `is_strict`, another precision throughout ends a verb with exit code 1. `not_run_again` names a framework whose
    operators Lockstep cannot run, `unconfirmed` tells of guesses of a mapping file that were not used.
    """

    reference: str
    candidate: str
    verdict: Verdict
    judged_by: str
    origins: tuple[Origin, ...]
    findings: Sequence[Finding]
    inherited: int
    compared: int
    missing: int
    unaligned_reference: int
    unaligned_candidate: int
    not_compared: tuple[NotCompared, ...]
    notes: tuple[Told, ...]
    events: tuple[Event, ...] = ()
    uniform: tuple[UniformChange, ...] = ()
    unaligned_calls: tuple[UnalignedCalls, ...] = ()
    other_classes: tuple[OtherClass, ...] = ()
    setup: tuple[SetupDifference, ...] = ()
    steps: tuple[int, ...] = ()
    trained: tuple[int | None, int | None] = (None, None)
    unrecorded: tuple[str, ...] = ()
    what_next: WhatNext | None = None
    compiled: tuple[str, ...] = ()
    not_run_again: str = ""
    unconfirmed: str = ""
    ends: Ends | None = None
    ranks: RanksCompared = RanksCompared()
    endings: tuple[NotCompared, ...] = ()
    crashes: tuple[NotCompared, ...] = ()
    laws: LawsVerdict | None = None
    windows: tuple[JudgedWindow, ...] = ()
    step_logs: StepLogsCompared | None = None
    is_strict: bool = False

    @property
    def other_precision_alone(self) -> bool:
        """Return whether a different precision throughout is the only difference, with everything judged and no
        operator at fault.
        """
        part_later = self.ends is not None and self.ends.course is Course.APART
        part_later |= self.step_logs is not None and self.step_logs.first is not None
        part_later |= any(one.differed or one.left or one.precision for one in self.windows)
        return bool(self.uniform) and not (self.origins or self.not_compared or part_later)

    @property
    def outcome(self) -> str:
        """The verdict as one word that goes with the exit code: "other-precision" where that is all that differs."""
        return "other-precision" if self.other_precision_alone else self.verdict.value

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        """The exit code of a verb that compares; the one place that decides it.

        Parameters
        ----------
        strict
            Whether another precision throughout, of which no operator is at fault, is a difference too.

        Returns
        -------
        ExitCode
            0: they agree, or all that differs is another precision throughout; 1: they differ; 2: it cannot be said.
        """
        if self.other_precision_alone and not (strict or self.is_strict):
            return ExitCode.AGREES
        return _EXIT_CODES[self.verdict]

    def unless(self, why: str) -> Comparison:
        """The same, but that it cannot be said to agree where there is a reason (`why` is not "") against that."""
        if not why or self.exit_code() != ExitCode.AGREES:
            return self
        not_compared = (NotCompared.of(why), *self.not_compared)
        verdict = verdict_of(differs=self.verdict is Verdict.DIVERGED, not_compared=not_compared)
        return replace(self, verdict=verdict, not_compared=not_compared)


def at_hand(findings: Iterable[Finding]) -> Iterable[Finding]:
    """Return findings without those of equal ranks that were not opened, see `lockstep.core.rank_findings`."""
    known: Iterable[Finding] = getattr(findings, "at_hand", findings)
    return known


def equal_ranks(findings: Iterable[Finding]) -> Iterable[EqualRank[Finding]]:
    """Return the equal ranks that were not opened; none where all were."""
    known: Iterable[EqualRank[Finding]] = getattr(findings, "equal_ranks", ())
    return known


def verdict_of(*, differs: bool, not_compared: Collection[str]) -> Verdict:
    """Return the verdict of a comparison; the one place where that is decided.

    Parameters
    ----------
    differs
        Whether something differs beyond its tolerance, or in another precision throughout.
    not_compared
        The parts that were not compared or not judged.
    """
    if differs:
        return Verdict.DIVERGED
    return Verdict.INCOMPARABLE if not_compared else Verdict.AGREE


_EXIT_CODES = {
    Verdict.AGREE: ExitCode.AGREES,
    Verdict.DIVERGED: ExitCode.DIFFERS,
    Verdict.INCOMPARABLE: ExitCode.FAILED,
}
