"""Record from within a training: the recorder, and its facts about modules and calls; most names load torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.capture.api import Recording, record
    from lockstep.capture.calls.leaves import argument_tensors, plain_arguments
    from lockstep.capture.modules.exported_modules import module_of
    from lockstep.capture.modules.live_modules import living
    from lockstep.capture.modules.module_paths import clean_tree, without_wrappers
    from lockstep.capture.patching.patches import Patch
    from lockstep.capture.precision_sessions import precision_face
    from lockstep.capture.process.environment import (
        TRAINS,
        UNWRITTEN,
        Reached,
        leave_note,
        leave_trace,
        recorded_directory,
        request_from,
        trace_of,
    )
    from lockstep.capture.process.environment import VARIABLE as RECORD_VARIABLE
    from lockstep.capture.process.lineage import command_line as command_here
    from lockstep.capture.process.process_ends import Endings, uncaught
    from lockstep.capture.recorder import Recorder, active_recorder
    from lockstep.capture.settings.setup import (
        rank_and_world_size,
        seed_everything,
        seed_generators,
    )
    from lockstep.capture.silence import Silence
    from lockstep.capture.sink_call import Shared as SharedArray
    from lockstep.capture.sink_call import SinkCall
    from lockstep.capture.source_code.code_frames import frame_of, frames_here
    from lockstep.capture.source_code.code_frames import innermost as innermost_frames
    from lockstep.capture.source_code.user_code import is_of_the_user
    from lockstep.capture.user_notes import warn
    from lockstep.devices.tensor_numbers import digest_of
    from lockstep.devices.torch_files import save_tensor
    from lockstep.devices.vector_math import prepare_vector_math
    from lockstep.laws.program_memory import memory_for_programs
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "RECORD_VARIABLE",
    "TRAINS",
    "UNWRITTEN",
    "Endings",
    "Patch",
    "Reached",
    "Recorder",
    "Recording",
    "SharedArray",
    "Silence",
    "SinkCall",
    "active_recorder",
    "argument_tensors",
    "clean_tree",
    "command_here",
    "digest_of",
    "frame_of",
    "frames_here",
    "innermost_frames",
    "is_of_the_user",
    "leave_note",
    "leave_trace",
    "living",
    "memory_for_programs",
    "module_of",
    "plain_arguments",
    "precision_face",
    "prepare_vector_math",
    "rank_and_world_size",
    "record",
    "recorded_directory",
    "request_from",
    "save_tensor",
    "seed_everything",
    "seed_generators",
    "trace_of",
    "uncaught",
    "warn",
    "without_wrappers",
]
