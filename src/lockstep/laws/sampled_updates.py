"""The sampled elements of an update as a call of their own; knows no torch."""

from __future__ import annotations

from dataclasses import replace

from lockstep.core.records import Call, TensorRecord
from lockstep.core.sample import key_and_time
from lockstep.core.site import Role


def sample_of_update(call: Call) -> Call | None:
    """The update of the elements that were sampled; None where none were."""
    parameter = next(iter(call.with_role(Role.PARAM)), None)
    if parameter is None or not call.sample:
        return None
    records = tuple(_of_update(one, parameter.name) for one in call.sample)
    return replace(call, records=records, sample=())


def _of_update(record: TensorRecord, parameter: str) -> TensorRecord:
    key, after = key_and_time(record.name)
    if key == "grad":
        return replace(record, role=Role.PARAM_GRAD, name=parameter)
    if key == "param":
        role = Role.PARAM_AFTER if after else Role.PARAM
        return replace(record, role=role, name=parameter)
    role = Role.STATE_AFTER if after else Role.STATE
    return replace(record, role=role, name=f"{parameter}|{key}")
