"""The verdict where the laws were applied: what they find is an origin, what they prove is none.

A step of which all was run again needs no alignment of its calls: both programs give the same on the same numbers, and
each run recorded what its program gives. Then a pair of calls that differs is two spellings of one function.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import replace

from lockstep.core.finding import (
    BY_LOCAL_ERROR,
    Comparison,
    Course,
    Evidence,
    Finding,
    Kind,
    Metrics,
    Origin,
    Outcome,
    Pair,
    verdict_of,
)
from lockstep.core.laws import BY_LAWS, Breach, Law, LawsVerdict, Quantity, StepBreach
from lockstep.core.not_compared import WhyNot
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call, TensorRecord
from lockstep.core.remarks import On, Remark
from lockstep.core.site import Phase, Role
from lockstep.core.told_facts import Told
from lockstep.laws.applied import JudgedStep, LawsApplied
from lockstep.laws.ranks_applied import RanksApplied
from lockstep.laws.step_events import Node, StepProgram, named_where_taken
from lockstep.locate.flow.origins import origin_at, place_of_call

_SETTLED = frozenset(
    {
        WhyNot.NOT_ALIGNED,
        WhyNot.NOT_JUDGED,
        WhyNot.CALLS_NOT_JUDGED,
        WhyNot.TRAINED_NOT_JUDGED,
        WhyNot.TRAINED_ALONE,
    }
)
"""Gaps of a comparison by pairs of calls that a step which was run again as a whole does not have."""

_OF_JOINING = frozenset({WhyNot.NOT_PUT_TOGETHER, WhyNot.NO_PARTNER, WhyNot.CALLS_ALONE})
"""Gaps of calls that were put together of others, of which each was run again."""


class _Every(Container[int]):
    """The contents of a step of which all is settled."""

    def __contains__(self, number: object) -> bool:
        return True


_EVERY = _Every()

Settled = Mapping[tuple[str, int], tuple[Container[int], Container[int]]]
"""By rank and step: numbers of the contents of either run that belong to its program."""


def by_laws(found: Comparison, laws: Iterable[LawsApplied | RanksApplied]) -> Comparison:
    """The comparison with what the laws say: they decide where they were applied to all of every step."""
    ranks = tuple(laws)
    judged = sorted(
        (step for one in ranks for step in one.judged()), key=lambda one: (one.step, one.rank)
    )
    if not judged:
        return found
    breaches = [
        StepBreach(one.rank, one.step, breach) for one in judged for breach in one.answer.breaches
    ]
    if found.uniform:  # another precision throughout, which law K sees at every operator of it
        breaches = [one for one in breaches if one.breach.law is not Law.KERNELS]
        judged = [_without_kernels(one) for one in judged]
    gaps = dict.fromkeys(text for one in judged for text in one.answer.not_judged)
    said = LawsVerdict(tuple(breaches), tuple(gaps), len(judged), found.verdict.value)
    found = replace(found, laws=said)
    joined = any(one.joined for one in ranks)
    if breaches:
        return found if joined and found.origins else _with_breaches(found, judged)
    if not gaps:
        return _without_settled(found, judged, joined=joined)
    could_be_run = not any(one.why_not for one in ranks)
    why_not = [
        text for one in judged if could_be_run and one.trains for text in one.answer.not_judged
    ]
    notes = [Remark(On.BY_PAIRS, reason=one) for one in why_not[:1]]
    return replace(found, notes=(*found.notes, *notes))


def _without_kernels(step: JudgedStep) -> JudgedStep:
    breaches = tuple(one for one in step.answer.breaches if one.law is not Law.KERNELS)
    return replace(step, answer=replace(step.answer, breaches=breaches))


# --- breaches ---------------------------------------------------------------------------------------------------------


def _with_breaches(found: Comparison, judged: list[JudgedStep]) -> Comparison:
    """The comparison with the breaches of the first step that has some as origins, each place once.

    An origin by pairs of calls stays where it lies in the part in which the programs differ: it says more of it.
    """
    step = next(one for one in judged if one.answer.breaches)
    if found.origins and not _is_refuted(found.origins[0], step):
        return found
    origins: dict[tuple[str, str, str], Origin] = {}
    for breach in sorted(step.answer.breaches, key=_order):
        origin = _origin_of(breach, step)
        if origin is not None:
            origins.setdefault((origin.phase.value, origin.module, origin.op), origin)
    if not origins:
        return found
    first = next(iter(origins.values()))
    verdict = verdict_of(differs=True, not_compared=found.not_compared)
    findings = (*found.findings, first.finding)
    return replace(
        found,
        verdict=verdict,
        origins=tuple(origins.values()),
        findings=findings,
        judged_by=BY_LAWS,
    )


def _is_refuted(origin: Origin, step: JudgedStep) -> bool:
    """Whether the laws show that an origin is none: what it names is in both programs, or lies forward, where these are
    one and gradients alone differ.
    """
    if origin.step != step.step:
        return False
    called = origin.phase in _CALLED and not _is_of_one_call(origin)
    if called and _is_shared(origin.finding.pair, step):
        return True
    placed = [one for one in step.answer.breaches if one.quantity in _BY_PLACE]
    backward = bool(placed) and all(
        one.backward_alone or (one.law is Law.KERNELS and one.quantity is Quantity.GRADIENT)
        for one in placed
    )
    fault = origin.kind is Kind.FAULT and origin.phase is Phase.FORWARD
    return backward and fault


def _is_shared(pair: Pair, step: JudgedStep) -> bool:
    """Whether either program has the other's result too, of two results that were taken for a pair."""
    if step.programs is None:
        return False
    sides = zip((pair.reference, pair.candidate), step.programs, step.answer.shared, strict=True)
    return all(
        record is not None
        and record.role in (Role.INPUT, Role.OUTPUT)
        and record.content.id in {program.results[Node(*at)].content.id for at in places}
        for record, program, places in sides
    )


