"""Operators run again on the inputs of another run: what `load_file_path=` of the dumper asks for."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lockstep.recordings import (
    MEMORY_BYTES,
    Array,
    Call,
    Phase,
    Role,
    TensorRecord,
    every_call,
    open_recording,
)
from lockstep.rerun import (
    LARGE,
    CannotReplay,
    Precision,
    Rerun,
    check_call,
    machine_of,
    outputs_of,
    rebuild,
)
from lockstep_interop_names.faces.api_calls import ApiPass
from lockstep_interop_names.faces.hdf5_passes import (
    Hdf5Pass,
    hdf5_label,
    hdf5_name,
    hdf5_pass,
)


class LoadedInputs:
    """The passes of a file, to which those of this run belong by their operators and their order.

    path: The file that another run dumped.

    ran, kept: How many passes ran on its inputs, and how many could not, and stand as they ran in this process.

    Raises RecordingError if it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self._there: dict[tuple[str, int], Call] = {}
        counts: Counter[str] = Counter()
        for call in every_call(open_recording(path)):
            self._there[call.site.op, counts[call.site.op]] = call
            counts[call.site.op] += 1
        self._forward: dict[int, Call] = {}
        self._seen: Counter[str] = Counter()
        self._contents = itertools.count(-1, -1)
        self.ran = self.kept = 0

    def again(self, one: ApiPass, number: int) -> Hdf5Pass:
        """A pass of this run with the inputs of the other, and what comes out of it here."""
        name = hdf5_name(one)
        there = self._there.get((name, self._seen[name]))
        self._seen[name] += 1
        own = hdf5_pass(one, number)
        if there is not None and one.phase is Phase.FORWARD:
            self._forward[one.call.id] = there
        try:
            if there is None or one.call.id not in self._forward:
                raise CannotReplay("the file has no such pass")
            leaving = dict(self._results(one, there, self._forward[one.call.id]))
        except CannotReplay:
            self.kept += 1
            return own
        self.ran += 1
        given = {record.name: record for record in there.with_role(Role.INPUT)}
        return replace(
            own, entering={name: given[name].load() for name in own.entering}, leaving=leaving
        )

    def _results(self, one: ApiPass, there: Call, forward: Call) -> Iterator[tuple[str, Array]]:
        gradients = there if one.phase is Phase.BACKWARD else None
        call = self._with_inputs(one.call, forward, gradients)
        # A forward that autograd follows may run another kernel; of a large one its gradients alone are kept.
        followed = bool(call.with_role(Role.GRAD_OUTPUT))
        small = all(record.content.numel < LARGE for record in one.leaving)
        backward = gradients is not None or (followed and small)
        check_call(call, MEMORY_BYTES, backward=backward)
        machine = machine_of(one.leaving[0].content.device if one.leaving else "cpu", "", "")
        results = Rerun(call, rebuild(call)).run(Precision.OWN, backward=backward, machine=machine)
        for record in one.leaving:
            (found, *_) = outputs_of(results, record)
            narrow = record.dtype.startswith(("bfloat", "float8"))  # which NumPy has not
            yield hdf5_label(record, one.call), (found.float() if narrow else found).numpy()

    def _with_inputs(self, call: Call, forward: Call, backward: Call | None) -> Call:
        """The same call with the inputs, and for a backward the gradients, of the file."""
        sources = {Role.INPUT: forward, Role.GRAD_OUTPUT: backward}
        records = (
            record
            if (there := sources.get(record.role)) is None
            else self._from(there, record, call)
            for record in call.records
        )
        return replace(call, records=tuple(records))

    def _from(self, there: Call, record: TensorRecord, call: Call) -> TensorRecord:
        name = hdf5_label(record, call)
        found = next((one for one in there.with_role(Role.INPUT) if one.name == name), None)
        if found is None or found.shape != record.shape:
            raise CannotReplay("the file has no such input")
        content = replace(record.content, id=next(self._contents), loader=found.load, digest=None)
        return replace(record, content=content)
