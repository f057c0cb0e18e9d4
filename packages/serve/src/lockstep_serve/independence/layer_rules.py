"""Where a whole layer in one operator leaves the batch axis: recurrent ones, attention, sums by letters, bags."""

from __future__ import annotations

from lockstep_serve.independence.rules import Places, aligned, shared
from lockstep_serve.independence.values import ONE, Call, Content, Mixes, NotListed, Place


def recurrent(call: Call) -> Places:
    """LSTM, GRU, RNN: the batch axis is `axis` of the sequence, 1 of the `states`, and of results where `results` says.

    `states` are operands by their places, and so are `lengths`, which hold the length of each sequence.
    """
    value = call.first
    axis, states = call.options["axis"], call.options["states"]
    wanted = [(0, axis), *((at, 1) for at in states), *((at, 0) for at in call.options["lengths"])]
    for at, own in wanted:
        one = call.tensors[at] if at < len(call.tensors) else None
        if one is None:
            continue
        place = one.place
        if place is None or place.axis != own or (place.outer, place.inner) not in (
            (ONE, ONE), (None, ONE)
        ):  # fmt: skip
            raise Mixes("has an operand whose batch axis is not where it counts instances")
    held = {at for at, _ in wanted}
    if any(one is not None and one.place for at, one in enumerate(call.tensors) if at not in held):
        raise Mixes("takes as a parameter what depends on the instances")
    assert value.place is not None
    return [Place(one) for one in call.options["results"]]


def attention(call: Call) -> Places:
    """Scaled dot products of queries, keys, values, with a mask that is added to the scores or chooses among them."""
    query, key, value, *mask = call.given
    found = aligned([query, key, value], least=2)
    if any(one.place is None for one in (query, key, value)):
        raise Mixes("has an operand without the batch axis")
    shared([query, *mask], least=2)
    return [found[1].at(query.rank + found[0])]


def einsum(call: Call) -> Places:
    """A sum of products by an `equation` of letters."""
    equation = call.options["equation"].replace(" ", "")
    terms, arrow, result = equation.partition("->")
    places: list[tuple[str, Place]] = []
    if not arrow or "." in equation:
        raise NotListed("has an equation without a result, or with dots")
    for term, value in zip(terms.split(","), call.given, strict=True):
        if value.place is not None:
            letter = term[value.place.axis]
            if term.count(letter) > 1:
                raise Mixes("takes the diagonal of the batch axis")
            places.append((letter, value.place))
    letter, place = places[0]
    for term, value in zip(terms.split(","), call.given, strict=True):
        if value.place is None and letter in term:
            raise Mixes("has an operand of a fixed extent along the batch axis")
    for other, own in places:
        if other != letter or own.at(place.axis) != place:
            raise Mixes("brings the instances of one operand together with those of another")
    if result.count(letter) != 1:
        raise Mixes("sums over the batch axis")
    return [place.at(result.index(letter))]


def bags(call: Call) -> Places:
    """Torch's embedding_bag: bag i begins where instance i does, and is as long."""
    weight, indices, offsets, *weights = call.given
    own = indices.place
    if own is None or offsets.place is None or weight.place is not None or own.outer != ONE:
        raise Mixes("has bags that are no instances")
    if offsets.content is not Content.ROW_NUMBERS or offsets.stride != own.inner:
        raise Mixes("has bags that are no instances")
    if call.options.get("include_last_offset") or any(one.place != own for one in weights):
        raise Mixes("has bags that are no instances")
    rest = Mixes("has a result of which nothing is known")
    return [Place(0), rest, rest, rest]


def batch_statistics(call: Call) -> Places:
    """A norm over all axes but the second, which may hold the instances beside their channels."""
    value = call.first
    found = value.place
    if found is None or found.axis != 1:
        raise Mixes("normalises by the whole batch")
    for one in call.given[1:]:
        if one.place is None or one.place != found.at(0):
            raise Mixes("has an operand of a fixed extent along the batch axis")
    return [found, found.at(0), found.at(0)]
