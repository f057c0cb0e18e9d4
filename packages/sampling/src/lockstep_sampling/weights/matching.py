"""Which weights of two sides belong together: by logical name, else by contents, else as the others of their kind do.

A weight may lie in parts on several ranks, and several weights of one side may be one of the other (q, k and v; gate
and up; the experts of a layer). Contents tell that, not a list of names: equal sequences of digests are a proof.
Weights that differ have no proof, so they are paired as weights of other layers are that were proven.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from xxhash import xxh3_128_hexdigest

from lockstep_sampling.weights.fingerprint import Fingerprint
from lockstep_sampling.weights.fused import Fusion, Fusions
from lockstep_sampling.weights.order import Assembly, misplaced, numbers_of
from lockstep_sampling.weights.relation import (
    Face,
    Relation,
    Standing,
    Whole,
    relation_of,
)

TRANSPOSED = "transposed"
COPY = "a copy of it (tied)"


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of one side: whole, or in a part for each rank.

    name: Its logical name.
    parts: One, or one for each rank where they are not the same.
    """

    name: str
    parts: tuple[Fingerprint, ...]

    def readings(self) -> Iterator[Whole]:
        """The weight as one tensor: the parts of ranks one behind the other along the first or the last axis."""
        yield Whole(self.parts)
        if len(self.parts) > 1:
            yield Whole(self.parts, Face.COLUMNS)

    @property
    def is_constant(self) -> bool:
        """Whether its contents do not tell it from others."""
        return all(part.is_constant or not part.numel for part in self.parts)


@dataclass(frozen=True, slots=True)
class Pair:
    """Weights of the two sides that belong together.

    reference, candidate: Their names; several where they were put together.
    relation: How they relate.
    how: How they were put together; "" for one and one.
    """

    reference: tuple[str, ...]
    candidate: tuple[str, ...]
    relation: Relation
    how: str = ""

    @property
    def name(self) -> str:
        """What it is called in an answer."""
        ours, theirs = " + ".join(self.reference), " + ".join(self.candidate)
        return ours if ours == theirs else f"{ours} = {theirs}"


KnownFusions = dict[tuple[bool, str, tuple[str, ...]], Fusion]
"""By whether the whole is the candidate's, its name and those of its parts."""


@dataclass(slots=True)
class Matching:
    """All pairs, and what only one side has."""

    pairs: list[Pair] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    """Of the reference alone."""
    unexpected: list[str] = field(default_factory=list)
    """Of the candidate alone."""
    fusions: KnownFusions = field(default_factory=dict)
    """How weights were put together; for weights of a different version, whose contents do not tell it."""


def match(
    reference: Iterable[Weight], candidate: Iterable[Weight], like: Iterable[Matching] = ()
) -> Matching:
    """Pair the weights of two sides, each of logical names that are all different.

    `like` are matchings of the same weights at other versions: what was put together there is put together here.
    """
    found = _Match({one.name: one for one in reference}, {one.name: one for one in candidate})
    for other in like:
        found.fusions.update(other.fusions)
    found.by_name()
    found.by_contents()
    found.by_fusion()
    found.as_others()
    found.copies()
    return found.result()


def related(reference: Weight, candidate: Weight) -> tuple[Relation, str]:
    """Return how two weights relate, in the reading of their ranks' parts that agrees, and how it was read."""
    first = _copies_of_ranks(reference, candidate)
    if first is not None:
        return first
    for one in reference.readings():
        for other in candidate.readings():
            faces = _faces(one, other)
            if faces is None:
                continue
            relation = relation_of(*faces)
            how = _ranks_told(one, other)
            if relation.agrees or relation.standing is Standing.NOT_JUDGED:
                return relation, how
            first = first or (relation, how)
    transposed = _transposed(reference, candidate)
    if transposed is not None:
        return transposed, TRANSPOSED
    assert first is not None
    return first


def _copies_of_ranks(reference: Weight, candidate: Weight) -> tuple[Relation, str] | None:
    """How ranks' copies relate to the whole weight of the other side: as the first of them that is not equal."""
    split, whole = (reference, candidate) if len(reference.parts) > 1 else (candidate, reference)
    if len(whole.parts) > 1 or {part.shape for part in split.parts} != {whole.parts[0].shape}:
        return None
    if len(split.parts) == 1:
        return None
    for number, part in enumerate(split.parts):
        copy = Weight(split.name, (part,))
        sides = (copy, whole) if split is reference else (whole, copy)
        relation, how = related(*sides)
        if not relation.agrees:
            return relation, f"{how}; the copy of rank {number}".removeprefix("; ")
    return relation, "copies of ranks, of which each is it"


