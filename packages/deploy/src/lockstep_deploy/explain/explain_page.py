"""The page of `lockstep explain`: each input as a picture, with the weight of its parts, and the layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from lockstep.page import Block, Card, Grid, HeatMap, Images, Page, Sentences, Verdict
from lockstep_deploy.explain.attributing import Explained, Floats, Part
from lockstep_deploy.explain.comparing import Apart

SHOWN = 4
"""How many samples are drawn."""

_MOST_ROWS = 40


def explain_page(
    models: Sequence[Explained],
    apart: Sequence[Apart],
    told: Sequence[str],
    names: Sequence[str],
    headline: str,
) -> Page:
    """Compose the page.

    models: One model, or the reference and the candidate.
    apart: How far the two are apart.
    told: What is to be known beside, a sentence each.
    names: Of classes; empty where they have none.
    """
    first = models[0]
    facts = [("Samples", str(len(first.classes))), ("Layers", str(len(first.layers)))]
    facts += [("Integrated gradients miss the score's change by", f"{first.gap:.2g}")]
    verdict = Verdict(
        "agree", "origin", "Explain", " and ".join(one.name for one in models), headline, "", facts
    )
    cards = [Card("Answers", (_answers(models, names),))]
    if apart:
        titles = ("of", "by", "cosine", "relative L2", "largest tenth in common")
        rows = [(one.what, one.how, one.cosine, one.rel_l2, f"{one.shared:.0%}") for one in apart]
        cards.append(Card("Where the two models part", (Grid(titles, rows),)))
    for at, part in enumerate(first.parts):
        parts = {whose: one.parts[at] for whose, one in zip(_whose(models), models, strict=True)}
        cards.append(Card(f"Input {part.name}", (*_input(part), *_pictures(parts))))
    cards.append(Card("Layers: gradient x output", (_layers(models),)))
    cards.append(Card("Read this", (Sentences(told),)))
    return Page(title=f"{headline} · Lockstep", areas=(verdict, *cards), about=first.name)


def _whose(models: Sequence[Explained]) -> list[str]:
    """Words for each model behind a title; two of one name are told apart."""
    if len(models) == 1:
        return [""]
    same = len({one.name for one in models}) == 1
    return [
        f" of {one.name}{', the second' if same and at else ''}" for at, one in enumerate(models)
    ]


def _answers(models: Sequence[Explained], names: Sequence[str]) -> Grid:
    def called(number: int) -> str:
        return names[number] if number < len(names) else f"class {number}"

    titles = ["sample", "explained"]
    titles += [title for one in models for title in (f"answer of {one.name}", "its score")]
    rows = [
        [
            str(at), called(explained),
            *(cell for one in models for cell in (called(int(one.scores[at].argmax())), float(one.scores[at].max()))),
        ]
        for at, explained in enumerate(models[0].classes)
    ]  # fmt: skip
    differ = [
        at for at in range(len(rows)) if len({int(one.scores[at].argmax()) for one in models}) > 1
    ]
    return Grid(titles, rows, standing_out=differ)


def _input(part: Part) -> Iterator[Block]:
    """The input itself, where it is an image."""
    given = part.given
    if given.ndim == 4 and given.shape[1] in (1, 3):
        shown = given[:SHOWN].astype(np.float64)
        low, high = shown.min(), shown.max()
        pixels = np.rint((shown - low) / (high - low or 1.0) * 255).astype(np.uint8)
        count, channels, height, width = shown.shape
        rows = [(str(at), float(one.min()), float(one.max())) for at, one in enumerate(shown)]
        yield Images(
            f"{part.name}, the first {count} of {len(given)}", height, width, channels,
            np.ascontiguousarray(pixels.transpose(0, 2, 3, 1)).ravel(),
            f"black is {low:.3g}, white is {high:.3g}", ("sample", "least", "largest"), rows,
        )  # fmt: skip


def _pictures(parts: Mapping[str, Part]) -> Iterator[Block]:
    """A picture of each method, of both models beside each other: an image, or a row a sample; and the numbers.

    parts: The input in each model, by the words that say whose it is.
    """
    first = next(iter(parts.values()))
    is_image = first.given.ndim >= 4
    for how in first.values:
        if not is_image:
            shown = [one.values[how][:_MOST_ROWS] for one in parts.values()]
            maps = [one.reshape(len(one), -1) for one in shown]
            about = "a row a sample, a column a token or a feature"
            yield _side_by_side(how.value, maps, list(parts), about)
            continue
        for at in range(min(SHOWN, len(first.given))):
            pixels = [one.values[how][at].sum(0) for one in parts.values()]
            maps = [one.reshape(len(one), -1) for one in pixels]
            yield _side_by_side(f"{how.value}, sample {at}", maps, list(parts), _CHANNELS)
    for whose, part in parts.items() if not is_image else ():
        yield _numbers(part, whose)


_CHANNELS = "channels are added up"


def _side_by_side(title: str, maps: Sequence[Floats], whose: Sequence[str], about: str) -> HeatMap:
    """One map, or two with a gap between them, so that both have one range of colours."""
    if len(maps) == 1:
        rows, columns = maps[0].shape
        return HeatMap(title, rows, columns, maps[0].ravel(), about, means=False)
    gap = np.full((len(maps[0]), max(1, maps[0].shape[1] // 16)), np.nan)
    both = np.hstack([maps[0], gap, maps[1]])
    sides = f"left{whose[0]}, right{whose[1]}, in one range of colours"
    rows, columns = both.shape
    return HeatMap(title, rows, columns, both.ravel(), f"{sides}; {about}", means=False)


def _numbers(part: Part, whose: str) -> Grid:
    """The parts of the first sample, the heaviest by integrated gradients first."""
    methods = list(part.values)
    flat = [part.values[how][0].ravel() for how in methods]
    order = np.argsort(-np.abs(flat[1]), kind="stable")[:_MOST_ROWS].tolist()
    given = part.given[0].ravel()
    rows = [(str(at), given[at].item(), *(float(one[at]) for one in flat)) for at in order]
    title = f"Sample 0{whose}, the {len(rows)} heaviest of {len(given)} by integrated gradients"
    return Grid(("place", "value", *(how.value for how in methods)), rows, title)


def _layers(models: Sequence[Explained]) -> Grid:
    titles = ["layer"]
    for one in models:
        titles += [f"sum of {one.name}" if len(models) > 1 else "sum", "size"]
    names = dict.fromkeys(name for one in models for name in one.layers)

    def cells(model: Explained, name: str) -> tuple[float | None, float | None]:
        if name not in model.layers:
            return None, None
        values = model.layers[name] / len(model.classes)
        return float(values.sum()), float(np.abs(values).sum())

    rows = [
        [name or "(model)", *(cell for one in models for cell in cells(one, name))]
        for name in names
    ]
    return Grid(titles, rows)
