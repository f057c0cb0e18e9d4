"""Recording takes no more than its share of a training's time, told by a clock that the test turns."""

from __future__ import annotations

import pytest

from lockstep.capture.recording.recording_share import RecordingShare


class Training:
    """Steps of one second; a recorded one takes `cost_s` more, and the first of them three times that."""

    def __init__(self, share: float, cost_s: float, written_in: int = 0) -> None:
        self.now_s = 100.0
        self.recorded: list[int] = []
        self._share = RecordingShare(share, lambda: self.now_s)
        self._cost_s, self._written_in = cost_s, written_in
        self._writing = 0

    def run(self, steps: int) -> float:
        """Train, record where that may be, and say what recording cost behind the first."""
        began_s, spent_s = self.now_s, 0.0
        for step in range(steps):
            recorded = self._share.covers_one_more()
            if recorded:
                self._share.begin()
                self.recorded.append(step)
                self._writing = self._written_in + 1
            cost_s = self._cost_s * (1 if len(self.recorded) > 1 else 3) if recorded else 0.0
            cost_s += 0.5 * (self._writing > 0 and not recorded)
            self._writing = max(0, self._writing - 1)
            self.now_s += 1.0 + cost_s
            self._share.step_ended(recorded=recorded, writing=self._writing > 0)
            spent_s += cost_s if len(self.recorded) > 1 else 0.0
        assert self.now_s > began_s
        return spent_s


@pytest.mark.parametrize(("cost_s", "written_in"), [(0.5, 0), (4.0, 0), (4.0, 3)])
def test_what_recording_costs_stays_within_the_share(cost_s: float, written_in: int) -> None:
    # given a training of 200 s, recorded at a tenth of its time
    training = Training(0.1, cost_s, written_in)
    spent_s = training.run(200)
    # then the first step is recorded, others are as well, as many as the share covers, and no more
    assert training.recorded[0] == 0
    assert 0.0 < spent_s <= 0.1 * 200
    assert len(training.recorded) > 2
    assert training.recorded[1] > 1


def test_steps_that_cost_nothing_are_all_recorded_behind_a_plain_one() -> None:
    training = Training(0.1, 0.0)
    assert training.run(10) == 0.0
    assert training.recorded == [0, *range(2, 10)]


def test_a_step_that_costs_more_than_the_share_of_all_is_not_recorded_again() -> None:
    training = Training(0.1, 50.0)
    assert training.run(100) == 0.0
    assert training.recorded == [0]
