"""Samples, and what Lockstep answers to each of their mutations."""

from __future__ import annotations

import shutil
from pathlib import Path

from mutations import Mutation, Promise, mutate, restore
from oracle import Answer, Runner, complaint
from samples import record_samples


class Fuzzer:
    """Samples, a worker, and what it answers to the samples as they are.

    Parameters
    ----------
    directory
        An empty one, for samples and their mutated copies.

    Attributes
    ----------
    samples
        Where they lie.
    """

    def __init__(self, directory: Path) -> None:
        self.samples, self._work = directory / "samples", directory / "work"
        self.samples.mkdir()
        self._work.mkdir()
        record_samples(self.samples)
        self._sound: dict[tuple[str, tuple[str, ...]], Answer] = {}
        sample = self.samples / "tensors-faulty"
        warm_up = directory / "warm"
        restore(sample, warm_up)
        self._runner = Runner(
            self._work,
            [
                ["compare", str(warm_up / "ref"), str(warm_up / "cand"), "--json"],
                ["show", str(warm_up / "ref")],
            ],
        )

    def run(self, number: int) -> tuple[Mutation, Answer, str]:
        """One mutation, what was answered, and what is wrong with that."""
        mutation = mutate(number, self.samples, self._work)
        sound = self._sound_answer(mutation)
        if sound is None:
            self._take_sound_answer(mutation)
            return self.run(number)
        answer = self._runner.run(list(mutation.arguments))
        return mutation, answer, complaint(mutation, sound, answer)

    def keep(self, directory: Path) -> None:
        """Keep the recordings of the mutation that was run last."""
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(self._work, directory, symlinks=True, ignore=_what_is_no_file)

    def close(self) -> None:
        """End the worker."""
        self._runner.close()

    def _sound_answer(self, mutation: Mutation) -> Answer | None:
        """What is answered to the sample as it is, once that is known; any answer where it does not matter."""
        if mutation.promise is Promise.NOTHING:
            return Answer(0, "", "")
        return self._sound.get((mutation.sample, mutation.arguments))

    def _take_sound_answer(self, mutation: Mutation) -> None:
        restore(self.samples / mutation.sample, self._work)
        found = self._runner.run(list(mutation.arguments))
        self._sound[mutation.sample, mutation.arguments] = found


def _what_is_no_file(directory: str, names: list[str]) -> list[str]:
    """Pipes, and files of gigabytes: a description says enough of them."""
    paths = [Path(directory) / name for name in names]
    return [one.name for one in paths if one.is_fifo() or one.lstat().st_size > 1 << 30]
