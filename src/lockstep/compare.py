"""Compare two recordings, and show the answer as `lockstep compare` does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.align.names import SUM as SUM_OF_NAMES
    from lockstep.align.names import NameMap
    from lockstep.align.sequences import align_sequences
    from lockstep.align.settings import chosen_otherwise, differing_settings
    from lockstep.align.step import Aligned, AlignedStep
    from lockstep.cli.comparing import compared
    from lockstep.cli.comparing import prepare as prepare_measuring
    from lockstep.commands.record_again import (
        command_again,
        command_for_tensors,
        command_line,
        environment_of,
        new_place,
        pattern_for,
        record_again,
        training_words,
    )
    from lockstep.commands.what_next import Manner, what_next
    from lockstep.comparison import compare_recordings, read_indices
    from lockstep.core.finding import (
        CallPair,
        Comparison,
        Evidence,
        Finding,
        JudgedWindow,
        Kind,
        Metrics,
        Origin,
        Outcome,
        Pair,
        SetupDifference,
        Verdict,
        WhatNext,
        verdict_of,
    )
    from lockstep.core.garbage import rare_collections
    from lockstep.core.not_compared import NotCompared, WhyNot
    from lockstep.core.optimizer_classes import KERNEL_CHOICES
    from lockstep.core.records import would_differ
    from lockstep.core.told_facts import Told
    from lockstep.locate.setups.model_setup import CLASS as CLASS_OF_MODULE
    from lockstep.locate.setups.model_setup import ModelSetup, model_setup
    from lockstep.locate.setups.model_setup import first_step as first_optimizers
    from lockstep.locate.setups.setup_facts import (
        SEED,
        every_circumstance,
        is_known,
        names_this_run,
    )
    from lockstep.locate.setups.setup_facts import named as setup_fact
    from lockstep.measure.axis_order import holds_the_same
    from lockstep.reading.paired_steps import Given, GivenMapping, Pairing, pair_recordings
    from lockstep.report.comparison.json import comparison_json, render_json
    from lockstep.report.comparison.kinds import (
        EQUAL,
        IN_TOLERANCE,
        KINDS,
        MORE_ACCURATE,
        NO_PARTNER,
        NOT_JUDGED,
        kind_of,
        margin_of,
    )
    from lockstep.report.comparison.markdown import code as markdown_code
    from lockstep.report.comparison.markdown import render_markdown
    from lockstep.report.comparison.pairs import TITLES as COLUMN_TITLES
    from lockstep.report.comparison.pairs import column_of, tensor_name, tensor_role
    from lockstep.report.comparison.pairs import identity as identity_of
    from lockstep.report.comparison.screen import (
        PAIR_TITLES,
        pair_cells,
        print_comparison,
        render_comparison,
        signs_words,
    )
    from lockstep.report.comparison.verdict_words import (
        answer_of,
        headline,
        lines_below,
        origin_words,
        tally_of,
    )
    from lockstep.unify.side_by_side import side_by_side
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "CLASS_OF_MODULE",
    "COLUMN_TITLES",
    "EQUAL",
    "IN_TOLERANCE",
    "KERNEL_CHOICES",
    "KINDS",
    "MORE_ACCURATE",
    "NOT_JUDGED",
    "NO_PARTNER",
    "PAIR_TITLES",
    "SEED",
    "SUM_OF_NAMES",
    "Aligned",
    "AlignedStep",
    "CallPair",
    "Comparison",
    "Evidence",
    "Finding",
    "Given",
    "GivenMapping",
    "JudgedWindow",
    "Kind",
    "Manner",
    "Metrics",
    "ModelSetup",
    "NameMap",
    "NotCompared",
    "Origin",
    "Outcome",
    "Pair",
    "Pairing",
    "SetupDifference",
    "Told",
    "Verdict",
    "WhatNext",
    "WhyNot",
    "align_sequences",
    "answer_of",
    "chosen_otherwise",
    "column_of",
    "command_again",
    "command_for_tensors",
    "command_line",
    "compare_recordings",
    "compared",
    "comparison_json",
    "differing_settings",
    "environment_of",
    "every_circumstance",
    "first_optimizers",
    "headline",
    "holds_the_same",
    "identity_of",
    "is_known",
    "kind_of",
    "lines_below",
    "margin_of",
    "markdown_code",
    "model_setup",
    "names_this_run",
    "new_place",
    "origin_words",
    "pair_cells",
    "pair_recordings",
    "pattern_for",
    "prepare_measuring",
    "print_comparison",
    "rare_collections",
    "read_indices",
    "record_again",
    "render_comparison",
    "render_json",
    "render_markdown",
    "setup_fact",
    "side_by_side",
    "signs_words",
    "tally_of",
    "tensor_name",
    "tensor_role",
    "training_words",
    "verdict_of",
    "what_next",
    "would_differ",
]
