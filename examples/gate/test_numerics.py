"""The same check as a test of pytest, by the fixture that comes with Lockstep."""

from train import train


def test_the_training_computes_what_its_golden_says(lockstep_gate):
    lockstep_gate("golden-test", train)
