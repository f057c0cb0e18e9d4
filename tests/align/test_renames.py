"""Modules and parameters under other names: found where unmistakable, else left alone."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from lockstep.align.module_trees import Node, module_tree
from lockstep.align.names import NameMap
from lockstep.align.renames import find_renames
from lockstep.core.records import Content, Statistics

Tensors = Mapping[str, tuple[tuple[int, ...], str]]


def content(shape: tuple[int, ...], inside: str, *, constant: bool = False) -> Content:
    """A content whose digest is what is inside."""
    low = 1.0 if constant else 0.0
    return Content(0, "float32", shape, "cpu", inside, Statistics(low, 1.0, 0.5, 3.0, 0, 0, 0))


def tree(classes: Mapping[str, str], tensors: Tensors) -> dict[str, Node]:
    """A module tree; tensors as (shape, what is inside) by full name."""
    return module_tree(
        classes,
        [
            (name.rpartition(".")[0], name, content(*what, constant=what[1] == "ones"))
            for name, what in tensors.items()
        ],
    )


def stack(name: str, layers: list[str], *, inside: str = "") -> dict[str, Node]:
    """A stack of blocks, each a norm (all ones) and a linear layer with contents of its own."""
    classes, tensors = {"": "Net", name: "ModuleList"}, {}
    for number, layer in enumerate(layers):
        block = f"{name}.{number}"
        classes |= {block: "Block", f"{block}.norm": "LayerNorm", f"{block}.fc": "Linear"}
        tensors[f"{block}.norm.weight"] = ((8,), "ones")
        tensors[f"{block}.fc.weight"] = ((8, 8), f"{layer}{inside}")
    return tree(classes, tensors)


def test_trees_of_equal_names_need_no_names() -> None:
    assert not find_renames(stack("blocks", ["a", "b"]), stack("blocks", ["a", "x"]))


def test_a_renamed_list_is_one_sentence_and_takes_all_below_with_it() -> None:
    names = find_renames(stack("blocks", ["a", "b"]), stack("layers", ["a", "b"]))
    assert names.module("layers.1.fc") == "blocks.1.fc"
    assert names.tensor("layers.1.norm.weight") == "blocks.1.norm.weight"
    assert names.tensor("layers.1.fc.weight|exp_avg") == "blocks.1.fc.weight|exp_avg"
    assert names.notes() == ["renamed module blocks -> layers, by equal contents"]


def test_a_renamed_list_is_found_by_its_build_where_all_parameters_differ() -> None:
    names = find_renames(stack("blocks", ["a", "b"]), stack("layers", ["a", "b"], inside="!"))
    assert names.module("layers.1.fc") == "blocks.1.fc"
    assert names.notes() == ["renamed module blocks -> layers, by an equal build"]


def test_contents_tell_which_block_was_deleted() -> None:
    names = find_renames(stack("blocks", ["a", "b", "c"]), stack("layers", ["a", "c"]))
    assert names.module("layers.0.norm") == "blocks.0.norm"
    assert names.module("layers.1.norm") == "blocks.2.norm"


def test_a_tree_below_another_level_is_found() -> None:
    deep = stack("model.encoder.layer", ["a", "b"])
    names = find_renames(stack("blocks", ["a", "b"]), deep)
    assert names.module("model.encoder.layer.1.fc") == "blocks.1.fc"


def test_equal_blocks_of_unequal_number_are_left_alone() -> None:
    # Given three blocks that hold the very same, against two: nobody can tell which is missing
    left, right = stack("x.blocks", ["a", "a", "a"]), stack("y.layers", ["a", "a"])
    names = find_renames(left, right)
    assert names.module("y.layers.0.fc") == "y.layers.0.fc"


def test_modules_of_other_shapes_are_no_renames() -> None:
    left = tree({"": "Net", "head": "Linear"}, {"head.weight": ((8, 4), "a")})
    right = tree({"": "Net", "score": "Linear"}, {"score.weight": ((8, 5), "b")})
    assert not find_renames(left, right)


def test_a_parameter_of_another_local_name_is_found_inside_its_module() -> None:
    left = tree(
        {"": "Net", "norm": "Norm"}, {"norm.gain": ((8,), "ones"), "norm.shift": ((8,), "0")}
    )
    right = tree(
        {"": "Net", "norm": "LayerNorm"}, {"norm.weight": ((8,), "ones"), "norm.bias": ((8,), "0")}
    )
    names = find_renames(left, right)
    assert names.tensor("norm.weight") == "norm.gain"
    assert names.tensor("norm.bias") == "norm.shift"


def test_what_a_mapping_says_comes_first_and_frees_no_name_for_something_else() -> None:
    # Given two modules that the mapping exchanges
    classes = {"": "Net", "a": "Linear", "b": "Linear"}
    left = tree(classes, {"a.weight": ((8, 8), "1"), "b.weight": ((8, 8), "2")})
    right = tree(classes, {"a.weight": ((8, 8), "1"), "b.weight": ((8, 8), "2")})
    given_names = NameMap(modules={"b": "a"}, found_by={"b": "mapping file"})
    names = find_renames(left, right, given_names)
    assert (names.module("b"), names.tensor("b.weight")) == ("a", "a.weight")
    assert names.module("a") == "b"
    # And one that it takes away from its namesake leaves that without partner
    only = tree({"": "Net", "a": "Linear"}, {"a.weight": ((8, 8), "1")})
    names = find_renames(only, right, given_names)
    assert names.module("b") == "a"
    assert names.module("a") not in only
    assert names.tensor("a.weight") not in ("a.weight", "b.weight")


def test_a_square_weight_kept_transposed_is_known_by_its_sibling() -> None:
    left = tree(
        {"": "Net", "a": "Conv1D", "b": "Conv1D"},
        {"a.weight": ((8, 4), "1"), "b.weight": ((8, 8), "2")},
    )
    right = tree(
        {"": "Net", "a": "Linear", "b": "Linear"},
        {"a.weight": ((4, 8), "3"), "b.weight": ((8, 8), "4")},
    )
    assert find_renames(left, right).layouts == {"a.weight": (1, 0), "b.weight": (1, 0)}
    # but not in modules of one class, where it would be a fault
    same = tree({"": "Net", "b": "Conv1D"}, {"b.weight": ((8, 8), "4")})
    assert find_renames(left, same).layouts == {}


names = st.sampled_from(["a", "b", "c", "d"])
forests = st.dictionaries(
    st.lists(names, min_size=1, max_size=3).map(".".join),
    st.tuples(st.sampled_from(["Linear", "Norm"]), st.sampled_from(["1", "2", "3"])),
    max_size=7,
)


def grown(forest: dict[str, tuple[str, str]]) -> dict[str, Node]:
    tensors = {f"{path}.weight": ((8, 8), inside) for path, (_, inside) in forest.items()}
    return tree({path: name for path, (name, _) in forest.items()}, tensors)


@given(forests, forests)
def test_exchanged_runs_have_the_same_partners_and_none_has_two(
    left: dict[str, tuple[str, str]], right: dict[str, tuple[str, str]]
) -> None:
    ours, theirs = grown(left), grown(right)
    forth, back = find_renames(ours, theirs), find_renames(theirs, ours)
    partners = {path: forth.module(path) for path in theirs if forth.module(path) in ours}
    assert len(set(partners.values())) == len(partners)
    assert partners == {partner: path for path in ours if (partner := back.module(path)) in theirs}


def chain(*layers: str) -> dict[str, Node]:
    """A `Sequential` of layers by class; each linear one has a weight of its own shape."""
    classes = {"": "Sequential", **{str(at): layer for at, layer in enumerate(layers)}}
    linear = [at for at, layer in enumerate(layers) if layer == "Linear"]
    weights: dict[str, tuple[tuple[int, ...], str]] = {
        f"{at}.weight": ((8, 8 + n), f"w{n}") for n, at in enumerate(linear)
    }
    return tree(classes, weights)


def test_a_layer_more_in_a_list_moves_those_behind_it() -> None:
    # Given a list that begins with a layer more, as for padding
    reference = chain("Linear", "ReLU", "Linear", "Flatten")
    candidate = chain("ZeroPad1d", "Linear", "ReLU", "Linear", "Flatten")
    # When names are looked for
    names = find_renames(reference, candidate)
    # Then each layer is taken for itself, and the new one for none
    assert [names.module(str(at)) for at in range(1, 5)] == ["0", "1", "2", "3"]
    assert names.module("0") == "(candidate) 0"
    assert names.tensor("3.weight") == "2.weight"


def test_of_equal_layers_some_of_another_class_stand_at_their_places() -> None:
    # Given a row of equal layers, of which the other run has every second one of another class
    names = find_renames(chain(*["Block"] * 4), chain("Fast", "Block", "Fast", "Block"))
    # Then no layer has moved
    assert not names
    # And neither has one where the other run has a layer more at the end
    assert not find_renames(chain(*["Block"] * 4), chain("Fast", "Block", "Fast", "Block", "ReLU"))


def test_lists_in_a_list_are_taken_apart() -> None:
    # Given the same layers, in one list and in lists of a list
    reference = chain("Linear", "ReLU", "Linear", "ReLU", "Flatten")
    classes = {"": "Sequential", "0": "Sequential", "0.0": "Linear", "0.1": "ReLU"}
    classes |= {"1": "Sequential", "1.0": "Linear", "1.1": "ReLU", "2": "Flatten"}
    candidate = tree(classes, {"0.0.weight": ((8, 8), "w0"), "1.0.weight": ((8, 9), "w1")})
    # When names are looked for
    names = find_renames(reference, candidate)
    # Then each layer is taken for itself
    found = [names.module(path) for path in ("0.0", "0.1", "1.0", "1.1", "2")]
    assert found == ["0", "1", "2", "3", "4"]
    # And the other way round
    back = find_renames(candidate, reference)
    assert [back.module(str(at)) for at in range(5)] == ["0.0", "0.1", "1.0", "1.1", "2"]


def test_a_layer_of_another_class_at_one_place_is_the_one_that_stands_there() -> None:
    # Given lists of which one layer is of another class
    names = find_renames(chain("Linear", "ReLU", "Linear"), chain("Linear", "GELU", "Linear"))
    # Then nothing has moved
    assert not names