def _faces(one: Whole, other: Whole) -> tuple[Whole, Whole] | None:
    """Both seen from one side; None where parts of ranks on both sides lie along different axes."""
    split = {whole.face for whole in (one, other) if len(whole.parts) > 1}
    if len(split) > 1:
        return None
    face = split.pop() if split else Face.ROWS
    return Whole(one.parts, face), Whole(other.parts, face)


def _ranks_told(one: Whole, other: Whole) -> str:
    split = [whole for whole in (one, other) if len(whole.parts) > 1]
    axis = {Face.ROWS: "rows", Face.COLUMNS: "columns"}
    return "; ".join(f"{len(whole.parts)} ranks' {axis[whole.face]}" for whole in split)


def _transposed(
    reference: Weight, candidate: Weight, *, of_squares: bool = False
) -> Relation | None:
    """Their relation where one is the other's transpose, two layouts of one weight; of another shape, or of squares."""
    if len(reference.parts) > 1 or len(candidate.parts) > 1:
        return None
    one, other = reference.parts[0], candidate.parts[0]
    if len(one.shape) != 2 or one.shape != other.shape[::-1] or not one.numel:
        return None
    if (one.shape == other.shape) is not of_squares:
        return None
    relation = relation_of(Whole((one,)), Whole((other,), Face.COLUMNS), is_transposed=True)
    return relation if relation.agrees else None


def _is_square(weight: Weight) -> bool:
    shape = weight.parts[0].shape
    return len(weight.parts) == 1 and len(shape) == 2 and shape[0] == shape[1]


_NUMBER = re.compile(r"\d+")


