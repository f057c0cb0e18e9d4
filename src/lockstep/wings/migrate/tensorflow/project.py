"""What holds for the modules of a project together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from lockstep.wings.migrate.engine.scopes import ModuleScopes
from lockstep.wings.migrate.tensorflow.generation import generation_of
from lockstep.wings.migrate.tensorflow.program import is_program
from lockstep.wings.migrate.tensorflow.script import Generation, Start, takes_from_tensorflow


@dataclass(frozen=True, slots=True)
class Project:
    """Modules that belong together.

    Parameters
    ----------
    generation
        Which TensorFlow they are written for.
    has_program
        Whether a program that takes something from TensorFlow starts in one of them.
    """

    generation: Generation
    has_program: bool

    def start_of(self, scopes: ModuleScopes) -> Start:
        """Where the program starts that a module of the project belongs to."""
        if is_program(scopes):
            return Start.HERE
        return Start.ELSEWHERE if self.has_program else Start.UNKNOWN


def project_of(modules: Iterable[ModuleScopes]) -> Project:
    """What holds for modules together; those that take nothing from TensorFlow count for nothing."""
    found = [scopes for scopes in modules if takes_from_tensorflow(scopes)]
    return Project(generation_of(found), any(is_program(scopes) for scopes in found))