_BY_PLACE = frozenset({Quantity.RESULT, Quantity.LOSS, Quantity.GRADIENT})


_LAWS = (Law.SOURCES, Law.PROGRAM, Law.CONTINUITY, Law.KERNELS)
_QUANTITIES = (
    Quantity.DRAWN,
    Quantity.ARRIVED,
    Quantity.PARAMETER,
    Quantity.RESULT,
    Quantity.LOSS,
    Quantity.GRADIENT,
    Quantity.BUFFER,
    Quantity.CLIPPED,
    Quantity.UPDATE,
)


def _order(breach: Breach) -> tuple[int, int, float]:
    """What enters first, then programs, then kernels; the furthest first."""
    return _LAWS.index(breach.law), _QUANTITIES.index(breach.quantity), -breach.distance


def _origin_of(breach: Breach, step: JudgedStep) -> Origin | None:
    """The origin that a breach is; None where nothing recorded shows its place."""
    shown = step.shown_by.get(breach)
    found = _records(breach, step) if shown is None else _of_run(shown, breach.run)
    records = (
        _as_shown(found[0], step.reference_calls),
        _as_shown(found[1], step.candidate_calls),
    )
    present = records[1] or records[0]
    if present is None:
        return None
    call = _call_of(present, step, is_candidate=records[1] is not None)
    finding = Finding(
        Pair(*records),
        Outcome.DIFFER,
        Metrics(Evidence.TENSORS if shown is None else Evidence.DIGEST, rel_l2=breach.distance),
        breach.distance,
        breach.allowed,
        _reason(breach, step),
        kind=_kind(breach),
        judged_by=BY_LAWS,
    )
    if call is None:
        return None
    place = place_of_call(call, present, {})
    origin = origin_at(place, finding, finding.reason, _kind(breach))
    return replace(origin, wrong_run=breach.run if breach.law is Law.KERNELS else "")


