"""One training of the benchmark as a script, to be recorded from a shell as users record theirs.

python benchmarks/faults/one_training.py drawn.json --draw 10 --seed 54   ten faults of the smallest model, drawn
python benchmarks/faults/one_training.py drawn.json                       the sound training
python benchmarks/faults/one_training.py drawn.json dropped-bias          with this fault planted
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from architectures import ARCHITECTURES
from cases import Case, cases_of, targets_of
from kinds import KINDS, Planted, Target
from sites import Place
from training import Training

ARCHITECTURE = "mlp"


def main() -> None:
    """Train, or draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("fault", nargs="?")
    parser.add_argument("--draw", type=int, metavar="N")
    parser.add_argument("--seed", type=int, default=54)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.draw is not None:
        cases = {one.kind: asdict(one.planted) for one in _drawn(options.draw, options.seed)}
        options.file.write_text(json.dumps(cases))
        return
    training = Training.of(ARCHITECTURES[ARCHITECTURE])
    if options.fault is not None:
        planted = _planted(json.loads(options.file.read_text())[options.fault])
        KINDS[options.fault].plant(training, planted)
    for number, loss in enumerate(training.run()):
        print(f"step {number}: loss {loss:.6f}")


def _drawn(count: int, seed: int) -> list[Case]:
    """So many cases, drawn from those that take one process and one sound training beside."""
    cases = [
        one
        for one in cases_of(ARCHITECTURE, targets_of(ARCHITECTURES[ARCHITECTURE]))
        if one.fault.ranks == 1 and one.fault.plant_reference is None
    ]
    return random.Random(seed).sample(sorted(cases, key=lambda one: one.kind), count)


def _planted(values: dict[str, Any]) -> Planted:
    target = values["target"]
    place = Place(**target["place"])
    operators = tuple(target["operators"])
    target = Target(**{**target, "place": place, "operators": operators})
    return Planted(target, values["amount"], values["from_step"])


if __name__ == "__main__":
    main()
