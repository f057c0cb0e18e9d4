"""The process in which recorded calls run again, confined."""

__all__ = ["rerun_process"]
"""Modules that other rooms import."""

READY = b"ready\n"
"""The first line of `lockstep.replay.process.worker`."""

ONE_THREAD = "OPENBLAS_NUM_THREADS"
"""Makes NumPy start no threads of its own, which would be there before the process is confined."""
