"""Origins found so far, each cause named once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace

from lockstep.align.step import Aligned
from lockstep.core.finding import (
    Evidence,
    Finding,
    Kind,
    Metrics,
    NamedSite,
    Origin,
    Outcome,
    Pair,
)
from lockstep.core.operators import Family, agreed_name, family_of, operator_of
from lockstep.core.reason import About, Clause, Reason
from lockstep.core.records import Call, TensorRecord
from lockstep.core.site import Phase, Role
from lockstep.judge.tolerances import SAME_ELEMENTS_KEPT

_RANDOM_STREAM = "random stream"
OTHER_STREAM = Clause(About.RANDOM, "the random stream differs")
"""The one cause behind every operator that draws other numbers."""


@dataclass(frozen=True, slots=True)
class Place(NamedSite):
    """The place of a possible origin, its time, and whether dropout may be a part of the call."""

    sequence: int
    may_drop: bool = False


def place_of(item: Aligned, pair: Pair, module_classes: Mapping[str, str]) -> Place:
    """The place of one record of an aligned call."""
    reference, candidate = item.reference, item.candidate
    return _place(
        reference,
        pair.present,
        module_classes,
        op=agreed_name(reference.site.op, candidate.site.op),
        source=candidate.source or reference.source,
    )


def place_of_call(call: Call, record: TensorRecord, module_classes: Mapping[str, str]) -> Place:
    """The place of one record of a call that has no partner."""
    return _place(call, record, module_classes, op=call.site.op, source=call.source)


def _place(
    call: Call, record: TensorRecord, module_classes: Mapping[str, str], *, op: str, source: str
) -> Place:
    return Place(
        rank=call.rank,
        step=call.step,
        phase=record.site.phase,
        module=call.site.module,
        module_class=module_classes.get(call.site.module, call.module_class),
        op=op,
        call=call.site.call,
        role=record.role,
        index=record.index,
        tensor=record.name,
        source=source,
        sequence=record.sequence,
        may_drop=drops_inside(call),
    )


def without_partner(pair: Pair, reason: str) -> Finding:
    """The finding of a tensor that one run has where the other should."""
    metrics = Metrics(Evidence.NONE)
    why = Reason(reason)
    return Finding(pair, Outcome.MISSING, metrics, math.nan, math.nan, why, kind=Kind.FAULT)


def origin_at(place: Place, finding: Finding, reason: str, kind: Kind) -> Origin:
    """The origin of a finding at a place."""
    site = {one.name: getattr(place, one.name) for one in fields(NamedSite)}
    return Origin(
        **site, finding=finding, reason=Reason(reason), sequence=place.sequence, kind=kind
    )


def drops_inside(call: Call) -> bool:
    """Return whether dropout may be a part of a call: attention and recurrent layers."""
    values = call.arguments.values()
    return operator_of(call.site.op).has_matmuls_inside and any(
        isinstance(value, float) and 0 < value < 1 for value in values
    )


@dataclass(slots=True)
class Origins:
    """Collects origins; one operator that is wrong at every call and step, in one of the runs, is one origin."""

    found: list[Origin] = field(default_factory=list)
    _may_drop: list[int] = field(default_factory=list)
    _known: set[Hashable] = field(default_factory=set)
    _wrong_runs: defaultdict[Hashable, set[str]] = field(default_factory=lambda: defaultdict(set))
    _settings: dict[str, dict[str, int]] = field(default_factory=dict)
    _stream_is_explained: bool = False

    def add(
        self,
        place: Place,
        finding: Finding,
        reason: str = "",
        *,
        cause: str = "",
        one_of: tuple[Hashable, ...] | None = None,
        wrong_run: str = "",
    ) -> bool:
        """Add an origin; returns False where its cause is known already.

        The cause is the site, whatever the call or step, and an operator that is wrong forward is
        expected to be so backward; with `cause`, that sentence, and with `one_of` what is given. What one run alone
        does wrong (`wrong_run`, "" where that is not known) does not cover what the other does wrong there.
        """
        key: Hashable = cause or one_of or (place.phase, place.module, place.op)
        reason, kind = reason or finding.reason, finding.kind or Kind.FAULT
        if cause:
            kind = Kind.SETUP
        if place.phase in (Phase.INIT, Phase.DATA):
            key, kind = place.phase, Kind.SETUP
        draws = place.phase is Phase.FORWARD and draws_differently(place.op, finding)
        if draws and finding.kind is Kind.SETUP:
            self._known.add(_RANDOM_STREAM)  # one that drops nothing, say, takes no numbers from it
        elif draws:
            key, kind = _RANDOM_STREAM, Kind.RANDOM
            reason = Reason(OTHER_STREAM, reason)
        forward = (Phase.FORWARD, place.module, place.op)
        if self._covers(key, wrong_run):
            return False
        if place.phase is Phase.BACKWARD and self._covers(forward, wrong_run):
            return False
        self._known.add(key)
        self._wrong_runs[key].add(wrong_run)
        if place.may_drop and place.phase is Phase.FORWARD and kind is Kind.FAULT:
            if self._stream_is_explained:
                stream = replace(OTHER_STREAM, words=f"{OTHER_STREAM.words} by now")
                kind, reason = Kind.RANDOM, Reason(stream, reason)
            else:
                self._may_drop.append(len(self.found))
        origin = origin_at(place, finding, reason, kind)
        self.found.append(replace(origin, wrong_run=wrong_run))
        return True

    def _covers(self, key: Hashable, wrong_run: str) -> bool:
        """Whether a cause is known, and not of the other run alone."""
        runs = self._wrong_runs.get(key, {""})
        return key in self._known and (not wrong_run or "" in runs or wrong_run in runs)

    def add_settings(self, place: Place, settings: Mapping[str, Clause]) -> bool:
        """Say of an optimizer whose settings differed in an earlier step which ones do by now.

        Some follow from those: what it adds up in its groups, or a rate that it computes. Returns False where none of
        them, by name, was known before; then they are an origin of their own.
        """
        known = self._settings.setdefault(place.op, {})
        earlier = {name for name, step in known.items() if step < place.step}
        new = [words for name, words in settings.items() if name not in known]
        for name in settings:
            known.setdefault(name, place.step)
        if earlier.isdisjoint(settings):
            return False
        number = next((n for n, one in enumerate(self.found) if _is_set_up(one, place.op)), None)
        if new and number is not None:
            origin = self.found[number]
            later = [replace(new[0], words=f"from step {place.step} on, {new[0].words}"), *new[1:]]
            reason = Reason(origin.reason, *later)
            self.found[number] = replace(origin, reason=reason)
        return True

    def insert(self, origin: Origin, cause: str) -> None:
        """Add an origin that was made elsewhere, unless its cause is known."""
        if cause not in self._known:
            self._known.add(cause)
            self.found.append(origin)

    def withdraw(self, origin: Origin) -> None:
        """Take back an origin whose cause is named elsewhere; its site stays known."""
        number = next(n for n, one in enumerate(self.found) if one is origin)
        del self.found[number]
        self._may_drop = [n - (n > number) for n in self._may_drop if n != number]

    def know_random_stream(self) -> None:
        """Other random numbers in later steps have a cause that is named."""
        self._stream_is_explained = True
        self._known.add(_RANDOM_STREAM)

    def note_other_masks(self) -> None:
        """A dropout was seen to drop other elements: operators with dropout inside did so too."""
        if self._may_drop:
            self._known.add(_RANDOM_STREAM)
        for number in self._may_drop:
            origin = self.found[number]
            reason = Reason(
                OTHER_STREAM, origin.reason, "dropouts after it drop different elements"
            )
            self.found[number] = replace(origin, kind=Kind.RANDOM, reason=reason)
        self._may_drop.clear()


def _is_set_up(origin: Origin, optimizer: str) -> bool:
    return origin.kind is Kind.SETUP and (origin.phase, origin.op) == (Phase.OPTIMIZER, optimizer)


def draws_differently(op: str, finding: Finding) -> bool:
    """Whether an operator gave something else because it drew other random numbers.

    A dropout that drops the very same elements did not: as many zeros on both sides and the same
    direction mean that the kept ones are scaled otherwise, which is a fault.
    """
    if finding.kind is Kind.RANDOM:
        return True
    family = family_of(op)
    if family is not Family.DROPOUT:
        return family is Family.RANDOM
    left, right = (
        record.statistics if record is not None else None
        for record in (finding.pair.reference, finding.pair.candidate)
    )
    if left is None or right is None or left.zero_count != right.zero_count:
        return True
    return not finding.metrics.cosine > SAME_ELEMENTS_KEPT


# --- several ranks ---------------------------------------------------------------------------------------------------


def without_sent(origins: Iterable[Origin]) -> list[Origin]:
    """Return origins without those that a call between ranks brought from a rank with an earlier origin."""
    found = list(origins)
    kept = []
    for origin in found:
        sent = _is_between_ranks(origin) and any(
            other.rank != origin.rank
            and not _is_between_ranks(other)
            and (other.step, other.sequence) < (origin.step, origin.sequence)
            for other in found
        )
        if sent:
            origin.finding.inherited = True
        else:
            kept.append(origin)
    return kept


def _is_between_ranks(origin: Origin) -> bool:
    return origin.op.startswith("torch.distributed.") and origin.role is Role.OUTPUT


def once_over_ranks(origins: Iterable[Origin]) -> list[Origin]:
    """Return origins in order; one place on several ranks is listed once, at the first rank.

    All ranks of a training run the same script, so they have the same mistake.
    """
    alike: dict[Hashable, list[Origin]] = defaultdict(list)
    for origin in origins:
        alike[_where(origin)].append(origin)
    return [_named_once(same) for same in alike.values()]


def _where(origin: Origin) -> Hashable:
    return (
        origin.step,
        origin.phase,
        origin.module,
        origin.op,
        origin.role,
        origin.tensor,
        origin.kind,
        origin.wrong_run == "reference",
    )


def _named_once(same: list[Origin]) -> Origin:
    others = list(dict.fromkeys(origin.rank for origin in same[1:] if origin.rank != same[0].rank))
    if not others:
        return same[0]
    return replace(same[0], reason=Reason(same[0].reason, f"and so on {', '.join(others)}"))
