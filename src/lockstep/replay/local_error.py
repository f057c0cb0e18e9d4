"""The judge that re-runs single operators: local error, where whole tensors are there.

What cannot hold a local error worth finding is not run again (`lockstep.replay.verdicts.screening`), nor what takes
more memory than a comparison may (`lockstep.replay.calls.refusals`).

What an operator adds on its own is separated from what its inputs bring: each side's call is run
again alone in double precision, on that side's own recorded inputs, forward and backward. With `y`
what was recorded and `f64` the operator in double precision,

    |y_c - y_r|  <=  |y_c - f64(x_c)|  +  |f64(x_c) - f64(x_r)|  +  |y_r - f64(x_r)|
      difference     candidate's local    inherited                 reference's local error

so a site is an origin where one side's local error is beyond what a sound kernel may be off, however
far apart the inputs are. This is the local error of Herbgrind (Sanchez-Stern, Panchekha, Lerner,
Tatlock, PLDI 2018), for tensors instead of scalars. Where neither side is near double precision the
re-run is not faithful, and the error model decides.

`RoundingJudge` needs less: a result in 16 bits that adds a bias, known by its sketch, and its inputs whole, as `--save
program` has those of the first layers. Statistics cannot tell a product that is rounded before its bias is added from
one that is truncated, where a result is small (`lockstep.judge.error_model`); the inputs can, see
`lockstep.replay.verdicts.rounded_products`.

Nothing here loads torch before the first re-run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from lockstep.core.finding import BY_LOCAL_ERROR, CallPair
from lockstep.core.manifest import MEMORY_BYTES
from lockstep.core.operators import operator_of
from lockstep.core.records import Call, TensorRecord
from lockstep.core.remarks import On, Remark
from lockstep.core.site import Role
from lockstep.judge.protocol import Judge, Judgement, Operation, Region, is_gradient
from lockstep.measure.axis_order import keeps_order
from lockstep.measure.measured_pair import Measured
from lockstep.replay.calls.refusals import CannotReplay, Crashed, TooLarge, check_memory
from lockstep.replay.questions import (
    Answers,
    FollowsByRounding,
    OfOperator,
    OfPassage,
    OfUpdate,
    Question,
)
from lockstep.replay.verdicts.screening import screened, screened_passage, screened_update

NAME = BY_LOCAL_ERROR

_REGION = "calls without partner"
"""What a region is called among operators."""


class LocalErrorJudge:
    """Judges by re-running single operators; a `lockstep.judge.protocol.Judge`.

    Parameters
    ----------
    fallback
        Judges calls that cannot be run again: calls without partner, custom functions, random operators,
        tensors that were not saved whole.
    memory_bytes
        Memory that the whole process may take: a call whose re-run takes more is left to `fallback`.
    before_rerun
        Called with the operator before each re-run.
    reruns
        Makes the object that runs calls again, with this many bytes of memory; in this process by default.

    Attributes
    ----------
    decided
        How many outputs were judged by local error.
    refused
        Why others were not, with how often, per operator.
    """

    def __init__(
        self,
        fallback: Judge,
        *,
        memory_bytes: int = MEMORY_BYTES,
        before_rerun: Callable[[str], None] | None = None,
        reruns: Callable[[int], Answers] | None = None,
    ) -> None:
        self.decided = 0
        self.refused: dict[tuple[str, str], int] = {}
        self._fallback = fallback
        self._memory_bytes = memory_bytes
        self._too_large: dict[str, tuple[int, int]] = {}
        self._crashed: dict[str, str] = {}
        self._before_rerun = before_rerun
        self._make_reruns = reruns or _here
        self._verdicts: Answers | None = None

    @property
    def name(self) -> str:
        """As it stands under `judged_by`: the fallback's while nothing else decided."""
        return NAME if self.decided else self._fallback.name

    @property
    def looks_at_set_up(self) -> bool:
        """As the fallback does."""
        return self._fallback.looks_at_set_up

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        """Judge one output, gradient or parameter gradient of an aligned call."""
        calls = operation.calls
        tensors = (*operation.entering, *operation.outputs, output)
        other_layout = any(item.pair.layout is not None for item in tensors)
        explained = self._fallback.operator(operation, output)
        if output.equal or other_layout or not _is_whole(calls):
            return explained

        def seen() -> Judgement | None:
            found = screened(operation, output, explained)
            if found is None and calls is not None:
                check_memory(calls, self._memory_bytes, backward=is_gradient(output))
            return found

        question = OfOperator(output, operation.op, calls)
        return _over(explained, self._tried(operation.op, seen, question))

    def passage(
        self, sources: Sequence[Measured], target: Measured, *, region: Region
    ) -> Judgement:
        """Judge a tensor against those that the calls of a region made it from, by running these again."""
        explained = self._fallback.passage(sources, target, region=region)
        calls = (*region.reference_calls, *region.candidate_calls)
        pair = target.pair
        whole = all(one is None or one.content.loader for one in (pair.reference, pair.candidate))
        in_order = pair.layout is None and all(keeps_order(one.pair.layout) for one in sources)
        if target.equal or region.unseen or not (in_order and whole):
            return explained
        if is_gradient(target) or not calls:
            return explained
        question = OfPassage(target, tuple(sources), region)
        seen = partial(screened_passage, target, explained)
        return _over(explained, self._tried(_REGION, seen, question))

    def update(
        self, entering: Sequence[Measured], output: Measured, *, calls: CallPair | None = None
    ) -> Judgement:
        """Judge a parameter or a state after an optimizer step, by replaying the update.

        Of two optimizers of other classes each update may be sound, and the runs part all the same: that one run is
        sound by itself says nothing of the other then.
        """
        other_layout = output.pair.layout is not None
        explained = self._fallback.update(entering, output, calls=calls)
        if output.equal or other_layout or calls is None or not _is_whole(calls):
            return explained
        if _are_of_other_classes(calls):
            return explained
        seen = partial(screened_update, calls, output, explained)
        return _over(explained, self._tried(calls.present.site.op, seen, OfUpdate(output, calls)))

    def _tried(
        self, op: str, seen: Callable[[], Judgement | None], question: Question[Judgement]
    ) -> Judgement | None:
        """What a look at the recordings or else a re-run says; None where neither can tell."""
        try:
            judgement = seen() or self._reruns(op).ask(question)
        except TooLarge as error:
            count, most = self._too_large.get(op, (0, 0))
            self._too_large[op] = count + 1, max(most, error.needed_bytes)
            return None
        except Crashed as error:
            self._crashed[op] = str(error)
            return None
        except (CannotReplay, MemoryError, RuntimeError) as error:
            # torch reports memory that it cannot get as a RuntimeError.
            key = (op, str(error))
            self.refused[key] = self.refused.get(key, 0) + 1
            return None
        self.decided += 1
        return replace(judgement, judged_by=NAME)

    def notes(self) -> list[str]:
        """Return notes about calls that were not run again because of their size, or because they crashed."""
        crashed = [Remark(On.CRASHED, names=(op,), reason=why) for op, why in self._crashed.items()]
        allowed = self._memory_bytes
        return [*self._fallback.notes(), *crashed] + [
            Remark(
                On.TOO_LARGE, names=(op,), count=count,
                numbers={"needed_bytes": most, "allowed_bytes": allowed},
            )
            for op, (count, most) in self._too_large.items()
        ]  # fmt: skip

    def _reruns(self, op: str) -> Answers:
        """What runs operators again."""
        if self._verdicts is None:
            self._verdicts = self._make_reruns(self._memory_bytes)
        if self._before_rerun is not None:
            self._before_rerun(op)
        return self._verdicts


