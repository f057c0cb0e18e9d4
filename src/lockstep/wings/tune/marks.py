"""Names of files and marks that the profiled process and its reader share."""

from __future__ import annotations

VARIABLE = "LOCKSTEP_PROFILE"
"""The environment variable that tells the process which steps, and where to."""

TRACE, BESIDE = "trace.json.gz", "beside.json"
"""Of each rank: the trace of torch.profiler, and what it does not hold."""

STEP = "ProfilerStep#"
"""As torch.profiler names its own steps."""

LINE, MODULE = "lockstep line:", "lockstep module:"
"""Before `7:/path/train.py`, and before `Linear:h.0.mlp`."""
