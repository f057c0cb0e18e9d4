"""Options and arguments that mean the same in every verb."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.cli.comparing import check_two, form_of_each, opened_in
    from lockstep.cli.comparing import options as comparing_options
    from lockstep.cli.elsewhere import TrainingCommand, runs_elsewhere, training_command
    from lockstep.cli.options import (
        OPTIONS,
        PATH,
        PATH_HERE,
        Duration,
        Option,
        Share,
        Size,
        allow_crash,
        as_json,
        force,
        form,
        forms,
        limit,
        memory,
        option,
        ranks,
        thinned,
    )
    from lockstep.cli.typed import typed_again
    from lockstep.core.arguments import choice_of, integer_of, path_of, patterns_of, truth_of
    from lockstep.core.selection import RankSelection, StepSelection, is_rank, parse_ranks
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "OPTIONS",
    "PATH",
    "PATH_HERE",
    "Duration",
    "Option",
    "RankSelection",
    "Share",
    "Size",
    "StepSelection",
    "TrainingCommand",
    "allow_crash",
    "as_json",
    "check_two",
    "choice_of",
    "comparing_options",
    "force",
    "form",
    "form_of_each",
    "forms",
    "integer_of",
    "is_rank",
    "limit",
    "memory",
    "opened_in",
    "option",
    "parse_ranks",
    "path_of",
    "patterns_of",
    "ranks",
    "runs_elsewhere",
    "thinned",
    "training_command",
    "truth_of",
    "typed_again",
]