class _Match:
    """Pairs weights, the surest first."""

    def __init__(self, reference: dict[str, Weight], candidate: dict[str, Weight]) -> None:
        self._all = reference, candidate
        self._left = dict(reference), dict(candidate)
        self._pairs: list[Pair] = []
        self.fusions: KnownFusions = {}

    def result(self) -> Matching:
        """What was paired, in the order of the reference, and what was not."""
        order = {name: place for place, name in enumerate(self._all[0])}
        pairs = sorted(self._pairs, key=lambda pair: order[pair.reference[0]])
        pairs = [self._settled(pair) for pair in pairs]
        for place, relation in misplaced(dict(self._assemblies(pairs))).items():
            pairs[place] = replace(pairs[place], relation=relation)
        return Matching(pairs, list(self._left[0]), list(self._left[1]), self.fusions)

    def _assemblies(self, pairs: Sequence[Pair]) -> Iterator[tuple[int, Assembly]]:
        """Those that contents alone proved, by their place."""
        names = [{one.name: one.parts[0].dtype for one in side.values()} for side in self._all]
        for place, pair in enumerate(pairs):
            if pair.relation.agrees and pair.reference != pair.candidate and pair.how != COPY:
                if len(pair.candidate) == 1:
                    yield place, Assembly(pair.candidate[0], pair.reference, names[0])
                else:
                    yield place, Assembly(pair.reference[0], pair.candidate, names[1])

    def _settled(self, pair: Pair) -> Pair:
        """A square weight in the layout of the others, where those are transposed: its shape does not tell it."""
        if len(pair.reference) + len(pair.candidate) > 2 or not self._has_transposed():
            return pair
        one, other = self._all[0][pair.reference[0]], self._all[1][pair.candidate[0]]
        relation = _transposed(one, other, of_squares=True)
        if relation is not None:
            return Pair(pair.reference, pair.candidate, relation, TRANSPOSED)
        if pair.relation.agrees and _is_square(one) and not one.is_constant:
            relation = Relation(Standing.NOT_JUDGED, words="square, where others are transposed")
            return Pair(pair.reference, pair.candidate, relation)
        return pair

    def _has_transposed(self) -> bool:
        return any(TRANSPOSED in pair.how for pair in self._pairs if pair.relation.agrees)

    def by_name(self) -> None:
        """Those of one name."""
        for name in [name for name in self._left[0] if name in self._left[1]]:
            self._pair(name, name)

    def by_contents(self) -> None:
        """Those of other names whose contents are proven to be the same, and are no other's."""
        keyed: list[dict[tuple[object, ...], list[str]]] = [defaultdict(list), defaultdict(list)]
        for side, left in enumerate(self._left):
            for weight in left.values():
                for key in () if weight.is_constant else _keys(weight, is_reference=not side):
                    keyed[side][key].append(weight.name)
        for key, ours in keyed[0].items():
            ours = sorted((name for name in ours if name in self._left[0]), key=numbers_of)
            theirs = [name for name in keyed[1].get(key, ()) if name in self._left[1]]
            theirs.sort(key=numbers_of)
            for one, other in _by_likeness(ours, theirs):
                if related(self._left[0][one], self._left[1][other])[0].agrees:
                    self._pair(one, other)

    def by_fusion(self) -> None:
        """Those of one side that are several of the other, as their contents prove."""
        for whole, parts in ((1, 0), (0, 1)):
            fusions = Fusions(self._left[parts].values())
            for name in list(self._left[whole]):
                fusion = fusions.of(self._left[whole][name])
                if fusion is not None and self._left[parts].keys() >= set(fusion.parts):
                    self._fuse(whole, name, fusion)

    def as_others(self) -> None:
        """The rest, as weights of the same kind in other layers, or other weights of the same modules, were paired."""
        for whole in (1, 0):
            for name in list(self._left[whole]):
                found = self._fusion_like(whole, name)
                if found is not None:
                    self._fuse(whole, name, found)
        renames = _Renames(
            pair for pair in self._pairs if len(pair.reference) == len(pair.candidate) == 1
        )
        for name in list(self._left[0]):
            other = renames.of(name)
            if other in self._left[1]:
                self._pair(name, other)
        self._by_ending()

    def copies(self) -> None:
        """What one side lacks, but has as the copy of a different weight, as tied weights are."""
        for side in (0, 1):
            for name, weight in list(self._left[side].items()):
                twin = None if weight.is_constant else self._twin(side, name)
                if twin is not None:
                    del self._left[side][name]
                    names = (name, twin.candidate[0]) if side == 0 else (twin.reference[0], name)
                    self._pairs.append(
                        Pair((names[0],), (names[1],), self._of_copy(name, twin, side), COPY)
                    )

    def _of_copy(self, name: str, twin: Pair, side: int) -> Relation:
        """A tied weight is as its twin; a layer whose numbers are another's may be there twice on purpose."""
        own = (twin.reference, twin.candidate)[side][0]
        if _NUMBER.sub("#", own) != _NUMBER.sub("#", name):
            return twin.relation
        lacking = "reference" if side else "candidate"
        return Relation(
            Standing.NOT_JUDGED, words=f"a copy of another layer, which the {lacking} lacks"
        )

    def _twin(self, side: int, name: str) -> Pair | None:
        weight = self._all[side][name]
        for pair in self._pairs:
            names = (pair.reference, pair.candidate)[side]
            if len(pair.reference) == len(pair.candidate) == 1 and pair.relation.agrees:
                own = self._all[side][names[0]]
                relation = related(weight, own)[0]
                if own.name != name and relation.standing is Standing.EQUAL:
                    return pair
        return None

    def _pair(self, name: str, other: str) -> None:
        one, two = self._left[0].pop(name), self._left[1].pop(other)
        self._pairs.append(Pair((name,), (other,), *related(one, two)))

    def _fuse(self, whole: int, name: str, fusion: Fusion) -> None:
        one = self._left[whole].pop(name)
        parts = [self._left[1 - whole].pop(part) for part in fusion.parts]
        relation = fusion.relation(one, parts, is_candidate=whole == 1)
        sides = (fusion.parts, (name,)) if whole else ((name,), fusion.parts)
        self.fusions[bool(whole), name, fusion.parts] = fusion
        self._pairs.append(Pair(sides[0], sides[1], relation, fusion.told))

    def _fusion_like(self, whole: int, name: str) -> Fusion | None:
        """The fusion of a weight whose kind, or whose module's other weight, was put together too."""
        for (side, known, parts), fusion in self.fusions.items():
            if side != bool(whole):
                continue
            renamed = _renamed(known, name, parts)
            if renamed is not None and all(part in self._left[1 - whole] for part in renamed):
                return Fusion(renamed, fusion.face, fusion.part_face, fusion.groups)
        return None

    def _by_ending(self) -> None:
        """Those with the same shape, whose names end alike, and no other's as much."""
        best: dict[str, list[str]] = defaultdict(list)
        for name, weight in self._left[0].items():
            shapes = _extents_of(weight)
            fitting = [
                (_common_end(name, other), other)
                for other, its in self._left[1].items()
                if shapes == _extents_of(its)
            ]
            longest = max((count for count, _ in fitting), default=0)
            nearest = [other for count, other in fitting if count == longest > 0]
            if len(nearest) == 1:
                best[nearest[0]].append(name)
        for other, names in best.items():
            if len(names) == 1:
                self._pair(names[0], other)