def _kind(breach: Breach) -> Kind:
    if breach.law is Law.SOURCES:
        return Kind.RANDOM if breach.quantity is Quantity.DRAWN else Kind.SETUP
    return Kind.FAULT


def _of_run(record: TensorRecord, run: str) -> tuple[TensorRecord | None, TensorRecord | None]:
    return (record, None) if run == "reference" else (None, record)


def _records(breach: Breach, step: JudgedStep) -> tuple[TensorRecord | None, TensorRecord | None]:
    """The records of both runs at which a breach is seen."""
    if step.programs is None:
        return None, None
    found = [
        _record_at(at, breach, program)
        for at, program in zip(
            (breach.reference_at, breach.candidate_at), step.programs, strict=True
        )
    ]
    if found[0] is None and found[1] is None:
        found = [_record_named(breach, program, step) for program in step.programs]
    if found == [None, None]:  # nothing recorded shows its place: the losses follow from it
        found = [program.losses[0].loss.record for program in step.programs]
    return found[0], found[1]


def _record_at(at: tuple[int, ...], breach: Breach, program: StepProgram) -> TensorRecord | None:
    """A result; of a breach of gradients alone, the gradient that arrives there."""
    if not at:
        return None
    node = Node(*at)
    record = program.results.get(node)
    forward = breach.quantity in (Quantity.RESULT, Quantity.LOSS)
    of_forward = breach.law is Law.PROGRAM and not breach.backward_alone
    if record is None or forward or of_forward:
        return record
    call = next(one.call for one in program.operators if one.call.id == node.call)
    arrived = [one for one in call.with_role(Role.GRAD_OUTPUT) if one.index == node.index]
    return arrived[-1] if arrived else record


def _record_named(breach: Breach, program: StepProgram, step: JudgedStep) -> TensorRecord | None:
    """The gradient, parameter or buffer of that name; of drawn numbers, what the call gave."""
    names = breach.name.split(", ")
    if breach.quantity in (Quantity.GRADIENT, Quantity.CLIPPED):
        return next((one for name, one in program.gradients.items() if name in names), None)
    if breach.quantity is Quantity.UPDATE:
        name = breach.name.partition("|")[0]
        update = next((one for one in program.updates if one.name == name), None)
        records = () if update is None else update.call.with_role(Role.PARAM_AFTER)
        return next(iter(records), None)
    if breach.quantity is Quantity.BUFFER:
        node = program.buffers.get(breach.name)
        return None if node is None else program.results.get(node)
    if breach.quantity is Quantity.LOSS:
        return program.losses[0].loss.record if program.losses else None
    if breach.quantity is Quantity.ARRIVED:
        entering = program.sources.values()
        return next((one for one in entering if breach.name == named_where_taken(one)), None)
    if breach.quantity is Quantity.PARAMETER:
        return next((one for one in program.moved if one.name == breach.name), None)
    numbers = (*breach.reference_calls, *breach.candidate_calls)
    calls = (one.call for one in program.operators if one.call.id in numbers)
    return next((one for call in calls for one in call.with_role(Role.OUTPUT)), None)


def _call_of(record: TensorRecord, step: JudgedStep, *, is_candidate: bool) -> Call | None:
    calls = step.candidate_calls if is_candidate else step.reference_calls
    return next((call for call in calls if record in call.records), None)


def _as_shown(record: TensorRecord | None, calls: Iterable[Call]) -> TensorRecord | None:
    """A tensor that whoever looks at the recording finds: of one within a call's body, what that call gave."""
    for call in calls if record is not None else ():
        if any(record in one.records for one in call.body):
            return next(iter(call.with_role(Role.OUTPUT, Role.PARAM_AFTER)), record)
    return record


