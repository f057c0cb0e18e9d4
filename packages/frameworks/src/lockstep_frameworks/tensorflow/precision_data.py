"""What precision_tool's calls do: a script's session is recorded, each purpose in its folder of `precision_data`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lockstep.errors import LockstepError, UsageError
from lockstep.options import choice_of
from lockstep.recorder import command_here, trace_of, warn
from lockstep.recordings import Options, RunDirectory
from lockstep_frameworks.recording import FrameworkRecording, asked

try:
    import tensorflow as tf
    from tensorflow.core.protobuf import rewriter_config_pb2

    from lockstep_frameworks.tensorflow.environment import packages, why_unsupported
    from lockstep_frameworks.tensorflow.graph_looks import REWRITES
    from lockstep_frameworks.tensorflow.session_gradients import SessionGradients
    from lockstep_frameworks.tensorflow.sessions import Sessions
except ModuleNotFoundError as error:
    raise UsageError(
        "TensorFlow is not installed here: pip install 'lockstep-numerics[tensorflow]'"
    ) from error

_DATA = Path("precision_data")
_REFERENCE = _DATA / "tf" / "dump"
_CANDIDATE = _DATA / "npu" / "debug_0"
_OVERFLOW = _DATA / "overflow" / "dump"
_MOST_BYTES = 1 << 30
"""Of overflow data: every step is recorded, and a training may be long."""


class PrecisionFace:
    """One process's recording; `FACE` is the one that `lockstep_interop_names.precision_tool` uses.

    It listens to graphs from the start, as a script makes its configuration after its graph.
    """

    def __init__(self) -> None:
        self._gradients = SessionGradients()
        self._recording: FrameworkRecording | None = None
        if asked() is None:  # else `lockstep record` does all of it
            self._gradients.install()

    def configured(self, config: Any, action: Any, layers: Any) -> Any:
        """The configuration of a session for an action."""
        chosen = choice_of("action", action, ("dump", "overflow", "fusion_off"))
        config = tf.compat.v1.ConfigProto() if config is None else config
        if chosen in ("dump", "fusion_off"):
            _take_fusion_off(config)
        if chosen == "dump":
            only = [f"*{one}*" for one in str(layers or "").split()]
            self._begin(_CANDIDATE, Options(save="tensors", only=only))
        elif chosen == "overflow":
            self._begin(_OVERFLOW, Options(steps="0:", save="stats", max_bytes=_MOST_BYTES))
        return config

    def dump(self) -> None:
        """Record the reference."""
        self._begin(_REFERENCE, Options(save="tensors"))

    def _begin(self, directory: Path, options: Options) -> None:
        """Record what sessions run from here on; where that cannot be, the training goes on without."""
        if self._recording is not None or asked() is not None:
            return
        if why := why_unsupported():
            warn(f"nothing is recorded: {why}")
            return
        try:
            run = RunDirectory.create(directory.absolute(), command_here(), options, force=True)
        except LockstepError as error:
            warn(f"{error}; the training goes on")
            return
        run.started()
        recording = FrameworkRecording(run.path, options, packages(), "TensorFlow")
        sessions = Sessions(recording, self._gradients)
        recording.ended = sessions.remove
        recording.closed = lambda: _finish(run)
        sessions.install()
        recording.listen_for_the_end()
        self._recording = recording


def _finish(run: RunDirectory) -> None:
    """Close a recording: no command reads what its processes noted."""
    trace_of(run.path).unlink(missing_ok=True)
    run.finish(exit_code=0)


def _take_fusion_off(config: Any) -> None:
    """Have the session compute the graph as it is written."""
    passes = config.graph_options.rewrite_options
    for one in ("remapping", *REWRITES):
        setattr(passes, one, rewriter_config_pb2.RewriterConfig.OFF)
    config.graph_options.optimizer_options.global_jit_level = tf.compat.v1.OptimizerOptions.OFF


FACE = PrecisionFace()
"""Records a session of TensorFlow 1 as the calls of precision_tool ask for it."""