def _keys(weight: Weight, *, is_reference: bool) -> Iterator[tuple[object, ...]]:
    """What is equal of two whole weights whose contents may be the same, or each other's transpose."""
    if len(weight.parts) > 1:
        return
    (part,) = weight.parts
    for dtype, digest in part.digests.items():
        yield part.shape, dtype, digest
    if len(part.shape) == 2 and part.shape[0] != part.shape[1]:
        shape = part.shape[::-1] if is_reference else part.shape
        for dtype, digests in (part.rows if is_reference else part.columns).items():
            yield TRANSPOSED, shape, dtype, xxh3_128_hexdigest(digests.tobytes())


def _by_likeness(ours: Sequence[str], theirs: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Pairs of equal contents: it does not matter which is which, so names decide that end most alike."""
    left = list(theirs)
    for one in ours:
        if left:
            best = max(left, key=lambda other: _common_end(one, other))
            left.remove(best)
            yield one, best


def _renamed(known: str, name: str, parts: Sequence[str]) -> tuple[str, ...] | None:
    """Names of the parts of `name`, where those of `known` are given: another number, or another last word."""
    if _NUMBER.sub("#", known) == _NUMBER.sub("#", name):
        numbers = dict(zip(_NUMBER.findall(known), _NUMBER.findall(name), strict=True))
        return tuple(_NUMBER.sub(lambda one: numbers.get(one[0], one[0]), part) for part in parts)
    (module, _, last), (other, _, word) = known.rpartition("."), name.rpartition(".")
    if module and module == other and all(part.rpartition(".")[2] == last for part in parts):
        return tuple(f"{part.rpartition('.')[0]}.{word}" for part in parts)
    return None


class _Renames:
    """How names of one side became names of the other."""

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._kinds: dict[str, tuple[str, str]] = {}
        self._modules: dict[str, tuple[str, str]] = {}
        self._prefixes: dict[str, set[str]] = defaultdict(set)
        for pair in pairs:
            known, other = pair.reference[0], pair.candidate[0]
            count = _common_end(known, other)
            heads = (name.split(".")[: name.count(".") + 1 - count] for name in (known, other))
            ours, theirs = map(".".join, heads)
            self._prefixes[ours].add(theirs)
            self._kinds.setdefault(_NUMBER.sub("#", known), (known, other))
            if known.rpartition(".")[2] == other.rpartition(".")[2]:
                self._modules.setdefault(known.rpartition(".")[0], (known, other))

    def of(self, name: str) -> str | None:
        """The name on the other side, as a pair tells that differs in numbers or in the last word alone."""
        found = self._kinds.get(_NUMBER.sub("#", name)) or self._modules.get(
            name.rpartition(".")[0]
        )
        renamed = None if found is None else _renamed(found[0], name, (found[1],))
        return self._by_prefix(name) if renamed is None else renamed[0]

    def _by_prefix(self, name: str) -> str | None:
        """The name in a module that all pairs in it say has another name."""
        words = name.split(".")
        for count in range(len(words) - 1, 0, -1):
            known = self._prefixes.get(".".join(words[:count]), ())
            if len(known) == 1:
                return ".".join([*filter(None, known), *words[count:]])
        return None


def _extents_of(weight: Weight) -> set[tuple[int, ...]]:
    """Its shapes, transposed or not."""
    return {tuple(sorted(part.shape)) for part in weight.parts}


def _common_end(one: str, other: str) -> int:
    """How many of the last words two names share.

    >>> _common_end("model.norm.weight", "norm.weight")
    2
    """
    words = zip(reversed(one.split(".")), reversed(other.split(".")), strict=False)
    count = 0
    for left, right in words:
        if left != right:
            break
        count += 1
    return count


__all__ = ["Matching", "Pair", "Weight", "match", "related"]