def _reason(breach: Breach, step: JudgedStep) -> Reason:
    """The evidence in words, with the calls of each run in which the two differ."""
    words = breach.words or _WORDS[breach.law, breach.quantity](breach)
    clauses: list[Clause | str] = [words]
    if step.programs is not None:
        sides = [
            _call_words(numbers, program)
            for numbers, program in zip(
                (breach.reference_calls, breach.candidate_calls), step.programs, strict=True
            )
        ]
        if sides[0] and sides[1] and breach.law is Law.PROGRAM:
            clauses.append(
                Clause(
                    About.LONE_CALL,
                    f"there the reference calls {sides[0]}, the candidate {sides[1]}",
                )
            )
        elif any(sides):
            clauses.append(Clause(About.LONE_CALL, f"at {sides[0] or sides[1]}"))
    return Reason(*clauses)


_MOST_CALLS = 4


def _call_words(numbers: Collection[int], program: StepProgram) -> str:
    calls = [one.call for one in program.operators if one.call.id in numbers]
    said = [
        f"{one.site.op.removeprefix('torch.')} ({one.source.rpartition('/')[2]})" for one in calls
    ]
    more = len(said) - _MOST_CALLS
    return ", ".join(said[:_MOST_CALLS]) + (f" and {more} more" if more > 0 else "")


def _of_program(breach: Breach) -> str:
    what = (
        "the loss"
        if breach.quantity is Quantity.LOSS
        else f"the {breach.quantity.value} of {breach.name}"
    )
    what = f"{breach.name} after its update" if breach.quantity is Quantity.UPDATE else what
    return (
        "run again in double precision on the same numbers, the two programs give"
        f" {what} rel {breach.distance:.2g} apart"
    )


def _of_kernel(breach: Breach) -> str:
    what = (
        breach.name
        if breach.quantity is Quantity.RESULT
        else f"{breach.quantity.value} of {breach.name}"
    )
    return (
        f"the {breach.run}'s {what} is rel {breach.distance:.2g} off what its own program gives in double precision;"
        f" rounding explains {breach.allowed:.2g}"
    )


def _of_source(breach: Breach) -> str:
    if breach.quantity is Quantity.DRAWN:
        return "the two runs drew different random numbers here"
    return f"{breach.name} enters the two runs rel {breach.distance:.2g} apart"


def _of_change(breach: Breach) -> str:
    return f"{breach.name} changed in the {breach.run} though no recorded call has written to it"


_WORDS = {
    **{(Law.PROGRAM, one): _of_program for one in Quantity},
    **{(Law.KERNELS, one): _of_kernel for one in Quantity},
    **{(Law.SOURCES, one): _of_source for one in Quantity},
    **{(Law.CONTINUITY, one): _of_change for one in Quantity},
}


# --- what is settled --------------------------------------------------------------------------------------------------


def _without_settled(found: Comparison, judged: list[JudgedStep], *, joined: bool) -> Comparison:
    """The comparison without the differences of pairs that belong to programs which give the same.

    Calls that were put together of others are in no program, and what they are made of is: their steps are settled.
    """
    run_again = [(one, one.programs) for one in judged if one.programs is not None]
    if len(run_again) < len(judged):
        return found
    contents: Settled = {
        (one.rank, one.step): (
            (_EVERY, _EVERY) if joined else (_contents(programs[0]), _contents(programs[1]))
        )
        for one, programs in run_again
    }
    settled: Settled = {
        (one.rank, one.step): contents[one.rank, one.step]
        for one, programs in run_again
        if joined or _is_spelled_otherwise(programs)
    }
    modules = _modules(judged)
    kept = tuple(
        one
        for one in found.origins
        if not _origin_is_settled(one, contents if one.kind is Kind.SETUP else settled, modules)
        and not _is_entering_parameter(one, contents)
        and not _is_made_again(one, judged)
        and not _is_sent_as_rounded(one, judged)
        and not _is_rounded_product(one, judged)
    )
    settled_gaps = _SETTLED | ({WhyNot.PARTS_LATER} if _ends_as_rounded(found) else set())
    settled_gaps |= _OF_JOINING if joined else set()
    gaps = tuple(one for one in found.not_compared if one.facts.why not in settled_gaps)
    if len(kept) == len(found.origins) and len(gaps) == len(found.not_compared):
        return found
    part_later = found.ends is not None and found.ends.course is Course.APART and found.ends.certain
    verdict = verdict_of(differs=bool(kept or found.uniform or part_later), not_compared=gaps)
    acquitting = settled if kept else contents
    overruled = [
        one for one in found.findings if _is_beyond(one) and _is_settled(one.pair, acquitting)
    ]
    known = set(map(id, overruled))
    spelled = any(_is_spelled_otherwise(programs) for _, programs in run_again)
    words = _SPELLED if spelled else _ROUNDED
    findings = tuple(_acquitted(one, words) if id(one) in known else one for one in found.findings)
    return replace(
        found,
        verdict=verdict,
        origins=kept,
        not_compared=gaps,
        findings=findings,
        inherited=found.inherited if kept else 0,
        notes=(
            *found.notes,
            *(() if joined else _said(found, kept, len(overruled), spelled)),
        ),
        judged_by=BY_LAWS,
    )


