"""Recordings for tests: made up in NumPy or trained for real, sound, faulty, of two ranks, damaged.

For the tests of plug-ins; `docs/testing-plugins.md` shows how. Nothing of Lockstep itself uses it.
"""

from lockstep.testing.made_recordings import damage, write_recording
from lockstep.testing.made_training import MadeTraining
from lockstep.testing.trained_recordings import record_training

__all__ = ["MadeTraining", "damage", "record_training", "write_recording"]
