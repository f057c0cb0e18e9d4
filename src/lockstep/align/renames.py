"""Finding modules and parameters that the two runs call by different names.

Both module trees are laid over each other once. What has the same path is the same; but a number in a
path is a place in a list, which moves if one run has a layer more, so lists of other builds are laid
over each other in order, lists in them taken apart where nothing else fits. Of the rest, in this
order: subtrees whose parameters hold equal contents; inside of matched modules children of the same
local name, of the same build (class, shapes, order), of the same class or shapes; subtrees of the same
build anywhere; and a module most of whose children were matched below one other module. Every step
takes only what is unmistakable: one on each side, or equally many on both sides in equal order.
Whatever is not stays without partner.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace

from lockstep.align.module_trees import (
    Node,
    Signature,
    build_of,
    class_of_parent,
    contents_of,
    in_order,
    is_telling,
    keep_their_places,
    large_build_of,
    last_part,
    shapes_of,
)
from lockstep.align.names import SUM, NameMap
from lockstep.core.finding import Axes
from lockstep.core.records import Content
from lockstep.core.remarks import On, Remark
from lockstep.measure.axis_order import TRANSPOSED, is_transposed, may_be_transposed, other_layout

_ONLY_CANDIDATE = "(candidate) "
"""In front of a candidate's name that means something else in the reference."""


# --- laying one tree over the other ----------------------------------------------------------------


