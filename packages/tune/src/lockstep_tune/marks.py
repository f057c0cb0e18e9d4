"""Names of files and marks that the profiled process and its reader share."""

from __future__ import annotations

VARIABLE = "LOCKSTEP_PROFILE"
"""The environment variable that tells the process which steps, and where to."""

TRACE, BESIDE = "trace.json.gz", "beside.json"
"""Of each rank: the trace of torch.profiler, and what it does not hold."""

STEP = "ProfilerStep#"
"""As torch.profiler names its own steps."""

LINE, MODULE = "lockstep line:", "lockstep module:"
"""Before `7:/path/train.py`, or `7@12:/path/train.py` with the number of the stack, and before `Linear:h.0.mlp`."""

EVALUATION, AGAIN = "lockstep evaluation:", "lockstep again:"
"""Before the `id` of a module that runs without gradients or in eval mode, and before the line of a checkpoint."""
