"""Which trainings are recorded and which of them are compared: sound pairs, and mistakes beside their reference.

Everything has a name, and a case's half is drawn from its name: constants of the judge may be chosen on one half, the
other one is published.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from enum import Enum

import frameworks.mistakes_model
import frameworks.mistakes_training  # noqa: F401 - registers its kinds
from frameworks.mistakes import MISTAKES, Mistake, drawn
from frameworks.script import Script
from frameworks.subjects import SUBJECTS, Subject
from frameworks.ways import WAYS, Way

SEED = 7_000
"""Which ways, models and modules a mistake is drawn for."""

_ACROSS = 0.35
"""Share of the cases whose reference is the plain loop, where the way computes the same as that."""


class Half(str, Enum):
    """What a case may be used for."""

    TABLE = "frameworks"
    DEVELOPMENT = "frameworks-development"


def half_of(name: str) -> Half:
    """The half that a case is in, whatever other cases there are."""
    digest = hashlib.sha256(f"half/{name}".encode()).digest()
    return Half.TABLE if digest[0] % 2 else Half.DEVELOPMENT


@dataclass(frozen=True)
class Recipe:
    """One training that is recorded: a way, a model, and what is other about it.

    `variant` is a sound change of the surroundings (`VARIANTS`); `prepared` says that the mistake's situation is there,
    `planted` that the mistake is.
    """

    way: str
    subject: str
    variant: str = ""
    mistake: str = ""
    place: str = ""
    planted: bool = False

    @property
    def name(self) -> str:
        """`trainer/gpt2/clip-forgotten`, the reference of which is `trainer/gpt2`."""
        parts = [self.way, self.subject, self.variant, self.mistake, self.place]
        if self.mistake and not self.planted:
            parts.append("reference")
        return "/".join(part for part in parts if part)

    def script(self, rank: int) -> Script:
        """The script, ready to run."""
        script = WAYS[self.way].script(SUBJECTS[self.subject])
        if self.variant:
            VARIANTS[self.variant].apply(script)
        mistake = MISTAKES.get(self.mistake)
        if mistake is not None and mistake.prepare is not None:
            mistake.prepare(script, self.place)
        script.draw(rank)
        if mistake is not None and self.planted:
            mistake.plant(script, self.place)
        return script


@dataclass(frozen=True)
class Variant:
    """A sound change: values of the script that have no bearing on what is computed, but for rounding."""

    name: str
    settings: tuple[tuple[str, object], ...] = ()

    def apply(self, script: Script) -> None:
        """Lay the values over the script's."""
        for name, value in self.settings:
            setattr(script, name, value)


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("again"),
        Variant("two-threads", (("threads", 2),)),
        Variant("onednn-off", (("onednn", False),)),
        Variant("deterministic", (("deterministic", True),)),
        Variant("same-data", (("same_data", True), ("recorded_ranks", "0"))),
    )
}


@dataclass(frozen=True)
class Pair:
    """Two sound trainings.

    `setup` says that the two are set up otherwise, so that it is right to say so; `uniform` that one of them
    computes in another precision throughout.
    """

    reference: Recipe
    candidate: Recipe
    setup: bool = False
    uniform: bool = False

    @property
    def name(self) -> str:
        """`plain/gpt2 = trainer/gpt2`."""
        return f"{self.reference.name} = {self.candidate.name}"


@dataclass(frozen=True)
class Case:
    """A mistake and the sound training that it is held against."""

    reference: Recipe
    candidate: Recipe

    @property
    def kind(self) -> Mistake:
        """What the mistake is."""
        return MISTAKES[self.candidate.mistake]

    @property
    def name(self) -> str:
        """`trainer/gpt2/clip-forgotten`, with the reference's way in front where that is another one."""
        parts = [self.candidate.way, self.candidate.subject, self.candidate.mistake]
        if self.reference.way != self.candidate.way:
            parts.insert(0, f"{self.reference.way} > ")
        return "/".join(parts).replace(" > /", " > ")

    @property
    def sound(self) -> Recipe:
        """The candidate's own training without the mistake: where it ends alike, there is no mistake."""
        one = self.candidate
        if self.kind.prepare is None:
            return Recipe(one.way, one.subject)
        return Recipe(one.way, one.subject, one.variant, one.mistake, one.place)


def all_cases() -> list[Case]:
    """Every mistake in the ways and models drawn for it."""
    cases = []
    for mistake in MISTAKES.values():
        for way, subject, place in drawn(mistake, SEED):
            candidate = Recipe(way.name, subject.name, "", mistake.name, place, planted=True)
            reference = Case(candidate, candidate).sound
            if _compares_with_plain(way, subject, mistake):
                reference = Recipe("plain", subject.name)
            cases.append(Case(reference, candidate))
    return cases


def _compares_with_plain(way: Way, subject: Subject, mistake: Mistake) -> bool:
    stream = random.Random(f"{SEED}/{way.name}/{subject.name}/{mistake.name}")
    return (
        stream.random() < _ACROSS
        and way.group == "plain"
        and not way.setup
        and mistake.prepare is None
        and subject.name in WAYS["plain"].subjects
    )


# ------------------------------------------------------------------------------------------- pairs


def all_pairs() -> list[Pair]:
    """Every way beside itself, and beside the others that compute the same."""
    return [*_beside_themselves(), *_of_groups(), *_across_groups()]


def _beside_themselves() -> list[Pair]:
    """Once more, or with another number of threads, another kernel library, deterministic algorithms."""
    pairs = []
    for way in WAYS.values():
        for name in way.subjects:
            recipe = Recipe(way.name, name)
            stream = random.Random(f"{SEED}/{recipe.name}")
            variant = stream.choice(
                ("two-threads", "two-threads", "again", "onednn-off", "deterministic")
            )
            pairs.append(Pair(recipe, Recipe(way.name, name, variant), setup=variant != "again"))
    return pairs


def _of_groups() -> list[Pair]:
    """Every way beside the first of its group, and beside one more."""
    pairs = []
    for group in dict.fromkeys(way.group for way in WAYS.values()):
        for name in SUBJECTS:
            ways = [way for way in WAYS.values() if way.group == group and name in way.subjects]
            stream = random.Random(f"{SEED}/{group}/{name}")
            for number, way in enumerate(ways[1:], 1):
                pairs.append(_pair(ways[0], way, name))
                if number > 1:
                    pairs.append(_pair(stream.choice(ways[1:number]), way, name))
    return pairs


def _pair(left: Way, right: Way, subject: str) -> Pair:
    return Pair(
        Recipe(left.name, subject), Recipe(right.name, subject), setup=left.setup or right.setup
    )


def _across_groups() -> list[Pair]:
    """Another precision throughout; scaled losses; one rank of several that have the same data."""
    pairs = [
        Pair(Recipe("plain", name), Recipe("autocast", name), uniform=True, setup=True)
        for name in WAYS["autocast"].subjects
    ]
    pairs += [
        Pair(Recipe("plain", name), Recipe("scaler", name), setup=True)
        for name in WAYS["scaler"].subjects
    ]
    pairs += [
        Pair(Recipe("accumulate", name), Recipe("ddp", name, "same-data"), setup=True)
        for name in ("gpt2", "conv", "mlp")
    ]
    return pairs
