"""Convert weights of one framework for a different one by a mapping file: names, axes, gates of an LSTM, sums of
biases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lockstep.align.mapping import NameMapping
from lockstep.align.names import SUM
from lockstep.core.errors import UsageError
from lockstep.core.tensor_layouts import Layout

Arrays = dict[str, npt.NDArray[Any]]


def convert_weights(
    weights: Mapping[str, Any], mapping: str | Path | NameMapping, *, back: bool = False
) -> Arrays:
    """Return the weights of the reference as the candidate names and keeps them.

    Parameters
    ----------
    weights
        Arrays by full name: NumPy's, or what NumPy reads, such as the tensors of a `state_dict()` on the CPU.
    mapping
        A mapping file, as `lockstep map` writes it. Its guesses are not used. A name that it does not know keeps its
        name where no line has it, and its layout.
    back
        Whether weights of the candidate become those of the reference. Of two that were added up the first gets the
        sum, the second zeros: the sum is what the layer computes with, and two that both learn move it twice as far.

    Returns
    -------
    dict of str to numpy.ndarray
        In the order of `weights`; numbers keep their dtype, and no array shares memory with what was given.

    Raises
    ------
    UsageError
        If the mapping cannot be read, names weights that are not there, or has a layout that does not fit one.

    Examples
    --------
    >>> given = {"fc.weight": np.arange(6.0).reshape(2, 3)}
    >>> names = NameMapping(parameters={"fc.weight": "fc.kernel"}, layouts={"fc.weight": "OI -> IO"})
    >>> convert_weights(given, names)["fc.kernel"].shape
    (3, 2)
    """
    names = mapping if isinstance(mapping, NameMapping) else NameMapping.read(mapping)
    arrays = {name: np.array(value) for name, value in weights.items()}
    pairs = {other: one for one, other in names.parameters.items()} if back else names.parameters
    _check(names, pairs, arrays)
    converted: Arrays = {}
    known = {part: name for name in pairs for part in name.split(SUM)}
    for name in arrays:
        whole = known.get(name, name)
        if whole.split(SUM)[-1] == name:  # a sum is there once all its parts are
            parts = [arrays[part] for part in whole.split(SUM)]
            target = pairs.get(whole, whole)
            layout = _layout(names, target if back else whole)
            _put(converted, target, sum(parts[1:], parts[0]), layout, back=back)
    return converted


def _check(names: NameMapping, pairs: Mapping[str, str], arrays: Mapping[str, Any]) -> None:
    patterned = [name for name in (*pairs, *names.layouts) if "*" in name]
    if patterned:
        raise UsageError(
            f"{names.where}: {patterned[0]!r}: weights are converted by full names; write no *"
        )
    missing = [part for name in pairs for part in name.split(SUM) if part not in arrays]
    if missing:
        held = ", ".join(list(arrays)[:4])
        raise UsageError(
            f"{names.where}: parameters: {missing[0]!r} is not among the weights, which begin with {held}"
        )


def _layout(names: NameMapping, reference: str) -> Layout | None:
    """The layout of a parameter of the reference; of a sum that of its first part."""
    for name in (reference, reference.split(SUM)[0]):
        if name in names.layouts:
            return Layout.parse(names.layouts[name], names.where)
    return None


def _put(
    converted: Arrays, target: str, array: npt.NDArray[Any], layout: Layout | None, *, back: bool
) -> None:
    if layout is not None and layout.shape(array.shape) is None:
        raise UsageError(
            f"the layout {layout} does not fit {target}, which has the shape {array.shape}"
        )
    act: Callable[[npt.NDArray[Any]], npt.NDArray[Any]] = np.array
    if layout is not None:
        act = layout.undone if back else layout.applied
    first, *others = target.split(SUM)
    converted[first] = act(array)
    converted.update((other, np.zeros_like(converted[first])) for other in others)
