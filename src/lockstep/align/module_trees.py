"""Trees of modules, what tells that two of them are alike, and the partners in two lists that keep their order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from lockstep.align.sequences import align_sequences
from lockstep.core.records import Content

_TELLING = 16
"""Elements from which on equal contents of two runs mean the same parameter rather than chance."""

Signature = Callable[["Node"], Hashable]


@dataclass(eq=False)
class Node:
    """One module of a tree: its class, its own parameters and buffers, its children in order."""

    path: str
    module_class: str = ""
    tensors: dict[str, Content] = field(default_factory=dict)
    children: list[Node] = field(default_factory=list)
    parent: Node | None = None

    @property
    def local_name(self) -> str:
        """Last part of the path."""
        return last_part(self.path)

    @property
    def class_name(self) -> str:
        """Class without the package that it comes from."""
        return last_part(self.module_class)

    @property
    def is_list(self) -> bool:
        """Whether its children are called by their places."""
        return bool(self.children) and all(one.local_name.isdecimal() for one in self.children)

    def elements(self) -> Iterator[Node]:
        """What a list holds, lists in it taken apart; of anything else, itself."""
        if not self.is_list or self.tensors:
            yield self
            return
        for child in self.children:
            yield from child.elements()

    def subtree(self) -> Iterable[Node]:
        """This module and all below, parents first, in order."""
        waiting = [self]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def is_below(self, other: Node) -> bool:
        """Whether `other` contains this module."""
        node = self.parent
        while node is not None and node is not other:
            node = node.parent
        return node is other


def module_tree(
    classes: Mapping[str, str], tensors: Iterable[tuple[str, str, Content]] = ()
) -> dict[str, Node]:
    """The modules of a run by path, the root under "".

    classes: Class of each module in the model's order.
    tensors: Initial parameters and buffers in order: module that owns it, full name, content.
    """
    nodes = {"": Node("")}
    for path, name in classes.items():
        _node(nodes, path).module_class = name
    for path, name, content in tensors:
        _node(nodes, path).tensors[name] = content
    return nodes


def _node(nodes: dict[str, Node], path: str) -> Node:
    if path not in nodes:
        parent = _node(nodes, path.rpartition(".")[0])
        nodes[path] = Node(path, parent=parent)
        parent.children.append(nodes[path])
    return nodes[path]


def last_part(name: str) -> str:
    """What stands behind the last dot of a name."""
    return name.rpartition(".")[2]


# --- what identifies a subtree ---------------------------------------------------------------------


def contents_of(node: Node) -> Hashable:
    """Digests of all parameters below in order; None where they may be equal by chance."""
    contents = [content for one in node.subtree() for content in one.tensors.values()]
    if not any(is_telling(content) for content in contents):
        return None
    return tuple((content.digest, content.shape) for content in contents)


def is_telling(content: Content) -> bool:
    """Whether equal contents of two runs mean the same parameter."""
    statistics = content.statistics
    varies = statistics is None or statistics.minimum != statistics.maximum
    return content.digest is not None and content.numel >= _TELLING and varies


def build_of(node: Node) -> Hashable:
    """Classes and shapes of all that is below, in order."""
    shapes = tuple(content.shape for content in node.tensors.values())
    return node.class_name, shapes, tuple(build_of(child) for child in node.children)


def large_build_of(node: Node) -> Hashable:
    """The same for what holds parameters; None elsewhere, as many modules are built like that."""
    return build_of(node) if any(one.tensors for one in node.subtree()) else None


def shapes_of(node: Node) -> Hashable:
    """Shapes of all parameters below in order; None where there is none."""
    return tuple(c.shape for one in node.subtree() for c in one.tensors.values()) or None


def class_of_parent(node: Node) -> Hashable:
    """Class of what holds other modules."""
    return (node.class_name or None) if node.children else None


# --- partners in two lists --------------------------------------------------------------------------


def keep_their_places(left: Sequence[Node], right: Sequence[Node]) -> bool:
    """Whether at least as many elements of two lists are built alike by their places as in any order-keeping pairing.

    Of equal layers in a row of which the other run has some of another class, each is the one at its place. Lists of
    other lengths of which no two elements are built alike do not tell.
    """
    builds = [build_of(node) for node in left], [build_of(node) for node in right]
    in_place = sum(one == other for one, other in zip(*builds, strict=False))
    if not in_place and len(left) != len(right):
        return False
    return in_place >= len(align_sequences(*builds))


def in_order(left: Sequence[Node], right: Sequence[Node]) -> list[tuple[Node, Node]]:
    """Partners in two lists: what is built alike, between these what has equal shapes, and what is as many.

    Lists inside of them are taken apart where nothing else fits.
    """
    return _paired(left, right, (build_of, _shapes_alike))


def _paired(
    left: Sequence[Node], right: Sequence[Node], signatures: Sequence[Signature]
) -> list[tuple[Node, Node]]:
    if not signatures:
        return _left_over(left, right)
    signature, *others = signatures
    one, two = (
        [id(node) if (key := signature(node)) is None else key for node in nodes]
        for nodes in (left, right)
    )
    matches = align_sequences(one, two)
    found = [(left[i], right[j]) for i, j in matches]
    ends = [(-1, -1), *matches, (len(left), len(right))]
    for (a, b), (c, d) in pairwise(ends):
        found.extend(_paired(left[a + 1 : c], right[b + 1 : d], others))
    return found


def _left_over(left: Sequence[Node], right: Sequence[Node]) -> list[tuple[Node, Node]]:
    """Partners of two lists in which nothing is built alike: equally many, or what the lists inside of them hold."""
    if len(left) == len(right) and all(
        one.is_list == other.is_list for one, other in zip(left, right, strict=True)
    ):
        return [*zip(left, right, strict=True)]
    flat = [[inner for node in nodes for inner in node.elements()] for nodes in (left, right)]
    if flat == [list(left), list(right)]:
        return []
    return in_order(flat[0], flat[1])


def _shapes_alike(node: Node) -> Hashable:
    """Shapes of all parameters below; those of a list are not one layer's."""
    shapes = shapes_of(node)
    return None if shapes is None else (node.is_list, shapes)
