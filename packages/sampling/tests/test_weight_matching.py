"""Casts as torch makes them, and weights that are told by contents, over drawn tensors."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from lockstep_sampling.weights.casts import is_exact, rounded, roundings_of
from lockstep_sampling.weights.fingerprint import Fingerprint, fingerprint_of
from lockstep_sampling.weights.live import elements_of, fingerprint_of_tensor
from lockstep_sampling.weights.matching import Matching, Weight, match
from lockstep_sampling.weights.note_files import read_note, write_note
from lockstep_sampling.weights.relation import Standing

SINGLES = arrays.arrays(np.float32, st.integers(1, 20), elements=st.floats(width=32))
DOUBLES = arrays.arrays(np.float64, st.integers(1, 20), elements=st.floats(width=64))


@given(SINGLES | DOUBLES)
def test_rounding_is_torchs(values: np.ndarray) -> None:
    # given any numbers, also subnormal and infinite ones and NaN
    given_tensor = torch.from_numpy(values)
    dtype = str(given_tensor.dtype).removeprefix("torch.")
    for target in roundings_of(dtype):
        ours = rounded(values, dtype, target)
        theirs = given_tensor.to(getattr(torch, target))
        is_nan = theirs.isnan().numpy()
        # then all but the bits of NaN are the same
        assert np.array_equal(ours[~is_nan], elements_of(theirs)[~is_nan])
        # and what is held exactly comes back
        back = theirs.to(given_tensor.dtype)
        assert is_exact(values, dtype, target) == bool(
            torch.equal(back.nan_to_num(0), given_tensor.nan_to_num(0))
            and torch.equal(back.isnan(), given_tensor.isnan())
            and torch.equal(back.isinf(), given_tensor.isinf())
        )


def fingerprint(name: str, tensor: torch.Tensor) -> Fingerprint:
    return fingerprint_of_tensor(name, tensor)


def weights(tensors: dict[str, torch.Tensor]) -> list[Weight]:
    return [Weight(name, (fingerprint(name, one),)) for name, one in tensors.items()]


def matched(reference: dict[str, torch.Tensor], candidate: dict[str, torch.Tensor]) -> Matching:
    return match(weights(reference), weights(candidate))


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    groups=st.sampled_from([1, 2, 3, 4]),
    shares=st.lists(st.integers(1, 4), min_size=2, max_size=4),
    width=st.integers(2, 40),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    is_column=st.booleans(),
    spoils=st.booleans(),
)
def test_a_fused_tensor_is_told_whatever_its_groups_and_one_changed_element_too(
    seed: int,
    groups: int,
    shares: list[int],
    width: int,
    dtype: torch.dtype,
    is_column: bool,
    spoils: bool,
) -> None:
    # given parts with other names than the whole, which has them in groups, in its rows or columns, rounded
    draw = torch.Generator().manual_seed(seed)
    parts = {
        f"part.{number}": torch.randn(groups * share, width, generator=draw)
        for number, share in enumerate(shares)
    }
    split = [one.reshape(groups, -1, width) for one in parts.values()]
    whole = torch.cat(split, 1).reshape(-1, width).to(dtype)
    if spoils:
        flat = whole.reshape(-1)
        place = seed % flat.numel()
        flat[place] = flat[place] * 2 + 1
    whole = whole.T.contiguous() if is_column else whole
    ours = {name: one.T.contiguous() if is_column else one for name, one in parts.items()}
    found = matched(ours, {"whole": whole})
    # then it is told, unless an element is another
    if spoils:
        assert not any(pair.relation.agrees for pair in found.pairs)
    else:
        (pair,) = found.pairs
        assert pair.relation.agrees
        assert set(pair.reference) == set(parts)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**32 - 1), names=st.permutations(range(5)))
def test_weights_of_other_names_are_told_by_contents(seed: int, names: list[int]) -> None:
    draw = torch.Generator().manual_seed(seed)
    reference = {f"ours.{number}": torch.randn(3, 4, generator=draw) for number in range(5)}
    candidate = {f"theirs{number}": reference[f"ours.{number}"].bfloat16() for number in names}
    found = matched(reference, candidate)
    assert {pair.reference: pair.candidate for pair in found.pairs} == {
        (f"ours.{number}",): (f"theirs{number}",) for number in range(5)
    }
    assert {pair.relation.standing for pair in found.pairs} == {Standing.CAST}


@settings(max_examples=60)
@given(
    shape=arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5),
    dtype=st.sampled_from(
        [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool]
    ),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_tensor_of_any_shape_equals_itself_alone_and_survives_its_file(
    shape: tuple[int, ...], dtype: torch.dtype, seed: int
) -> None:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    one = fingerprint("w", values)
    with TemporaryDirectory() as folder:
        write_note(Path(folder) / "n", [one])
        (read,) = read_note(Path(folder) / "n")
    assert (one.digests, one.exact, one.shape, one.dtype) == (
        read.digests, read.exact, read.shape, read.dtype,
    )  # fmt: skip
    same = match([Weight("w", (one,))], [Weight("w", (read,))]).pairs[0].relation
    assert same.standing is Standing.EQUAL
    if values.numel():
        other = values.clone()
        flat = other.view(-1)
        flat[-1] = ~flat[-1] if dtype is torch.bool else flat[-1] + 1
        found = match([Weight("w", (one,))], weights({"w": other})).pairs[0].relation
        assert found.standing is Standing.DIFFERS


def test_the_digest_is_a_recordings() -> None:
    given_numbers = np.arange(300, dtype=np.float32)
    whole = fingerprint_of("w", "float32", (300,), given_numbers)
    assert set(whole.digests) == {"float32", "bfloat16", "float16"}
    assert whole.sketch is not None
    assert not whole.is_constant