def _over(explained: Judgement, found: Judgement | None) -> Judgement:
    """What a re-run says in place of what is said without one; it tells where it acquits what that convicts."""
    if found is None:
        return explained
    return replace(found, overrules=explained.unexplained and not found.unexplained)


def _here(memory_bytes: int) -> Answers:
    from lockstep.replay.process.answered_here import Verdicts  # loads torch

    return Verdicts(memory_bytes)


def _are_of_other_classes(calls: CallPair) -> bool:
    """Whether two updates were made by optimizers of two classes."""
    left, right = calls.reference, calls.candidate
    return left is not None and right is not None and left.site.op != right.site.op


def _is_whole(calls: CallPair | None) -> bool:
    """Whether both calls are there with every tensor that went in."""
    return (
        calls is not None
        and calls.reference is not None
        and calls.candidate is not None
        and _has_tensors(calls.reference)
        and _has_tensors(calls.candidate)
    )


def _has_tensors(call: Call) -> bool:
    return bool(call.records) and all(
        record.content.loader is not None or record.content.numel == 0 for record in call.records
    )


# --- by sketches ------------------------------------------------------------------------------------------------------

_WORDS = "each run rounds what its inputs give, one of them the product before its bias is added"


class RoundingJudge:
    """Asks for that proof before an output is called unexplained; a `lockstep.judge.protocol.Judge`.

    Parameters
    ----------
    fallback
        Judges everything else.
    reruns
        Runs calls again.
    """

    def __init__(self, fallback: Judge, reruns: Answers) -> None:
        self._fallback, self._reruns = fallback, reruns

    @property
    def name(self) -> str:
        """As it stands under `judged_by`: the fallback's."""
        return self._fallback.name

    @property
    def looks_at_set_up(self) -> bool:
        """As the fallback does."""
        return self._fallback.looks_at_set_up

    def notes(self) -> Sequence[str]:
        """Return the fallback's."""
        return self._fallback.notes()

    def operator(self, operation: Operation, output: Measured) -> Judgement:
        """Judge one output, gradient or parameter gradient of an aligned call."""
        found = self._fallback.operator(operation, output)
        if not (found.unexplained and all(one.equal for one in operation.entering)):
            return found
        if not self._follow(output, operation.calls):
            return found
        return Judgement.handed_on(output, floor=output.distance, inherited=0.0, words=_WORDS)

    def passage(
        self, sources: Sequence[Measured], target: Measured, *, region: Region
    ) -> Judgement:
        """Judge a tensor against those that the calls of a region made it from, as the fallback does."""
        return self._fallback.passage(sources, target, region=region)

    def update(
        self, entering: Sequence[Measured], output: Measured, *, calls: CallPair | None = None
    ) -> Judgement:
        """Judge a parameter or a state after an optimizer step, as the fallback does."""
        return self._fallback.update(entering, output, calls=calls)

    def _follow(self, output: Measured, calls: CallPair | None) -> bool:
        """Whether both results follow from their inputs by rounding alone."""
        pair = output.pair
        if calls is None or pair.reference is None or pair.candidate is None:
            return False
        if calls.reference is None or calls.candidate is None:
            return False
        if not _are_set_alike(calls.reference, calls.candidate):
            return False  # each follows from what it was asked for
        both = [(calls.reference, pair.reference), (calls.candidate, pair.candidate)]
        questions = [_question(call, record) for call, record in both]
        try:
            return all(one is not None and self._reruns.ask(one).by_rounding for one in questions)
        except (CannotReplay, Crashed, MemoryError, RuntimeError):
            return False  # the fallback's answer stands


def _are_set_alike(one: Call, two: Call) -> bool:
    """Whether two calls are of one operator with the same settings."""
    return one.site.op == two.site.op and one.arguments == two.arguments


def _question(call: Call, result: TensorRecord) -> FollowsByRounding | None:
    """The question whether a result follows by rounding; None where it cannot be asked."""
    known, entering = result.statistics, call.with_role(Role.INPUT)
    product, sketch = operator_of(call.site.op).product, result.content.sketch
    adds = product is not None and product.added is not None and len(entering) == 3
    is_result = result.role is Role.OUTPUT and len(call.with_role(Role.OUTPUT)) == 1
    in_16_bits = result.dtype in ("bfloat16", "float16")
    finite = known is not None and not (known.nan_count or known.inf_count)
    whole = all(one.content.loader is not None for one in entering)
    if sketch is None or not (adds and is_result and in_16_bits and finite and whole):
        return None
    return FollowsByRounding(call, sketch)
