"""Make, open, read and write recordings; the types of their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.capture.sink import Sink
    from lockstep.cli.record import Recorded, run_recorded
    from lockstep.core.content_notes import Note, NoteKind
    from lockstep.core.dims import Dims, Mesh, dims_of
    from lockstep.core.dtypes import is_floating, largest_finite, smallest_positive, unit_roundoff
    from lockstep.core.manifest import (
        ARGUMENTS,
        AT_BOUNDARY,
        BEFORE_BACKWARD,
        COMPILED_BY_XLA,
        CONTRADICTIONS,
        EXIT_AFTER,
        INNER_BACKWARD,
        MAX_STEPS,
        MEMORY_BYTES,
        MODULES,
        NESTING,
        OPERATORS,
        ORDER,
        REWRITTEN,
        LoaderSetup,
        NotSeen,
        OptimizerSetup,
        Options,
        RankManifest,
        StepSummary,
        manifest_from_json,
    )
    from lockstep.core.operators import Family, Trait, canonical_name, family_of, operator_of
    from lockstep.core.process import rank_number
    from lockstep.core.read_calls import Bytes, LaterTensor, ReadCall, ReadTensor
    from lockstep.core.records import (
        ARRIVED_IN,
        BEGAN_ANEW,
        OF_LAST_FUNCTION,
        PIECE,
        Array,
        Call,
        Content,
        Frame,
        Sketch,
        Statistics,
        TensorRecord,
    )
    from lockstep.core.redaction import REDACTED, is_withheld
    from lockstep.core.script_inputs import CONTENT as SETTINGS_UNREAD
    from lockstep.core.script_inputs import FOLDER as SETTINGS_FOLDER
    from lockstep.core.site import CallKind, Phase, Role, Site
    from lockstep.core.sketch import SKETCH_SIZE, sketch_of
    from lockstep.core.states import Moment, Standing, StateRecord
    from lockstep.core.tensor_layouts import Layout
    from lockstep.core.windows import Windows
    from lockstep.kernels.digest import digest_of_bytes
    from lockstep.kernels.numbers import measured_array, statistics_of
    from lockstep.reading.chosen_calls import (
        ChosenRanks,
        calls_matching,
        check_choice,
        every_call,
        is_chosen,
        no_match,
        site_names,
    )
    from lockstep.reading.first_non_finite import (
        Part,
        Source,
        first_made,
        first_overflow,
        is_finite,
        numbers_in,
        sources_of,
    )
    from lockstep.reading.paired_steps import PairedStep, opened, paired_records, paired_steps
    from lockstep.reading.record_tables import NUMBERS, record_table, series
    from lockstep.reading.recorded_series import GRADIENT as OF_GRADIENT
    from lockstep.reading.recorded_series import PARAMETER as OF_PARAMETER
    from lockstep.reading.recorded_series import TensorSeries, losses_of, scalars_of
    from lockstep.reading.recorded_series import tensors_of as tensor_series_of
    from lockstep.reading.recorded_values import values_of as value_counts_of
    from lockstep.report.recording import render_calls
    from lockstep.store.directory import RunDirectory, is_recording
    from lockstep.store.fetched_place import is_recording_at
    from lockstep.store.kept_windows import kept_windows
    from lockstep.store.later_tensors import ReadLater
    from lockstep.store.named_files import NamedTensor, whole_tensor, writer_for
    from lockstep.store.other_tools import convert
    from lockstep.store.partial import marked_as_part
    from lockstep.store.reader import RankRecording, Recording, open_recording
    from lockstep.store.schema import MANIFEST
    from lockstep.store.step_log import read_step_log
    from lockstep.store.stored_contents import StoredTensor
    from lockstep.store.tensor_files import Shard
    from lockstep.store.written_calls import CallsOfRank, RankOnDisk, closed_manifest, digested
    from lockstep.unify.model_calls import top_of
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "ARGUMENTS",
    "ARRIVED_IN",
    "AT_BOUNDARY",
    "BEFORE_BACKWARD",
    "BEGAN_ANEW",
    "COMPILED_BY_XLA",
    "CONTRADICTIONS",
    "EXIT_AFTER",
    "INNER_BACKWARD",
    "MANIFEST",
    "MAX_STEPS",
    "MEMORY_BYTES",
    "MODULES",
    "NESTING",
    "NUMBERS",
    "OF_GRADIENT",
    "OF_LAST_FUNCTION",
    "OF_PARAMETER",
    "OPERATORS",
    "ORDER",
    "PIECE",
    "REDACTED",
    "REWRITTEN",
    "SETTINGS_FOLDER",
    "SETTINGS_UNREAD",
    "SKETCH_SIZE",
    "Array",
    "Bytes",
    "Call",
    "CallKind",
    "CallsOfRank",
    "ChosenRanks",
    "Content",
    "Dims",
    "Family",
    "Frame",
    "LaterTensor",
    "Layout",
    "LoaderSetup",
    "Mesh",
    "Moment",
    "NamedTensor",
    "NotSeen",
    "Note",
    "NoteKind",
    "OptimizerSetup",
    "Options",
    "PairedStep",
    "Part",
    "Phase",
    "RankManifest",
    "RankOnDisk",
    "RankRecording",
    "ReadCall",
    "ReadLater",
    "ReadTensor",
    "Recorded",
    "Recording",
    "Role",
    "RunDirectory",
    "Shard",
    "Sink",
    "Site",
    "Sketch",
    "Source",
    "Standing",
    "StateRecord",
    "Statistics",
    "StepSummary",
    "StoredTensor",
    "TensorRecord",
    "TensorSeries",
    "Trait",
    "Windows",
    "calls_matching",
    "canonical_name",
    "check_choice",
    "closed_manifest",
    "convert",
    "digest_of_bytes",
    "digested",
    "dims_of",
    "every_call",
    "family_of",
    "first_made",
    "first_overflow",
    "is_chosen",
    "is_finite",
    "is_floating",
    "is_recording",
    "is_recording_at",
    "is_withheld",
    "kept_windows",
    "largest_finite",
    "losses_of",
    "manifest_from_json",
    "marked_as_part",
    "measured_array",
    "no_match",
    "numbers_in",
    "open_recording",
    "opened",
    "operator_of",
    "paired_records",
    "paired_steps",
    "rank_number",
    "read_step_log",
    "record_table",
    "render_calls",
    "run_recorded",
    "scalars_of",
    "series",
    "site_names",
    "sketch_of",
    "smallest_positive",
    "sources_of",
    "statistics_of",
    "tensor_series_of",
    "top_of",
    "unit_roundoff",
    "value_counts_of",
    "whole_tensor",
    "writer_for",
]