def _is_entering_parameter(origin: Origin, contents: Settled) -> bool:
    """Whether an origin is a parameter as a call takes it: by law C it is what its last update left, bit by bit.

    What that update may do is an origin of its own.
    """
    sides = origin.finding.pair.reference, origin.finding.pair.candidate
    named = all(one is not None and one.role is Role.INPUT and one.argument for one in sides)
    return named and _is_settled(origin.finding.pair, contents)


def _is_made_again(origin: Origin, judged: Iterable[JudgedStep]) -> bool:
    """Whether an origin is of an update that is in both runs exactly what their own gradients and states make."""
    if origin.phase is not Phase.OPTIMIZER or origin.finding.pair.reference is None:
        return False
    parameter = origin.finding.pair.reference.name.partition("|")[0]
    steps = (one for one in judged if (one.rank, one.step) == (origin.rank, origin.step))
    return any(parameter in one.answer.made_again for one in steps)


def _is_sent_as_rounded(origin: Origin, judged: Iterable[JudgedStep]) -> bool:
    """Whether an origin is a gradient of few numbers that rounding takes as far in the programs of both runs."""
    one, two = origin.finding.pair.reference, origin.finding.pair.candidate
    if one is None or two is None or _is_of_one_call(origin):
        return False
    steps = (each for each in judged if (each.rank, each.step) == (origin.rank, origin.step))
    return any((one.content.id, two.content.id) in each.answer.as_rounded for each in steps)


def _is_rounded_product(origin: Origin, judged: Iterable[JudgedStep]) -> bool:
    """Whether an origin is the result of one call, which in both runs is what its equal inputs give, rounded."""
    one, two = origin.finding.pair.reference, origin.finding.pair.candidate
    if one is None or two is None:
        return False
    steps = (each for each in judged if (each.rank, each.step) == (origin.rank, origin.step))
    pair = one.content.id, two.content.id
    return any(pair in each.answer.rounded_products for each in steps)


def _is_spelled_otherwise(programs: tuple[StepProgram, StepProgram]) -> bool:
    """Whether two programs are not one, call by call.

    If they are, no spelling explains a difference of pairs, and what law K allows of a whole program may be more than
    one of its calls may do.
    """
    one, two = (
        [
            (call.site.op, call.arguments)
            for each in program.operators
            for call in (each.call, *each.call.body)
        ]
        for program in programs
    )
    return one != two


_ROUNDED_END = 2.0**-18
"""Relative distance of losses and parameters at the end that rounding makes of one function in two spellings."""


def _ends_as_rounded(found: Comparison) -> bool:
    """Whether two trainings that may part later are at their ends no further apart than rounding takes them."""
    if found.ends is None or found.ends.certain:
        return False
    one, two = found.ends.final_losses
    if one is None or two is None:
        return False
    apart = abs(one - two) <= _ROUNDED_END * max(abs(one), abs(two))
    return apart and not found.ends.rel_l2 > _ROUNDED_END


