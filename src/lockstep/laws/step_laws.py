"""Steps of two runs before the laws: run both programs again, and say which law does not hold where."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from lockstep.core.dtypes import unit_roundoff
from lockstep.core.laws import Breach, Law, Quantity, StepAnswer
from lockstep.core.records import Call, TensorRecord
from lockstep.laws.alike import are_one, called_alike, may_hold_read_numbers
from lockstep.laws.arrangement import rearranged
from lockstep.laws.biased_products import rounded_products
from lockstep.laws.changed_gradients import changed_on_its_way
from lockstep.laws.differing_part import Part, part_of
from lockstep.laws.distances import relative
from lockstep.laws.double_run import Run
from lockstep.laws.double_updates import states_of
from lockstep.laws.draws import draws_inside, drops, is_draw, kept_elements
from lockstep.laws.noise_levels import NUMBERS_READ, noise_level, other_precision
from lockstep.laws.one_program import (
    Difference,
    TwoRuns,
    leave_alike,
    nothing_finite,
    update_differences,
)
from lockstep.laws.own_runs import Carried, OwnRuns, own_runs
from lockstep.laws.program_memory import WITH_GRADIENTS, room_for_programs
from lockstep.laws.recorded_decisions import decide_alike
from lockstep.laws.sent_gradients import sent_as_rounded
from lockstep.laws.sound_kernels import Kernels, kernels
from lockstep.laws.step_events import (
    RESULTS,
    Enters,
    Node,
    NotApplicable,
    StepOfBoth,
    is_whole,
    named_where_taken,
)
from lockstep.laws.step_sides import (
    CommonNumbers,
    Side,
    beside_each_other,
    common_numbers,
    side_of,
    take_what_is_unseen,
)
from lockstep.replay.calls.recorded_tensors import load, widened
from lockstep.replay.calls.refusals import CannotReplay


def step_answers(steps: Sequence[StepOfBoth], *, memory_bytes: int) -> tuple[StepAnswer, ...]:
    """What the laws say of steps of two runs, of which each takes what the one before left.

    After a step that breaks a law none is judged: its numbers follow from the breach.

    memory_bytes: Memory that the whole process may take.
    """
    answers: list[StepAnswer] = []
    carried = Carried(), Carried()
    for step in steps:
        if any(one.breaches for one in answers):
            answers.append(StepAnswer(not_judged=(_AFTER_BREACH,)))
            continue
        try:
            room = room_for_programs((step.reference.calls, step.candidate.calls), memory_bytes)
            sides = beside_each_other(
                side_of("reference", step.reference, carried=carried[0].exact),
                side_of("candidate", step.candidate, step.names, carried[1].exact),
            )
            numbers = common_numbers(*sides)
            if take_what_is_unseen(numbers, step):
                raise NotApplicable(_UNSEEN)
            reads = step.reads_numbers, step.reads_behind
            answer, carried = _answer(numbers, carried, reads, room)
        except (NotApplicable, CannotReplay) as error:
            answer, carried = StepAnswer(not_judged=(str(error),)), (Carried(), Carried())
        answers.append(answer)
    return tuple(answers)


_UNSEEN = "a custom function or an optimizer takes a tensor that no recorded call made, another one in each run"
_AFTER_BREACH = "a law does not hold in a step before, whose numbers this one takes"

_CarriedOfBoth = tuple[Carried, Carried]


def _answer(
    numbers: CommonNumbers, carried: _CarriedOfBoth, reads: tuple[bool, bool], room: float
) -> tuple[StepAnswer, _CarriedOfBoth]:
    """The answer for one step, and what it leaves to the next one."""
    left, right = numbers.reference, numbers.candidate
    drawn = list(_drawn_otherwise(left, right))
    same = are_one(left.program, right.program, (left.numbers, right.numbers))
    two = TwoRuns(numbers, room, same, decide_alike(left.program, right.program))
    if nothing_finite(two.left) or nothing_finite(two.right):
        raise NotApplicable("a loss is not finite in double precision")
    breaches, not_judged, shared = _program(two, drawn)
    reads_numbers = any(reads) and may_hold_read_numbers(left.program, right.program)
    begun = [
        two.left if two.numbers.are_references_own else None,
        two.right if two.is_roomy and two.numbers.are_candidates_own else None,
    ]
    del two
    if breaches and not reads_numbers and room < _ROOM_TO_SPARE and _is_certain(breaches):
        moved, in_both = _moved(left, right)
        open_parts = (*not_judged, *in_both, _KERNELS_LEFT_OUT)
        found = [*drawn, *breaches, *moved]
        return StepAnswer(tuple(found), open_parts, shared), (Carried(), Carried())
    runs, kernel_sides = _own_runs_and_kernels((left, right), carried, begun, room, same)
    least = NUMBERS_READ * noise_level((left, right), runs) if reads_numbers else 0.0
    open_to_doubt = [one for one in breaches if reads[0] or one.quantity in _BEHIND]
    if breaches and median(one.distance for one in breaches) < _SINGLE_FORMULA:
        not_judged.append(_AS_SINGLE)
        breaches = []
    elif open_to_doubt and median(one.distance for one in open_to_doubt) < least:
        not_judged.append(_NUMBERS_READ)
        breaches = [one for one in breaches if one not in open_to_doubt]
    of_kernels, more, faithful = _kernels(
        (left, right), runs, [one.breaches for one in kernel_sides]
    )
    leaves = (runs[0].left, runs[1].left) if faithful else (Carried(), Carried())
    moved, in_both = _moved(left, right)
    found = [*drawn, *breaches, *of_kernels, *moved, *changed_on_its_way(left, right)]
    open_parts = (*not_judged, *more, *in_both, *_begun_otherwise(left, right))
    made_again = kernel_sides[0].made_again & kernel_sides[1].made_again
    as_rounded = () if found else tuple(sent_as_rounded((left, right), runs))
    answer = StepAnswer(
        tuple(found),
        tuple(dict.fromkeys(open_parts)),
        shared,
        tuple(sorted(made_again)),
        as_rounded,
        () if found else tuple(rounded_products(left, right)),
    )
    return answer, leaves


_ROOM_TO_SPARE = 16.0
"""Of how many runs the results fit into memory where running a step again is quick: below, law K is left out where the
programs differ already. It takes three times as long as law P, and tells no earlier place."""

_KERNELS_LEFT_OUT = (
    "what each run recorded was not held against its own program, since the programs differ"
)


def _is_certain(breaches: Sequence[Breach]) -> bool:
    """Whether no rounding of a constant makes the programs differ so."""
    return median(one.distance for one in breaches) >= _SINGLE_FORMULA


_SINGLE_FORMULA = 2.0**-23
"""Relative distance that a constant which one run rounds to single precision may make: two units of its roundoff."""

_AS_SINGLE = (
    "the programs differ by no more than a constant that one of them rounds to single precision"
)
_ROUNDED_DRAWS = "drawn numbers differ by rounding, and the programs no more than that shows"
_NUMBERS_READ = "Python took numbers out of tensors, and the programs differ"
_BEHIND = frozenset({Quantity.UPDATE, Quantity.CLIPPED, Quantity.BUFFER})
"""What numbers that Python takes behind the last backward pass may enter."""


Shared = tuple[tuple[tuple[int, int], ...], tuple[tuple[int, int], ...]]
"""Results of the reference and of the candidate that the other program has too, each as its call and index."""


def _program(two: TwoRuns, drawn: Sequence[Breach]) -> tuple[list[Breach], list[str], Shared]:
    """Law P, and law S for what enters; with the results that both programs have, where they differ."""
    differences = two.differences()
    sources: list[Breach] = []
    if differences and two.numbers.lone["reference"] and two.numbers.lone["candidate"]:
        numbers = common_numbers(two.reference, two.candidate, by_order=True)
        paired = TwoRuns(numbers, two.room, decided=two.decided)
        if not paired.differences():
            sources, two, differences = _entering_otherwise(paired.numbers), paired, []
    alike = {
        one.name
        for one in differences
        if one.quantity is Quantity.CLIPPED and leave_alike(two, one.name)
    }
    differences = [
        *(
            one
            for one in differences
            if one.quantity is not Quantity.CLIPPED or one.name not in alike
        ),
        *update_differences(two, alike),
    ]
    unplaced = [*two.reference.program.unplaced, *two.candidate.program.unplaced]
    if differences and not drawn and _are_rounded_draws(two.reference, two.candidate):
        unplaced.append(_ROUNDED_DRAWS)
    if differences and (unplaced or drawn):
        return sources, [*two.not_judged, *unplaced], ((), ())
    if not differences:
        return sources, two.not_judged, ((), ())
    part = _located(two, differences)
    parts = [Part() if one.quantity is Quantity.UPDATE else part for one in differences]
    found = [_breach(one, where) for one, where in zip(differences, parts, strict=True)]
    one, other = (tuple((each.call, each.index) for each in nodes) for nodes in part.shared)
    return [*sources, *found], two.not_judged, (one, other)


def _located(two: TwoRuns, differences: list[Difference]) -> Part:
    forward = [one for one in differences if one.quantity is not Quantity.UPDATE]
    with_results = two.with_results() if forward else None
    if with_results is None:
        return Part()
    try:
        wrong = {name for one in forward for name in one.name.split(", ")}
        return part_of(with_results, wrong)
    except NotApplicable:
        return Part()


def _breach(one: Difference, part: Part) -> Breach:
    return Breach(
        Law.PROGRAM,
        one.quantity,
        "",
        one.name,
        one.distance,
        one.allowed,
        *(_numbers(part.reference_at), _numbers(part.candidate_at)),
        part.reference,
        part.candidate,
        backward_alone=part.backward_alone,
    )


def _numbers(node: Node | None) -> tuple[int, ...]:
    return () if node is None else (node.call, node.index)


_SAME_NUMBERS = 4.0
"""Unit roundoffs of the coarser dtype up to which two numbers that enter are one."""

_SAME_SINGLES = 2.0**-20
"""Relative distance up to which they are one in any dtype: what enters was computed too, by some calls that nobody
recorded, and another processor rounds each of these otherwise (16 roundings of single precision)."""


def _entering_otherwise(numbers: CommonNumbers) -> list[Breach]:
    """What enters the two runs and is not the same, of what decides whether the programs agree."""
    found = []
    for source, other in numbers.partner.items():
        if source.kind is not Enters.ARRIVED:
            continue
        one = numbers.reference.program.sources[other]
        two = numbers.candidate.program.sources[source]
        if one.digest == two.digest:
            continue
        apart = relative(widened(load(one)), widened(load(two)))
        allowed = _same_up_to(one, two)
        if apart > allowed:
            name = named_where_taken(two)
            found.append(Breach(Law.SOURCES, Quantity.ARRIVED, "", name, apart, allowed))
    return found


def _begun_otherwise(left: Side, right: Side) -> Iterator[str]:
    """Law S for what the first recorded step takes: parameters, buffers and states that are not the same.

    Whether that is drift from steps before or a fault, the laws do not tell.
    """
    ours = right.renamed_starts
    moved = rearranged(left.starts, ours)
    for name, one in left.starts.items():
        two = ours.get(name)
        if two is None or one.shape != two.shape or name in moved:
            continue
        if _is_other(one, two):
            yield f"{name} is not the same when the first recorded step begins"
            return
    if not (left.is_first and right.is_first):
        return
    states = [
        {side.renamed(one.name): states_of(one) for one in side.program.updates}
        for side in (left, right)
    ]
    for name in sorted(states[0].keys() & states[1].keys()):
        for key in sorted(states[0][name].keys() & states[1][name].keys()):
            one, two = states[0][name][key], states[1][name][key]
            if one.shape == two.shape and _is_other(one, two):
                yield f"the state {key} of {name} is not the same when the first recorded step begins"
                return


def _is_other(one: TensorRecord, two: TensorRecord) -> bool:
    if one.digest is not None and one.digest == two.digest:
        return False
    apart = relative(widened(load(one)), widened(load(two)))
    return apart > _same_up_to(one, two)


def _same_up_to(one: TensorRecord, two: TensorRecord) -> float:
    coarser = max(_unit(one), _unit(two))
    return max(_SAME_NUMBERS * coarser, _SAME_SINGLES) if coarser else 0.0


def _unit(record: TensorRecord) -> float:
    return unit_roundoff(record.dtype)


def _drawn_otherwise(left: Side, right: Side) -> list[Breach]:
    """The first draws of the two programs that differ: numbers, or the elements that dropout let through."""
    for one, two in _paired_draws(*(list(_drawing(side)) for side in (left, right))):
        if drops(one) != drops(two):
            break
        same = _same_mask(one, two) if drops(one) else not _are_other_draws(one, two)
        if not same:
            breach = Breach(
                Law.SOURCES, Quantity.DRAWN, "", str(two.site), 1.0, 0.0,
                reference_calls=(one.id,), candidate_calls=(two.id,),
            )  # fmt: skip
            return [breach]
    return []


def _are_other_draws(one: Call, two: Call) -> bool:
    """Whether two calls drew other numbers; another processor rounds what it makes of the same bits otherwise.

    What goes in tells a shape, or is held against what the other run takes by the other laws.
    """
    ours, theirs = one.with_role(*RESULTS), two.with_role(*RESULTS)
    if len(ours) != len(theirs):
        return True
    return any(
        left.digest != right.digest
        and not (
            left.shape == right.shape
            and is_whole(left)
            and is_whole(right)
            and _unit(left) > 0
            and not _is_other(left, right)
        )
        for left, right in zip(ours, theirs, strict=True)
    )


def _are_rounded_draws(left: Side, right: Side) -> bool:
    """Whether drawn numbers of the two runs are the same but for rounding."""
    pairs = _paired_draws(*(list(_drawing(side)) for side in (left, right)))
    return any(
        [r.digest for r in one.with_role(*RESULTS)] != [r.digest for r in two.with_role(*RESULTS)]
        for one, two in pairs
        if not (drops(one) or drops(two))
    )


def _drawing(side: Side) -> Iterator[Call]:
    for one in side.program.operators:
        if drops(one.call) or is_draw(one.call) or draws_inside(one.call):
            yield one.call


def _paired_draws(left: list[Call], right: list[Call]) -> Iterator[tuple[Call, Call]]:
    """Draws of the two programs that should be one.

    In order; where a call draws beside what it computes, those that began from one state of the generator, since
    nobody knows how many draws of the other run that call stands for.
    """
    if not any(draws_inside(one) for one in (*left, *right)):
        yield from zip(left, right, strict=False)
        return
    begun = {one.random_state.digest: one for one in left if one.random_state is not None}
    for two in right:
        one = None if two.random_state is None else begun.get(two.random_state.digest)
        if one is not None and not (draws_inside(one) or draws_inside(two)):
            yield one, two


def _same_mask(one: Call, two: Call) -> bool:
    left, right = kept_elements(one), kept_elements(two)
    return left.numel() == right.numel() and bool(
        (left.reshape(-1) == right.reshape(-1)).float().mean() > _ALIKE
    )


_ALIKE = 0.999
"""Share of elements in which two masks are one: where an input is zero, dropout does not show."""


def _own_runs_and_kernels(
    both_sides: tuple[Side, Side],
    carried: _CarriedOfBoth,
    begun: list[Run | None],
    room: float,
    same: bool,
) -> tuple[tuple[OwnRuns, OwnRuns], list[Kernels]]:
    """Both programs on their own numbers, one after the other, and what each recorded beyond that.

    `begun` are runs of either that there are already; its results are let go of when they have been looked at. Those of
    a program that is the `same` on the same numbers are made once.
    """
    if same:
        return _of_one_program(both_sides, carried, begun[0], room)
    runs, found = [], []
    for n, (side, before) in enumerate(zip(both_sides, carried, strict=True)):
        own = own_runs(side, before, begun[n])
        found.append(kernels(side, own, with_places=room >= WITH_GRADIENTS))
        own.exact.run.forget()
        begun[n] = None
        runs.append(own)
    return (runs[0], runs[1]), found


def _of_one_program(
    both_sides: tuple[Side, Side], carried: _CarriedOfBoth, begun: Run | None, room: float
) -> tuple[tuple[OwnRuns, OwnRuns], list[Kernels]]:
    left, right = both_sides
    own = own_runs(left, carried[0], begun)
    found = [kernels(side, own, with_places=room >= WITH_GRADIENTS) for side in both_sides]
    own.exact.run.forget()
    leaves = Carried(
        *(
            called_alike(left.program, right.program, known, before)
            for known, before in (
                (own.left.exact, carried[1].exact),
                (own.left.rounded, carried[1].rounded),
                (own.left.of_this_machine, carried[1].of_this_machine),
            )
        )
    )
    return (own, replace(own, left=leaves)), [found[0], found[1]]


def _kernels(
    both_sides: tuple[Side, Side], runs: tuple[OwnRuns, OwnRuns], sides: Sequence[list[Breach]]
) -> tuple[list[Breach], list[str], bool]:
    """Law K: what one run alone breaks. Where both do, re-running is not faithful, which the last value tells."""
    seen = [
        {_kind(one, side) for one in found} for found, side in zip(sides, both_sides, strict=True)
    ]
    both = seen[0] & seen[1]
    breaches, not_judged = [], other_precision(both_sides, runs)
    for found, side in zip(sides, both_sides, strict=True):
        alone = _first_ones([one for one in found if _kind(one, side) not in both], side)
        gradients = [one for one in alone if one.quantity is Quantity.GRADIENT]
        if gradients and side.program.unplaced:
            not_judged.extend(side.program.unplaced)
            alone = [one for one in alone if one.quantity is not Quantity.GRADIENT]
        breaches.extend(alone)
        if both:
            first = next(one for one in found if _kind(one, side) in both)
            not_judged.append(
                f"{first.quantity.value} {first.name}: neither run recorded what its own program gives"
            )
    return breaches, not_judged, not both


def _first_ones(found: list[Breach], side: Side) -> list[Breach]:
    """Without the results that were computed from one that is itself wrong."""
    wrong = {
        one.reference_at or one.candidate_at for one in found if one.quantity is Quantity.RESULT
    }
    reached: set[Node] = set()
    for operator in side.program.operators if wrong else ():
        taken = {one.link for one in operator.taken.values()}
        if any(
            one in reached or (isinstance(one, Node) and (one.call, one.index) in wrong)
            for one in taken
        ):
            reached |= {
                Node(operator.call.id, one.index) for one in operator.call.with_role(*RESULTS)
            }
    return [
        one
        for one in found
        if one.quantity is not Quantity.RESULT
        or Node(*(one.reference_at or one.candidate_at)) not in reached
    ]


def _kind(breach: Breach, side: Side) -> tuple[Quantity, str]:
    """What a breach is of, as the other run may have it too."""
    if breach.quantity is not Quantity.RESULT:
        return breach.quantity, breach.name
    number = (*breach.reference_calls, *breach.candidate_calls)[0]
    op = next(one.call.site.op for one in side.program.operators if one.call.id == number)
    return breach.quantity, op


def _moved(left: Side, right: Side) -> tuple[list[Breach], list[str]]:
    """Law C within a step: what changed though no recorded call has changed it.

    In one run alone it is a breach; in both, nothing tells whether they changed it alike.
    """
    names = [{side.renamed(one.name) for one in side.program.moved} for side in (left, right)]
    found = [
        Breach(Law.CONTINUITY, Quantity.PARAMETER, run, name, 1.0, 0.0)
        for own, other, run in ((names[0], names[1], left.run), (names[1], names[0], right.run))
        for name in sorted(own - other)
    ]
    words = "changed in both runs though no recorded call has written to it"
    return found, [f"{name} {words}" for name in _moved_otherwise(left, right)][:1]


def _moved_otherwise(left: Side, right: Side) -> Iterator[str]:
    """What changed in both runs, and not to the same values each time."""
    sides = [
        [(side.renamed(one.name), one) for one in side.program.moved] for side in (left, right)
    ]
    names = [{name for name, _ in side} for side in sides]
    for name in sorted(names[0] & names[1]):
        ours, theirs = ([one for known, one in side if known == name] for side in sides)
        if len(ours) != len(theirs) or any(map(_is_other, ours, theirs)):
            yield name
