"""Mutates recordings and holds what Lockstep says of them against what it may say.

python tests/fuzz 1000                  a thousand mutations, numbers 0 to 999
python tests/fuzz 5 --from 4711         a few from there on: a number gives the same mutation
python tests/fuzz 1000 --keep findings  with the recordings of what was found
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from fuzzer import Fuzzer
from mutations import Mutation
from oracle import Answer


def main() -> int:
    """Run mutations, print every finding; exit code 1 where there is one."""
    options = _options()
    found: Counter[str] = Counter()
    answers: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="lockstep-fuzz-") as name:
        fuzzer = Fuzzer(Path(name))
        start = time.monotonic()
        for number in range(options.first, options.first + options.count):
            mutation, answer, what = fuzzer.run(number)
            answers[f"{'sealed' if mutation.sealed else 'damage'}: {_kind(answer)}"] += 1
            if what:
                found[what] += 1
                _report(mutation, answer, what, brief=found[what] > 2)
                if options.keep is not None:
                    fuzzer.keep(options.keep / str(number))
            if number % 500 == 499:
                print(f"... {number + 1} after {time.monotonic() - start:.0f} s", flush=True)
        seconds = time.monotonic() - start
        fuzzer.close()
    print(f"{options.count} mutations, {options.count / seconds:.1f} a second")
    print(", ".join(f"{count} {kind}" for kind, count in sorted(answers.items())))
    for what, count in found.most_common():
        print(f"{count:6} {what}")
    print(f"{sum(found.values())} findings of {len(found)} kinds")
    return 1 if found else 0


def _kind(answer: Answer) -> str:
    return "refused" if answer.err and answer.code == 2 else f"exit {answer.code}"


def _report(mutation: Mutation, answer: Answer, what: str, *, brief: bool) -> None:
    print(f"{what}\n    {mutation}", flush=True)
    if not brief:
        print(f"    exit {answer.code}, {answer.seconds:.1f} s, {answer.grown_bytes >> 20} MB")
        for line in answer.err.splitlines()[-30:]:
            print(f"    | {line:.200}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("count", type=int, help="how many mutations")
    parser.add_argument("--from", dest="first", type=int, default=0, help="number of the first")
    parser.add_argument("--keep", type=Path, help="put the recordings of findings here")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
