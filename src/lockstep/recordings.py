"""Make, open, read and write recordings; the types of their parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lockstep.core.faces import names_of_face

if TYPE_CHECKING:
    from lockstep.capture.sink import Sink
    from lockstep.cli.record import Recorded, run_recorded
    from lockstep.core.dims import Dims, Mesh, dims_of
    from lockstep.core.dtypes import is_floating
    from lockstep.core.manifest import (
        ARGUMENTS,
        MEMORY_BYTES,
        MODULES,
        NESTING,
        ORDER,
        NotSeen,
        Options,
    )
    from lockstep.core.operators import Family, operator_of
    from lockstep.core.read_calls import Bytes, LaterTensor, ReadCall, ReadTensor
    from lockstep.core.records import Array, Call, Content, Frame, Statistics, TensorRecord
    from lockstep.core.site import CallKind, Phase, Role, Site
    from lockstep.core.states import Moment
    from lockstep.kernels.digest import digest_of_bytes
    from lockstep.kernels.numbers import statistics_of
    from lockstep.reading.chosen_calls import calls_matching, check_choice, every_call
    from lockstep.reading.first_non_finite import Part, first_made, is_finite
    from lockstep.reading.paired_steps import PairedStep, opened, paired_records, paired_steps
    from lockstep.reading.record_tables import record_table, series
    from lockstep.store.directory import RunDirectory, is_recording
    from lockstep.store.later_tensors import ReadLater
    from lockstep.store.partial import marked_as_part
    from lockstep.store.reader import RankRecording, Recording, open_recording
    from lockstep.store.schema import MANIFEST
    from lockstep.store.written_calls import CallsOfRank, RankOnDisk, closed_manifest
else:
    __getattr__ = names_of_face(__name__)

__all__ = [
    "ARGUMENTS",
    "MANIFEST",
    "MEMORY_BYTES",
    "MODULES",
    "NESTING",
    "ORDER",
    "Array",
    "Bytes",
    "Call",
    "CallKind",
    "CallsOfRank",
    "Content",
    "Dims",
    "Family",
    "Frame",
    "LaterTensor",
    "Mesh",
    "Moment",
    "NotSeen",
    "Options",
    "PairedStep",
    "Part",
    "Phase",
    "RankOnDisk",
    "RankRecording",
    "ReadCall",
    "ReadLater",
    "ReadTensor",
    "Recorded",
    "Recording",
    "Role",
    "RunDirectory",
    "Sink",
    "Site",
    "Statistics",
    "TensorRecord",
    "calls_matching",
    "check_choice",
    "closed_manifest",
    "digest_of_bytes",
    "dims_of",
    "every_call",
    "first_made",
    "is_finite",
    "is_floating",
    "is_recording",
    "marked_as_part",
    "open_recording",
    "opened",
    "operator_of",
    "paired_records",
    "paired_steps",
    "record_table",
    "run_recorded",
    "series",
    "statistics_of",
]