def _said(found: Comparison, kept: Collection[Origin], count: int, spelled: bool) -> Iterator[Told]:
    dropped = [one for one in found.origins if one not in kept]
    on = On.SAME_PROGRAM if spelled or not dropped else On.ROUNDED_IN_STEP
    yield Remark(on, count=count, at=_words_of(dropped[0]) if dropped else "")


def _words_of(origin: Origin) -> str:
    place = f"{origin.module or 'the model'} ({origin.op}) at step {origin.step}"
    return f"{origin.role.value} of {place}"


def _is_beyond(one: Finding) -> bool:
    return one.outcome in (Outcome.DIFFER, Outcome.INCOMPARABLE)


_SPELLED = (
    "two spellings of one function: both programs, run again in double precision, give the same"
)
_ROUNDED = "rounding of calls before: both programs, run again in double precision, give the same"


def _acquitted(one: Finding, words: str) -> Finding:
    return replace(
        one,
        outcome=Outcome.AGREE,
        inherited=True,
        kind=Kind.INHERITED,
        reason=Reason(Clause(About.CAUSE, words)),
        judged_by=BY_LAWS,
    )


def _contents(program: StepProgram) -> frozenset[int]:
    """All contents that the program's calls took, made or sent back."""
    records = [record for event in program.events for record in event.call.records]
    return frozenset(
        one.content.id
        for each in (program.sources, program.gradients, program.hooked)
        for one in each.values()
    ) | frozenset(one.content.id for one in records)


def _modules(judged: list[JudgedStep]) -> frozenset[str]:
    """Paths of all modules that calls of the programs ran in, and of those around them."""
    found = {""}
    for step in judged:
        for program in step.programs or ():
            for operator in program.operators:
                path = operator.call.site.module
                while path and path not in found:
                    found.add(path)
                    path = path.rpartition(".")[0]
    return frozenset(found)


def _is_settled(pair: Pair, settled: Settled) -> bool:
    sides = (pair.reference, pair.candidate)
    return all(
        record is None
        or record.content.id in settled.get((pair.present.rank, record.step), _NOTHING)[side]
        for side, record in enumerate(sides)
    )


_NOTHING: tuple[Container[int], Container[int]] = (frozenset(), frozenset())


_CALLED = frozenset({Phase.FORWARD, Phase.BACKWARD})
_ENTERING = frozenset({Role.INPUT, Role.GRAD_OUTPUT})


def _is_of_one_call(origin: Origin) -> bool:
    """Whether one call that was run alone gave the origin: it shows a kernel's fault better than a whole program.

    Of two calls with other settings each is sound by its own, and whether the two are one is what the programs tell.
    """
    one, two = origin.finding.pair.reference, origin.finding.pair.candidate
    if one is None or two is None or origin.phase not in _CALLED:
        return False
    if one.role in _ENTERING or two.role in _ENTERING:
        return False  # calls before have made it
    is_one_call = (one.site.module, one.site.op) == (two.site.module, two.site.op)
    run_alone = is_one_call and origin.finding.judged_by == BY_LOCAL_ERROR
    run_alone = run_alone and origin.kind is not Kind.SETUP
    return run_alone or bool(origin.wrong_run)


def _origin_is_settled(origin: Origin, settled: Settled, modules: Collection[str]) -> bool:
    """Whether an origin is of tensors of the programs, or of a setting of a module whose calls are in them."""
    if origin.phase is Phase.INIT:
        return False
    pair = origin.finding.pair
    one, two = pair.reference, pair.candidate
    if one is not None and two is not None and one.dtype != two.dtype:
        return False  # programs know no dtype, and users chose one
    if _is_of_one_call(origin):
        return False
    if origin.kind is Kind.SETUP and pair.present.role is Role.INPUT:
        return origin.module in modules and _is_settled(pair, settled)
    return _is_settled(pair, settled)
