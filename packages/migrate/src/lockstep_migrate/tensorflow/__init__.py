"""From TensorFlow on GPUs to TensorFlow on the NPU: `npu_bridge` for 1.15, `npu_device` for 2.x.

Sessions and estimators get the NPU's optimizer, Horovod calls become calls of the NPU's collective library, datasets
drop the last, smaller batch. What has no equal is listed. As everywhere in this wing, sources are read, never run.
"""

from __future__ import annotations

from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.plan import Edit, Mention
from lockstep_migrate.tensorflow.datasets import find_batches
from lockstep_migrate.tensorflow.devices import find_devices
from lockstep_migrate.tensorflow.estimators import find_estimators
from lockstep_migrate.tensorflow.generation import generation_of, required_generation
from lockstep_migrate.tensorflow.horovod import find_horovod
from lockstep_migrate.tensorflow.imports import find_imports
from lockstep_migrate.tensorflow.listed import find_listed
from lockstep_migrate.tensorflow.precision import find_precision
from lockstep_migrate.tensorflow.program import find_program, is_program
from lockstep_migrate.tensorflow.project import Project, project_of
from lockstep_migrate.tensorflow.script import (
    Generation,
    Script,
    Start,
    takes_from_tensorflow,
)
from lockstep_migrate.tensorflow.sessions import find_options, find_sessions

__all__ = [
    "Generation",
    "Project",
    "Start",
    "generation_of",
    "is_program",
    "project_of",
    "required_generation",
    "takes_from_tensorflow",
    "tensorflow_mentions",
]

# Devices first: what they take away needs no name of Horovod any more. Imports go when all their uses have gone.
_FINDERS = (
    find_devices,
    find_sessions,
    find_estimators,
    find_options,
    find_batches,
    find_precision,
    find_horovod,
    find_program,
    find_imports,
    find_listed,
)


def tensorflow_mentions(
    scopes: ModuleScopes, generation: Generation | None = None, start: Start | None = None
) -> tuple[tuple[Mention, ...], tuple[Edit, ...]]:
    """Find every mention of GPUs in a TensorFlow module, and what becomes of each on the NPU.

    `generation`: which TensorFlow it is written for; found from the module's own names where it is not given.
    `start`: where the program starts that the module belongs to; found from the module itself where it is not
    given. Modules of one project are given what `project_of` says for all of them.
    Returned: mentions in the order of the text, and the edits at the head of the module. Both are empty where the
    module takes nothing from TensorFlow, Keras or Horovod.
    """
    if not takes_from_tensorflow(scopes):
        return (), ()
    if start is None:
        start = Start.HERE if is_program(scopes) else Start.UNKNOWN
    script = Script(scopes, generation or generation_of([scopes]), start)
    for find in _FINDERS:
        find(script)
    mentions = tuple(sorted(script.mentions, key=lambda mention: mention.span))
    return mentions, script.head.additions()
