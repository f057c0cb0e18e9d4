"""Record from within a training: the recorder, and its facts about modules and calls; its names load torch."""

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
    from lockstep.capture.process.environment import recorded_directory
    from lockstep.capture.recorder import Recorder, active_recorder
    from lockstep.capture.settings.setup import (
        rank_and_world_size,
        seed_everything,
        seed_generators,
    )
    from lockstep.capture.silence import Silence
    from lockstep.capture.source_code.user_code import is_of_the_user
    from lockstep.capture.user_notes import warn
    from lockstep.devices.tensor_numbers import digest_of
    from lockstep.devices.torch_files import save_tensor
    from lockstep.devices.vector_math import prepare_vector_math
    from lockstep.wings.frameworks.tensorflow.precision_data import FACE as PRECISION_FACE
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "PRECISION_FACE",
    "Patch",
    "Recorder",
    "Recording",
    "Silence",
    "active_recorder",
    "argument_tensors",
    "clean_tree",
    "digest_of",
    "is_of_the_user",
    "living",
    "module_of",
    "plain_arguments",
    "prepare_vector_math",
    "rank_and_world_size",
    "record",
    "recorded_directory",
    "save_tensor",
    "seed_everything",
    "seed_generators",
    "warn",
    "without_wrappers",
]
