"""Names of modules and parameters, as `named_modules()` gives them on the model that is trained."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from weakref import WeakKeyDictionary

import torch
from torch.nn import Module
from torch.nn.parameter import is_lazy

from lockstep.capture.modules.live_modules import LivingModules
from lockstep.capture.modules.made_buffers import Told
from lockstep.capture.source_code.user_code import INSTALLED
from lockstep.devices.methods import numel

_WRAPPER_PARTS = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
_WRAPPER_CLASSES = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)


@dataclass(slots=True)
class Adopted:
    """A root module met for the first time, with every module, parameter and buffer below it."""

    root: Module
    label: str
    modules: list[tuple[str, Module]] = field(default_factory=list)


class ModuleNames:
    """Gives every module a path.

    The root that holds most of what is trained is *the* model: its paths are plain. Other roots (a
    second network, a teacher, a loss) have their class name in front. Wrappers
    (DistributedDataParallel, `torch.compile`, checkpoint wrappers) leave no trace in a path.

    living: Knows what may hold a module that is called.
    model: The model, where the caller has it at hand.
    trained: Gives what the optimizers hold.
    """

    def __init__(
        self,
        living: LivingModules,
        model: Module | None = None,
        trained: Callable[[], Iterable[torch.Tensor]] = tuple,
    ) -> None:
        self._living = living
        self._paths: dict[Module, str] = {}
        self._by_id: dict[int, Module] = {}
        self._labels: set[str] = set()
        self._primary: Module | None = None
        self.owners: dict[int, tuple[torch.Tensor, str, str]] = {}
        self.stand_ins: dict[int, tuple[torch.Tensor, str, str]] = {}
        self._aliases: dict[str, str] = {}
        self._alone = 0
        self._holders: dict[int, weakref.ref[Module]] | None = None
        self._trained = trained
        self._given = model

    def path_of(self, module: Module) -> str | None:
        """Path of a module met before, else None."""
        return self._paths.get(module)

    def module_with(self, number: int, moved: tuple[str, str] = ("", "")) -> Module | None:
        """The module met before whose `id` this is, or the one at its path once a part of that is replaced."""
        found = self._by_id.get(number)
        if found is None or moved[0] == moved[1]:
            return found
        path = self._paths[found]
        if path != moved[0] and not path.startswith(f"{moved[0]}."):
            return found
        path = f"{moved[1]}{path.removeprefix(moved[0])}"
        return next((one for one, other in self._paths.items() if other == path), found)

    def adopt_child(self, module: Module, parent: Module, parent_path: str) -> Adopted:
        """Name a module that appeared inside a running module after the tree was walked."""
        children = parent.named_children()
        name = next((key for key, child in children if child is module), type(module).__name__)
        return self._adopt(module, _joined(parent_path, name))

    def adopt(self, module: Module) -> Adopted:
        """Walk the whole tree that a module called from outside belongs to."""
        inner = without_wrappers(module)
        if inner in self._paths:
            return self._adopt(module, self._paths[inner])
        root = self._root_of(module)
        has_parameters = next(root.parameters(), None) is not None
        if self._primary is None and has_parameters:
            self._primary = self._model_among(root)
        if root is self._primary:
            label = ""
        elif has_parameters or root._modules:
            label = self._fresh_label(plain_class(type(root)).__name__)
        else:
            # A loss, say, which is often made anew for each step: they share a name.
            label = plain_class(type(root)).__name__
        return self._adopt(root, label)

    def refresh(self) -> None:
        """Find the parameters and buffers that modules were given since their tree was walked."""
        self._holders = None
        for module, path in self._paths.items():
            self._own_all(module, path)

    def _adopt(self, root: Module, label: str) -> Adopted:
        adopted = Adopted(root, label)
        for path, child in clean_tree(root, label, {}, self._aliases):
            if child not in self._paths:
                self._paths[child] = path
                self._by_id[id(child)] = child
                adopted.modules.append((path, child))
                self._own_all(child, path)
        return adopted

    def _own_all(self, module: Module, path: str) -> None:
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and id(tensor) not in self.owners and not is_lazy(tensor):
                self.owners[id(tensor)] = (tensor, path, _joined(path, name))

    def owner_of(self, tensor: torch.Tensor) -> tuple[str, str] | None:
        """Module path and full name of a parameter or buffer, else None."""
        found = self.owners.get(id(tensor)) or self.stand_ins.get(id(tensor))
        return found[1:] if found is not None and found[0] is tensor else None

    def stands_in(self, parameter: torch.Tensor) -> bool:
        """Whether a module has a parameter in the place of another one, as FSDP has while it is gathered.

        It goes by that name from now on.
        """
        for module, path in self._paths.items():
            for name, held in module._parameters.items():
                if held is parameter:
                    self.stand_ins[id(parameter)] = (parameter, path, _joined(path, name))
                    return True
        return False

    def made_at(self, module: Module, buffers: Iterable[str]) -> Told | None:
        """The call stack at which the first of these buffers of a module was registered, None where that is unknown."""
        return self._living.buffers.made_at(module, buffers)

    def modules(self) -> list[tuple[str, Module]]:
        """Every module that was met, with its path."""
        return [(path, module) for module, path in self._paths.items()]

    def trainable(self) -> dict[str, bool]:
        """Whether each parameter requires a gradient, by its name."""
        return {
            name: tensor.requires_grad
            for tensor, _, name in list(self.owners.values())
            if isinstance(tensor, torch.nn.Parameter) or tensor.requires_grad
        }

    def tied(self) -> dict[str, str]:
        """Second names of modules, parameters and buffers, each with the name that counts."""
        tied = dict(self._aliases)
        for module, path in self._paths.items():
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                owner = None if tensor is None else self.owner_of(tensor)
                if owner is not None and owner[1] != _joined(path, name):
                    tied[_joined(path, name)] = owner[1]
        return tied

    def holder_of(self, tensor: torch.Tensor) -> Module | None:
        """A module of this process that holds a tensor as its parameter or buffer, the first that was made."""
        if self._holders is None:
            modules = reversed(self._living.all())
            self._holders = {
                id(held): weakref.ref(module) for module in modules for held in _own(module)
            }
        holder = self._holders.get(id(tensor))
        module = None if holder is None else holder()
        return module if module is not None and _holds(module, tensor) else None

    def name_for_alone(self) -> str:
        """A name for a parameter that neither a module nor an optimizer has, by the order in which such are met."""
        return f"parameters[{self._alone}]"

    def own(self, tensor: torch.Tensor, name: str) -> None:
        """Name a parameter that belongs to no module."""
        self.owners[id(tensor)] = (tensor, "", name)
        self._alone += 1

    def start_anew(self) -> None:
        """Forget every name that was given."""
        self._paths.clear()
        self._by_id.clear()
        self._aliases.clear()
        self._labels.clear()
        self.owners.clear()
        self.stand_ins.clear()
        self._primary = self._holders = None
        self._alone = 0

    def forget(self) -> None:
        """Let go of every module and tensor."""
        self.start_anew()
        self._given = None

    def _root_of(self, module: Module) -> Module:
        if self._given is not None and _contains(self._given, module):
            return self._given
        if not module._modules and not module._parameters:
            return module
        around = [top for top in self._living.tops() if _contains(top, module)]
        return max(around, key=_size_and_class, default=module)

    def _model_among(self, root: Module) -> Module:
        """The tree that holds most of what is trained: `root`, which is met first, or another one."""
        if self._given is not None:
            return root
        trained = {id(tensor) for tensor in self._trained()}
        found, most = root, _trained_size(root, trained)
        for top in self._living.tops():
            size = _trained_size(top, trained)
            if size > most:
                found, most = top, size
        return found

    def _fresh_label(self, name: str) -> str:
        label, number = name, 1
        while label in self._labels:
            label, number = f"{name}_{number}", number + 1
        self._labels.add(label)
        return label


def _contains(root: Module, module: Module) -> bool:
    return any(child is module for child in root.modules())


def _size_and_class(root: Module) -> tuple[int, str]:
    return sum(1 for _ in root.modules()), class_name(root)


def _trained_size(root: Module, trained: set[int]) -> int:
    """How many numbers of a tree are trained: held by an optimizer, or, where there is none, taking a gradient."""
    size = 0
    for parameter in root.parameters():
        wanted = id(parameter) in trained if trained else parameter.requires_grad
        if wanted and not is_lazy(parameter):
            size += numel(parameter)
    return size


def _own(module: Module) -> list[torch.Tensor]:
    own = (*module._parameters.values(), *module._buffers.values())
    return [tensor for tensor in own if tensor is not None]


def _holds(module: Module, tensor: torch.Tensor) -> bool:
    return any(held is tensor for held in _own(module))


def without_wrappers(module: Module) -> Module:
    """Return the module inside of all wrappers."""
    for name, child in module._modules.items():
        if child is not None and _is_transparent(module, name):
            return without_wrappers(child)
    return module


def is_wrapper(module: Module) -> bool:
    """Whether a module only stands around another one, of which the script knows nothing."""
    parts = module._modules
    # By its keys: the mapping of a scripted module cannot be iterated over.
    return len(parts) == 1 and _is_transparent(module, next(iter(parts.keys())))


def _is_transparent(module: Module, name: str) -> bool:
    if name in _WRAPPER_PARTS:
        return True
    return name == "module" and (isinstance(module, _WRAPPER_CLASSES) or _wraps_all(module))


def _wraps_all(module: Module) -> bool:
    """Whether a module of an installed package has nothing that is trained but what it keeps as its `module`."""
    return (
        len(module._modules) == 1
        and not module._parameters
        and _is_installed(type(module).__module__)
    )


@cache
def _is_installed(package: str) -> bool:
    file = getattr(sys.modules.get(package), "__file__", None) or ""
    return INSTALLED.search(file) is not None


def clean_tree(
    module: Module, path: str, seen: dict[Module, str], aliases: dict[str, str]
) -> Iterator[tuple[str, Module]]:
    """Every module once, like `named_modules`, with wrapper parts left out of the path.

    `seen` gets every module's path, `aliases` the path that one had before where it comes again.
    """
    if module in seen:
        aliases[path] = seen[module]
        return
    seen[module] = path
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            transparent = _is_transparent(module, name)
            below = path if transparent else _joined(path, name)
            yield from clean_tree(child, below, seen, aliases)


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def class_name(module: Module) -> str:
    """Class of a module with its package: `torch.nn.LSTM`, `train.Net`, and `Net` of a script."""
    kind = type(module)
    return _class_names.get(kind) or _class_names.setdefault(kind, _class_name(plain_class(kind)))


_class_names: WeakKeyDictionary[type, str] = WeakKeyDictionary()


def plain_class(kind: type) -> type:
    """The class that a module was written in: torch's `fully_shard` makes one of it and a class of its own."""
    while len(kind.__bases__) == 2 and str(kind.__bases__[0].__module__).startswith(
        "torch.distributed."
    ):
        kind = kind.__bases__[1]
    return kind


def _class_name(kind: type) -> str:
    package = str(kind.__module__)
    if package.startswith("torch.nn.modules."):
        package = "torch.nn"
    return kind.__name__ if package == "__main__" else f"{package}.{kind.__name__}"
