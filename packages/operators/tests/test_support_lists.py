"""Lists of what a device has: torch's own, held against its dispatcher; Ascend's; and a user's file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from lockstep.core.errors import UsageError
from lockstep.devices.support_list import Standing
from lockstep.hookspecs import SupportList as GivenList
from lockstep.hookspecs import hookimpl
from lockstep.plugins import manager
from lockstep_operators.support.known_lists import KNOWN, known_list, with_composites
from lockstep_operators.support.list_files import list_from_file
from lockstep_operators.support.native_functions import dispatch_keys, structured_delegates
from lockstep_operators.support.plugin_lists import given_devices, with_given

FLOAT = ["float32"]


def test_the_table_that_torch_ships_says_what_its_dispatcher_has() -> None:
    # given the operators that this build registers, and what its table says of their kernels for the CPU
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    keys = {
        name: found
        for name, found in dispatch_keys().items()
        if torch._C._dispatch_has_kernel(name)
    }

    # then the two are the same, for every one of them
    assert len(keys) > 2500
    for key in ("CPU", "CompositeImplicitAutograd"):
        assert {name for name, found in keys.items() if key in found} == {
            name for name in keys if has(name, key)
        }


@pytest.mark.parametrize("name", KNOWN)
def test_every_known_list_has_what_every_training_needs(name: str) -> None:
    support = known_list(name, torch.__version__)
    for operator in (
        "aten::mm",
        "aten::add.Tensor",
        "aten::add_.Tensor",
        "aten::view",
        "aten::detach",
    ):
        assert support.answer(operator, FLOAT).standing is Standing.SUPPORTED, operator
    assert support.version
    assert support.source


def test_a_list_says_what_it_lacks_and_claims_no_more_than_it_knows() -> None:
    mps, xpu = known_list("mps", torch.__version__), known_list("xpu", torch.__version__)
    # then what is not in the whole of a table is not there, and what is not in a part of one may be
    assert mps.answer("aten::linalg_eig", FLOAT).standing is Standing.MISSING
    assert xpu.answer("aten::linalg_eig", FLOAT).standing is not Standing.SUPPORTED
    assert xpu.is_whole or xpu.answer("aten::linalg_eig", FLOAT).standing is Standing.UNKNOWN
    # and an operator of another library is never one that is lacking
    assert mps.answer("mylib::twice", FLOAT).standing is Standing.UNKNOWN
    # and neither has a device all dtypes
    assert mps.answer("aten::mm", ["float64"]).standing is Standing.OTHER_DTYPES


def test_the_list_of_ascend_goes_by_the_version_of_torch() -> None:
    old, new = known_list("ascend", "2.8.0"), known_list("ascend", "2.13.0")
    assert old.answer("aten::addmm.dtype", FLOAT).standing is Standing.MISSING
    assert new.answer("aten::addmm.dtype", FLOAT).standing is Standing.SUPPORTED
    # and what is documented for some dtypes is not said to be lacking for others
    documented = new.answer("aten::mm", ["bfloat16"])
    assert documented.standing is Standing.UNKNOWN
    assert "listed for float16, float32" in documented.why


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_file_may_give_names_for_all_overloads_dtypes_and_what_is_lacking(tmp_path: Path) -> None:
    # given the same list as CSV and as YAML
    csv = written(
        tmp_path / "chip.csv",
        "# version: 3.1\n# source: the chip's manual\n# lacks_dtypes: float64\n"
        "operator,dtypes,supported,note\nadd,float32 float16,,\naten::silu,,no,too slow\ntorch.nn.functional.gelu,,,\n",
    )
    yaml = written(
        tmp_path / "chip.yaml",
        "version: 3.1\nsource: the chip's manual\nlacks_dtypes: [float64]\noperators:\n"
        "- {operator: add, dtypes: [float32, float16]}\n"
        "- {operator: aten::silu, supported: no, note: too slow}\n- torch.nn.functional.gelu\n",
    )
    for file in (csv, yaml):
        chip = list_from_file(file, None)
        # then both say the same
        assert (chip.version, chip.source) == ("3.1", "the chip's manual")
        assert chip.answer("aten::add.Tensor", ["float32", "int64"]).standing is Standing.SUPPORTED
        other = chip.answer("aten::add.Tensor", ["bfloat16"])
        assert other.standing is Standing.OTHER_DTYPES
        assert "ran with bfloat16; listed for float16, float32" in other.why
        assert chip.answer("aten::add.Tensor", ["float64"]).standing is Standing.OTHER_DTYPES
        assert chip.answer("aten::silu", FLOAT).standing is Standing.MISSING
        assert chip.answer("aten::gelu", FLOAT).standing is Standing.SUPPORTED
        # and a list of the API's functions is not taken for all that the dispatcher has
        assert chip.answer("aten::gelu_backward", FLOAT).standing is Standing.UNKNOWN


def test_what_is_said_to_be_lacking_is_not_composed(tmp_path: Path) -> None:
    file = written(tmp_path / "chip.csv", "operator,supported\naten::mm,\naten::detach,no\n")
    chip = with_composites(list_from_file(file, None))
    assert chip.answer("aten::detach", FLOAT).standing is Standing.MISSING
    assert chip.answer("aten::t", FLOAT).standing is Standing.SUPPORTED


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.csv", "operator,dtypes\naten::mm,float32\naten::mm,flot32\n", "line 3, column 2 (dtypes): 'flot32'"),
        ("a.csv", "# version: 1\noperator\n\na b\n", "line 4, column 1 (operator): 'a b' names no operator"),
        ("a.csv", "operator,dtypes\naten::mm\n", "line 2, column 2: the row has 1 cells"),
        ("a.csv", "op\naten::mm\n", "line 1, column 1: 'op' is not a title of a list"),
        ("a.csv", "operator,torch\naten::mm,new\n", "line 2, column 2 (torch): 'new' is no range"),
        ("a.csv", "operator,supported\naten::mm,perhaps\n", "line 2, column 2 (supported): 'perhaps'"),
        ("a.csv", "", "the list names no operator"),
        ("a.csv", "operator\n", "the list names no operator"),
        ("a.csv", "\udcff", "no text in UTF-8"),
        ("a.yaml", "", "the list names no operator"),
        ("a.yaml", "operators: []", "the list names no operator"),
        ("a.yaml", "operators:\n- aten::mm\n- {name: x}\n", "line 3, column 4: 'name' is none of"),
        ("a.yaml", "operators:\n- {dtypes: [float32]}\n", "line 2, column 3: a row without `operator`"),
        ("a.yaml", "operators:\n- [aten::mm]\n", "line 2, column 3: is no mapping"),
        ("a.yaml", "version: 1\n", "has no list `operators`"),
        ("a.yaml", "a: [", "line 1, column 5: is not valid YAML"),
        ("none.csv", None, "cannot be read (No such file or directory)"),
    ],
)  # fmt: skip
def test_a_bad_list_is_one_sentence_that_names_the_place(
    tmp_path: Path, name: str, text: str | None, said: str
) -> None:
    file = tmp_path / name
    if text is not None:
        file.write_text(text, errors="surrogateescape")
    with pytest.raises(UsageError) as raised:
        list_from_file(file, None)
    assert said in str(raised.value)
    assert name in str(raised.value)
    assert "\n" not in str(raised.value)


class Maker:
    """A plug-in with a list of its own device, and one on top of a known list."""

    @hookimpl
    def lockstep_support_lists(self) -> list[GivenList]:
        return [
            GivenList("toy", {"torch.fft.*": "run it on the host"}),
            GivenList("chip", has={"aten::mm": ["float16"], "add": ()}, version="2", source="us"),
            GivenList("mps", {"torch.mm": "broken in 2.13"}),
        ]


@pytest.fixture
def maker() -> Iterator[None]:
    plugin = Maker()
    manager().register(plugin)
    yield
    manager().unregister(plugin)


@pytest.mark.usefixtures("maker")
def test_a_plug_in_gives_what_a_device_has_and_what_it_lacks() -> None:
    assert {"toy", "chip"} <= set(given_devices())
    # then what is lacking is, and of the rest nothing is known
    toy = with_given("toy", None)
    answer = toy.answer("aten::fft_fft", FLOAT)
    assert (answer.standing, answer.why) == (Standing.MISSING, "run it on the host")
    assert toy.answer("aten::mm", FLOAT).standing is Standing.UNKNOWN
    # and a list of what is there is the whole of it
    chip = with_given("chip", None)
    assert chip.answer("aten::mm", FLOAT).standing is Standing.OTHER_DTYPES
    assert chip.answer("aten::add.Tensor", FLOAT).standing is Standing.SUPPORTED
    assert chip.answer("aten::bmm", FLOAT).standing is Standing.MISSING
    assert (chip.version, chip.source) == ("2", "us")
    # and a known list is believed but for what is said to be lacking
    mps = with_given("mps", known_list("mps", torch.__version__))
    assert mps.answer("aten::mm", FLOAT).standing is Standing.MISSING
    assert mps.answer("aten::bmm", FLOAT).standing is Standing.SUPPORTED


def test_without_plug_ins_a_known_list_is_as_it_is() -> None:
    mps = known_list("mps", torch.__version__)
    assert with_given("mps", mps) == mps


def test_an_operator_that_torch_makes_of_a_listed_out_variant_is_supported_and_of_no_other() -> (
    None
):
    # given Ascend's list, which has gelu.out and not gelu, and neither for erfcx
    ascend = known_list("ascend", torch.__version__)
    made = ascend.answer("aten::gelu", ["float32"])
    # then the one is made of the other, and what has no such variant is lacking
    assert (made.standing, made.why) == (Standing.SUPPORTED, "made by torch of aten::gelu.out")
    assert ascend.answer("aten::special_erfcx", ["float32"]).standing is Standing.MISSING


def test_torch_has_a_kernel_that_calls_the_out_variant_for_each_structured_operator() -> None:
    key = "CompositeExplicitAutogradNonFunctional"
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    assert len(structured_delegates()) > 300
    assert all(has(name, key) for name in structured_delegates())
