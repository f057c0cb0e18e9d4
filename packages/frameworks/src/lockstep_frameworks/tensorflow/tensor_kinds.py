"""Which of TensorFlow's tensors and operators a recording looks at."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

SILENT = frozenset(
    """
    ReadVariableOp Const NoOp EagerPyFunc PyFunc PyFuncStateless VarHandleOp Identity IdentityN Placeholder Shape
    ShapeN Size Rank VarIsInitializedOp BroadcastGradientArgs StopGradient PreventGradient AssignVariableOp
    AssignAddVariableOp AssignSubVariableOp If StatelessIf While StatelessWhile PartitionedCall
    StatefulPartitionedCall TensorListReserve TensorListStack TensorListSetItem TensorListGetItem
    TensorListFromTensor TensorListPushBack TensorListPopBack EmptyTensorList IteratorGetNext OptionalGetValue
    """.split()  # noqa: SIM905
)
"""Operators that compute no number of their own: what they pass on is seen where it comes from, and where it goes."""
WITH_GRAPHS = frozenset({"If", "StatelessIf", "While", "StatelessWhile", "Case", "StatelessCase"})
"""Operators that run graphs of their own, in which Lockstep looks at tensors too."""
PASSED_ON = frozenset({"Identity", "IdentityN", "StopGradient", "PreventGradient", "AddN"})


def is_number(tensor: Any) -> bool:
    """Whether a tensor holds numbers that a recording holds."""
    return isinstance(tensor, tf.Tensor) and (
        tensor.dtype.is_floating
        or tensor.dtype.is_integer
        or tensor.dtype.is_bool
        or tensor.dtype.is_complex
    )


def is_floating(tensor: Any) -> bool:
    """Whether a tensor holds numbers that round."""
    return isinstance(tensor, tf.Tensor) and (tensor.dtype.is_floating or tensor.dtype.is_complex)
