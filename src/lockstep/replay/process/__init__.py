"""The process in which recorded calls run again, confined, and what is asked of it."""

__all__ = ["answers", "questions", "rerun_process"]
"""Modules that other rooms import."""

READY = b"ready\n"
"""The first line of `lockstep.replay.process.worker`."""

ONE_THREAD = "OPENBLAS_NUM_THREADS"
"""Makes NumPy start no threads of its own, which would be there before the process is confined."""