class _Overlay:
    """Partners found so far between the modules of two trees."""

    def __init__(self, reference: dict[str, Node], candidate: dict[str, Node]) -> None:
        self.trees = (reference, candidate)
        self.partner: tuple[dict[Node, Node], dict[Node, Node]] = ({}, {})
        self.found_by: dict[Node, str] = {}

    def match(self, left: Node, right: Node, found_by: str) -> None:
        """Take two modules as one, unless either is taken."""
        if left not in self.partner[0] and right not in self.partner[1]:
            self.partner[0][left], self.partner[1][right] = right, left
            self.found_by[left] = found_by

    def alone(self, side: int) -> list[Node]:
        """Modules of one side without partner, parents first."""
        root = self.trees[side][""]
        return [node for node in root.subtree() if node not in self.partner[side]]

    def match_paths(self, paths: Iterable[str], names: NameMap) -> None:
        """Match modules of the candidate with those that these names say."""
        for path in paths:
            partner = self.trees[0].get(names.module(path))
            if partner is not None:
                self.match(partner, self.trees[1][path], "path")

    def match_lists(self, left: Node, right: Node) -> None:
        """Match children by name from two modules down; numbered ones of other builds in their order."""
        named = {child.local_name: child for child in right.children}
        pairs = [
            (child, named[child.local_name]) for child in left.children if child.local_name in named
        ]
        if left.is_list and right.is_list and not keep_their_places(left.children, right.children):
            pairs = in_order(left.children, right.children)
        for one, other in pairs:
            if one.path == other.path or (left.is_list and right.is_list):
                self.match(one, other, "its place in a list")
            if self.partner[0].get(one) is other:
                self.match_lists(one, other)

    def match_anywhere(self, signature: Signature, found_by: str) -> None:
        """Match subtrees of one signature, where both sides have equally many of them."""
        buckets: dict[Hashable, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
        for side in (0, 1):
            for node in self.alone(side):
                key = signature(node)
                if key is not None:
                    buckets[key][side].append(node)
        for lefts, rights in buckets.values():
            left_chains, right_chains = _chains(lefts), _chains(rights)
            if len(left_chains) == len(right_chains):
                for left, right in zip(left_chains, right_chains, strict=True):
                    self._match_chains(left, right, found_by)

    def _match_chains(self, left: list[Node], right: list[Node], found_by: str) -> None:
        """Nested modules that hold the very same: all of them, else the innermost."""
        if len(left) != len(right):
            left, right = left[-1:], right[-1:]
        for one, other in zip(left, right, strict=True):
            if self._agrees_above(one, other):
                self.match(one, other, found_by)

    def _agrees_above(self, left: Node, right: Node) -> bool:
        """Whether no matched module around one of them belongs to something else on the other
        side."""
        for node, other, partner in (
            (left, right, self.partner[0]),
            (right, left, self.partner[1]),
        ):
            above = node.parent
            while above is not None and above not in partner:
                above = above.parent
            if above is not None and above.path and not other.is_below(partner[above]):
                return False
        return True

    def match_children(self) -> None:
        """Match children inside of matched modules, from the root down."""
        root = self.trees[0][""]
        for left in root.subtree():
            right = self.partner[0].get(left)
            if right is not None:
                self._match_children_of(left, right)

    def _match_children_of(self, left: Node, right: Node) -> None:
        named = {child.local_name: child for child in right.children}
        for child in left.children:
            if child.local_name in named:
                self.match(child, named[child.local_name], "its name inside a renamed module")
        self._match_equally_many(left, right, build_of, "an equal build")
        self._match_equally_many(left, right, shapes_of, "parameters of equal shapes")
        self._match_equally_many(left, right, class_of_parent, "an equal class")

    def _match_equally_many(
        self, left: Node, right: Node, signature: Signature, found_by: str
    ) -> None:
        buckets: dict[Hashable, tuple[list[Node], list[Node]]] = defaultdict(lambda: ([], []))
        for side, parent in enumerate((left, right)):
            for child in parent.children:
                key = signature(child) if child not in self.partner[side] else None
                if key is not None:
                    buckets[key][side].append(child)
        for lefts, rights in buckets.values():
            if len(lefts) == len(rights):
                for one, other in zip(lefts, rights, strict=True):
                    self.match(one, other, found_by)

    def match_parents(self) -> None:
        """Match modules most of whose matched children lie below one other module, innermost
        first."""
        for left in reversed(self.alone(0)):
            right = self._common_parent(left, 0)
            if right is not None and self._common_parent(right, 1) is left:
                self.match(left, right, "what it contains")

    def _common_parent(self, node: Node, side: int) -> Node | None:
        partners = [self.partner[side].get(child) for child in node.children]
        votes = Counter(
            one.parent for one in partners if one is not None and one.parent is not None
        )
        if not votes:
            return None
        parent, count = votes.most_common(1)[0]
        free = parent not in self.partner[1 - side]
        return parent if free and 2 * count > sum(votes.values()) else None


def _chains(nodes: list[Node]) -> list[list[Node]]:
    """Nodes with parents first, put together where one contains the next."""
    chains: list[list[Node]] = []
    for node in nodes:
        if chains and node.is_below(chains[-1][-1]):
            chains[-1].append(node)
        else:
            chains.append([node])
    return chains


def find_renames(
    reference: dict[str, Node], candidate: dict[str, Node], given: NameMap | None = None
) -> NameMap:
    """Return the candidate's names that differ from the reference's.

    Parameters
    ----------
    reference, candidate
        Module trees of the two runs, as `module_tree` makes them.
    given
        Names that are decided already, by a mapping file; they come before everything else.

    Returns
    -------
    NameMap
        With those of `given` and those that were found. Exchanged sides give the same pairs.
    """
    given = given or NameMap()
    overlay = _Overlay(reference, candidate)
    overlay.match_paths((path for path in candidate if path in given.modules), given)
    overlay.match_paths([""], given)
    overlay.match_lists(reference[""], candidate[""])
    overlay.match_paths(candidate, given)
    if overlay.alone(0) and overlay.alone(1):
        for signature, found_by in (
            (contents_of, "equal contents"),
            (large_build_of, "an equal build"),
        ):
            overlay.match_anywhere(signature, found_by)
            overlay.match_parents()
            overlay.match_children()
    return _as_names(overlay, given)


def _as_names(overlay: _Overlay, given: NameMap) -> NameMap:
    modules, found_by = dict[str, str](), dict[str, str]()
    for left, right in overlay.partner[0].items():
        if left.path != right.path:
            modules[right.path] = left.path
            how = overlay.found_by[left]
            found_by[right.path] = Remark(
                On.MODULE_RENAMED, reference=left.path, candidate=right.path, reason=how
            )
    tensors = _tensor_partners(overlay, given)
    for new, old in _changes(tensors).items():
        found_by[new] = Remark(On.TENSOR_RENAMED, reference=old, candidate=new)
    found_by |= given.found_by
    layouts = _layouts(overlay, tensors) | _declared(overlay, given)
    sums = {new: old for new, old in given.tensors.items() if SUM in old}
    renamed = _changes(tensors) | sums
    names = replace(given, modules=modules, tensors=renamed, layouts=layouts, found_by=found_by)
    return _without_clashes(names, overlay, tensors)


def _without_clashes(names: NameMap, overlay: _Overlay, tensors: Mapping[str, str]) -> NameMap:
    """The same, with other names for what would else be taken for a partner that it is not."""
    lone_modules = {
        node.path: _ONLY_CANDIDATE + node.path
        for node in overlay.alone(1)
        if names.module(node.path) in overlay.trees[0]
    }
    known = _tensors(overlay.trees[0])
    lone_tensors = {
        name: _ONLY_CANDIDATE + name
        for name in _tensors(overlay.trees[1])
        if name in known and name not in tensors
    }
    return replace(
        names,
        modules={**names.modules, **lone_modules},
        tensors={**names.tensors, **lone_tensors},
    )


def _layouts(overlay: _Overlay, partners: Mapping[str, str]) -> dict[str, Axes]:
    """Parameters that one class of module keeps in another layout than its counterpart.

    A square matrix shows it by its contents only, so modules of equal class are never taken to do
    so, and without whole tensors another parameter of the two classes must show it by its shape.
    """
    found: dict[str, Axes] = {}
    square: list[tuple[tuple[str, str], str, Content, Content]] = []
    shown: set[tuple[str, str]] = set()
    for left, right in overlay.partner[0].items():
        classes = left.class_name, right.class_name
        for new, theirs in right.tensors.items():
            ours = left.tensors.get(partners.get(new, ""))
            if ours is None or left.class_name == right.class_name:
                continue
            axes = other_layout(ours, theirs)
            if axes is not None:
                found[partners[new]] = axes
                shown |= {classes} if axes == TRANSPOSED else set()
            elif may_be_transposed(ours, theirs):
                square.append((classes, partners[new], ours, theirs))
    for classes, name, ours, theirs in square:
        if is_transposed(ours, theirs, otherwise=classes in shown):
            found[name] = TRANSPOSED
    return found


def _declared(overlay: _Overlay, given: NameMap) -> dict[str, Axes]:
    """Orders of axes that a mapping file gives, of all that are an order alone."""
    return {
        name: given.declared[name].without_ones(content.shape)
        for name, content in _tensors(overlay.trees[0]).items()
        if name in given.declared
        and given.declared[name].is_order_alone
        and given.declared[name].shape(content.shape) is not None
    }


def _changes(names: Mapping[str, str]) -> dict[str, str]:
    return {new: old for new, old in names.items() if new != old}


def _tensors(tree: Mapping[str, Node]) -> dict[str, Content]:
    return {name: content for node in tree.values() for name, content in node.tensors.items()}


_Key = Callable[[str, Content], Hashable]


def _tensor_partners(overlay: _Overlay, given: NameMap) -> dict[str, str]:
    """Reference name by candidate name of every parameter and buffer that has a partner."""
    left, right = (_tensors(tree) for tree in overlay.trees)
    found = _TensorPartners()
    found.add((given.tensors[new], new) for new in right if given.tensors.get(new) in left)
    owners = [(one.tensors, other.tensors) for one, other in overlay.partner[0].items()]
    for ours, theirs in owners:
        found.match(ours, theirs, _local_name)
    found.match(left, right, lambda name, content: name)
    for ours, theirs in owners:
        found.match(ours, theirs, _digest)
        found.match(ours, theirs, _shape)
    found.match(left, right, _digest)
    return found.reference_name


class _TensorPartners:
    """Reference name by candidate name, and what is taken."""

    def __init__(self) -> None:
        self.reference_name: dict[str, str] = {}
        self._taken: set[str] = set()

    def add(self, pairs: Iterable[tuple[str, str]]) -> None:
        """Take each reference name and candidate name as one."""
        for old, new in pairs:
            self.reference_name[new] = old
            self._taken.add(old)

    def match(self, left: Mapping[str, Content], right: Mapping[str, Content], key: _Key) -> None:
        """Match tensors of one key, where both sides have equally many of them."""
        if right.keys() <= self.reference_name.keys():
            return
        buckets: dict[Hashable, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
        for side, (tensors, done) in enumerate(
            ((left, self._taken), (right, self.reference_name.keys()))
        ):
            for name, content in tensors.items():
                found = key(name, content) if name not in done else None
                if found is not None:
                    buckets[found][side].append(name)
        for old, new in buckets.values():
            if len(old) == len(new):
                self.add(zip(old, new, strict=True))


def _local_name(name: str, content: Content) -> Hashable:
    return last_part(name)


def _digest(name: str, content: Content) -> Hashable:
    return (content.digest, content.shape) if is_telling(content) else None


def _shape(name: str, content: Content) -> Hashable:
    return content.shape
