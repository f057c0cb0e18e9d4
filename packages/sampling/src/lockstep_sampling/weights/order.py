"""Whether weights that were paired by contents stand in the order of their names.

Equal contents prove that a weight is there, not that it is in its place: an engine with two layers exchanged, or with k
before q in a fused tensor, has the contents of all weights, and is a different model. Layers and experts are numbered,
so their numbers have to rise on both sides; parts of a fused tensor have to stand as in other layers, and as its name
says (`qkv`), or as the module declares them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from lockstep_sampling.weights.relation import Relation, Standing

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Assembly:
    """A weight, and those of the other side whose contents it has.

    whole: Its name.
    parts: The names of the others, in their order.
    siblings: All names of the side that has the parts, in its order, each with its dtype.
    """

    whole: str
    parts: tuple[str, ...]
    siblings: Mapping[str, str]


def misplaced(assemblies: Mapping[int, Assembly]) -> dict[int, Relation]:
    """Return, by the key of an assembly, what to say of it instead of equal."""
    found: dict[int, Relation] = {}
    found.update(_not_told(assemblies))
    found.update(_unlike_others(assemblies))
    found.update((key, _OUT_OF_ORDER) for key in _out_of_order(assemblies))
    return found


_OUT_OF_ORDER = Relation(Standing.DIFFERS, words="equal numbers, in another order than their names")


def numbers_of(name: str) -> Numbers:
    """Return the numbers of layers and experts in a name.

    >>> numbers_of("layers.3.experts.12.w1")
    (3, 12)
    """
    return tuple(int(word) for word in name.split(".") if word.isdecimal())


def _kind(name: str) -> str:
    return ".".join("#" if word.isdecimal() else word for word in name.split("."))


def _by_kind(names: Sequence[str]) -> dict[str, list[Numbers]]:
    found: dict[str, list[Numbers]] = defaultdict(list)
    for name in names:
        found[_kind(name)].append(numbers_of(name))
    return found


def _out_of_order(assemblies: Mapping[int, Assembly]) -> Iterator[int]:
    """Those whose numbers do not rise with their parts', among weights of one kind."""
    steps: dict[tuple[str, str], list[tuple[Numbers, Numbers, int]]] = defaultdict(list)
    for key, one in assemblies.items():
        for kind, numbers in _by_kind(one.parts).items():
            if any(right <= left for left, right in pairwise(numbers)):
                yield key
            steps[_kind(one.whole), kind].append((numbers_of(one.whole), numbers[0], key))
    for each in steps.values():
        yield from _inverted(sorted(each))


def _inverted(steps: Sequence[tuple[Numbers, Numbers, int]]) -> Iterator[int]:
    """Those that have one before them that is greater, or one behind them that is less."""
    parts = [part for _, part, _ in steps]
    greatest = list(accumulate(parts, max))
    least = list(accumulate(reversed(parts), min))[::-1]
    for place, (_, part, key) in enumerate(steps):
        if greatest[place] > part or least[place] < part:
            yield key


def _unlike_others(assemblies: Mapping[int, Assembly]) -> Iterator[tuple[int, Relation]]:
    """Fused weights whose parts stand otherwise than in most of their kind."""
    orders: dict[str, dict[int, tuple[str, ...]]] = defaultdict(dict)
    for key, one in assemblies.items():
        if len(kinds := _by_kind(one.parts)) > 1:
            orders[_kind(one.whole)][key] = tuple(kinds)
    for each in orders.values():
        ranked = Counter(each.values()).most_common(2)
        is_tie = len(ranked) > 1 and ranked[0][1] == ranked[1][1]
        for key, order in each.items():
            if is_tie or order != ranked[0][0]:
                words = f"put together otherwise than its like: {_listed(assemblies[key])}"
                yield key, Relation(Standing.DIFFERS, words=words)


def _not_told(assemblies: Mapping[int, Assembly]) -> Iterator[tuple[int, Relation]]:
    """Fused weights of whose order neither their name nor the parts' module says that it is right."""
    sorted_sides: dict[int, bool] = {}
    for key, one in assemblies.items():
        firsts = _firsts(one)
        if len(firsts) < 2:
            continue
        declared = order_in_name(one.whole, firsts)
        words = "put together in an order that no name tells" if declared is None else _DENIED
        if declared is None:
            side = id(one.siblings)
            if side not in sorted_sides:
                sorted_sides[side] = _is_sorted(one.siblings)
            places = {name: place for place, name in enumerate(one.siblings)}
            declared = [] if sorted_sides[side] else sorted(firsts, key=places.__getitem__)
        if declared != firsts:
            yield key, Relation(Standing.NOT_JUDGED, words=f"{words}: {_listed(one)}")


_DENIED = "put together in an order that its name denies"


def _firsts(one: Assembly) -> list[str]:
    """The first part of each kind."""
    found: dict[str, str] = {}
    for part in one.parts:
        found.setdefault(_kind(part), part)
    return list(found.values())


def _is_sorted(names: Mapping[str, str]) -> bool:
    """Whether names of one dtype stand by the alphabet, as files have them: that is nobody's declaration."""
    last: dict[str, str] = {}
    for name, dtype in names.items():
        if name < last.get(dtype, ""):
            return False
        last[dtype] = name
    return True


def order_in_name(whole: str, parts: Sequence[str]) -> list[str] | None:
    """Return the parts in the order in which a name has their words; None where it does not have them all.

    >>> order_in_name("h.0.gate_up_proj.weight", ["h.0.up_proj.weight", "h.0.gate_proj.weight"])
    ['h.0.gate_proj.weight', 'h.0.up_proj.weight']
    """
    words = _own_words(parts)
    if not all(words) or len(set(words)) < len(words):
        return None
    common = set.intersection(*(set(part.split(".")) for part in parts))
    for text in (word.lower() for word in whole.split(".") if word not in common):
        found = sorted((text.find(word), part) for word, part in zip(words, parts, strict=True))
        if found[0][0] >= 0 and len({place for place, _ in found}) == len(found):
            return [part for _, part in found]
    return None


def _own_words(parts: Sequence[str]) -> list[str]:
    """What each name has of its own, in its first word that is not that of all: q, k, v of q_proj, k_proj, v_proj."""
    columns = list(zip(*(part.lower().split(".") for part in parts), strict=False))
    own = next((list(words) for words in columns if len(set(words)) > 1), [""] * len(parts))
    while all(own) and len({word[-1] for word in own}) == 1:
        own = [word[:-1] for word in own]
    while all(own) and len({word[0] for word in own}) == 1:
        own = [word[1:] for word in own]
    return own


def _listed(one: Assembly) -> str:
    """The parts in short: "k + q + v"."""
    firsts = _firsts(one)
    own = _own_words(firsts)
    return " + ".join(own if all(own) else firsts)


__all__ = ["Assembly", "misplaced", "numbers_of", "order_in_name"]
