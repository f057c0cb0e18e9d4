"""What no rule follows to its end, and a person must look at: every place is listed that may fail on the new device.

A name is followed if the project gives it (`OwnNames.given`), or a table knows it. This file finds names of the
device's module behind variables of other files (`self.lib = torch.cuda`, `self.lib.comm.broadcast(...)`), words for
GPUs in calls of libraries that no table knows (`ray.init(num_gpus=1)`), compiled code, and devices that libraries take.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from lockstep_migrate.engine.arguments import called
from lockstep_migrate.engine.scopes import ModuleScopes
from lockstep_migrate.files.shell import LIGHTNING, LIGHTNING_GPU
from lockstep_migrate.files.surroundings import surroundings
from lockstep_migrate.name_lists import listed_names
from lockstep_migrate.names import has_name
from lockstep_migrate.plan import Outcome
from lockstep_migrate.torch.context import parameter_of
from lockstep_migrate.torch.receivers import is_setting
from lockstep_migrate.torch.table import Action
from lockstep_migrate.torch.takers import (
    ANY_DEVICE,
    NO_DEVICES,
    OF_TORCH,
    library_called,
    package_of,
)
from lockstep_migrate.torch.unit import Unit

_GPU = re.compile(r"(?:.*_)?gpus?(?:_.*)?\Z", re.IGNORECASE)
_GPU_TEXT = re.compile(r"/?gpus?(?::\d+)?\Z|\S*[=/]\S*(?<![a-z])gpu(?![a-z])", re.IGNORECASE)
"""A text that is the word, a device of TensorFlow's, or an image, address or option with the word in it."""
_GPU_NAME = re.compile(r"gpu|GPU|Gpu|CUDA|Cuda")
_KERNEL_NAME = re.compile(r"Fused[A-Z]|[48]bit(?!\w*Config)")
"""What libraries call layers and optimizers that have kernels of their own."""
_GPU_VARIABLE = re.compile(r"[A-Z][A-Z\d_]*GPUS?(?:_[A-Z\d_]+)?\Z")
_ENVIRONMENT = frozenset({"get", "getenv", "setdefault", "setenv", "pop", "putenv"})
_PLACING = re.compile(
    r"device|accel|platform|backend|target|task_type|tree_method|runtime|resource",
    re.IGNORECASE,
)
"""What libraries call a parameter or function that chooses a device."""
_OF_TORCH_WHOLLY = ("torchvision.transforms.", "torchvision.models.", "torchvision.ops.")
"""What of torchvision is written in torch's own operators."""
_DEVICE = re.compile(r"(?:\w*_)?device(?:_type|_name|s)?\Z")
_CARD_NAME = "torch.cuda.get_device_name"
RUNNING = listed_names("running")
_LOADING = listed_names("loading")
_COMPILED = re.compile(r"_(?:backend|ext|C|cpp|kernels?|cuda)?\Z|.*_(?:ext|cpp|kernels?)\Z|_C\w*\Z")
"""What packages call modules of theirs that are compiled."""
_RUNNING_PYTHON = re.compile(
    r"\S*(?:python|torchrun|accelerate|deepspeed|pytest|lightning|horovodrun|mpirun)\S*\Z|-"
)
"""What a list of a command's words begins with if a script of the project's kind is run."""
_STEPS = 3
_GPU_OPTION = re.compile(r"--[\w-]+=gpus?\Z|.*--nproc[-_]per[-_]node[= ]gpu(?!\w)")
_WORD = re.compile(r"gpu(?::\d+)?\Z", re.IGNORECASE)
_THROUGH = (ast.IfExp, ast.BoolOp, ast.List, ast.Tuple, ast.Set, ast.Call)
_DEFAULTS = frozenset({"default", "choices", "const", "default_factory", "factory"})


def find_unfollowed(unit: Unit) -> None:
    """List what is left that asks for the old device in another word, or through a variable."""
    by_variable = unit.own.device_modules or "getattr(torch, " in unit.scopes.source.text
    for name in unit.scopes.of(ast.Attribute):
        if by_variable and not isinstance(unit.scopes.parents[name], ast.Attribute):
            _find_behind_variable(unit, name)
    # Scripts of another framework are told as a whole.
    source = unit.scopes.source.text
    uses_torch = "torch" in source or "tensorflow" not in source
    for call in unit.scopes.of(ast.Call):
        for item in _gpu_words(call):
            library = (
                "" if unit.is_claimed(item) or not uses_torch else library_called(unit, call.func)
            )
            if library and not (library in ANY_DEVICE and getattr(item, "arg", "") == "device"):
                unit.list(item, "libraries/gpu", _asks(library))
        if called(call) in _LOADING and call.args and not unit.is_claimed(call.args[0]):
            reason = "loads compiled code, which may be for the old device alone"
            unit.list(call, "leftovers/import", reason)
        if called(call) in RUNNING or (call.args and called(call) in _ENVIRONMENT):
            _find_run(unit, call)
    for comparison in unit.scopes.of(ast.Compare):
        _find_compared(unit, comparison)
    for entry in unit.scopes.of(ast.Subscript):
        _find_variable(unit, entry.slice)
    for foreign in unit.scopes.of(ast.Attribute):
        if _GPU.match(foreign.attr) and _is_foreign(unit, foreign):
            reason = "is no name that the project gives: what counts as a GPU there cannot be told"
            unit.list(foreign, "leftovers/name", reason)
    told: set[str] = set()
    for statement in unit.scopes.imports():
        _find_compiled(unit, statement, told)
    for text in unit.scopes.of(ast.Constant, ast.JoinedStr):
        _say_what_takes(unit, text)
        _find_passed_on(unit, text)
    if any(one.outcome is Outcome.REWRITTEN for one in unit.mentions):
        _find_taken(unit)


def _find_taken(unit: Unit) -> None:
    """A device that a library is given by a variable (`decode_jpeg(data, device=device)`), once a library."""
    found: set[str] = set()
    for item in unit.scopes.of(ast.keyword):
        call, value = unit.scopes.parents[item], unit.text(item.value)
        written = isinstance(item.value, ast.Constant) or re.search(r"[\"']cpu[\"']", value)
        if written or not isinstance(call, ast.Call) or not _DEVICE.match(item.arg or ""):
            continue
        library = _taking(unit, call)
        if library and library not in found and not unit.is_claimed(item.value):
            unit.list(item, "libraries/device", _has_to_know(library))
            found.add(library)


def _has_to_know(library: str) -> str:
    return f"is given to {library}, which has to know the new device"


def _taking(unit: Unit, call: ast.Call) -> str:
    """The library that a call gives a device, if it may know other devices than torch."""
    library = library_called(unit, call.func)
    name = unit.scopes.name(call.func)
    root = name.split(".")[0]
    if not library and root in ("torchvision", "torchaudio"):
        library = root
    return "" if library in ANY_DEVICE or name.startswith(_OF_TORCH_WHOLLY) else library


def _asks(library: str) -> str:
    return f"asks {library} for GPUs: which devices that means is {library}'s to say"


def _find_run(unit: Unit, call: ast.Call) -> None:
    """Words for GPUs in a command that is run (`--nproc-per-node=gpu`), or in a variable that is asked for."""
    if called(call) not in RUNNING:
        _find_variable(unit, call.args[0])
        return
    words = [word for given in call.args for word in ast.walk(given)]
    if any(map(unit.is_listed, words)):
        return  # the command is told already
    for word in words:
        if re.search(r"(?<![a-z])gpus?(?![a-z])", _text(word)) and not unit.is_claimed(word):
            unit.list(word, "leftovers/code", "asks for GPUs in a command that is run")


def _find_variable(unit: Unit, name: ast.expr) -> None:
    """`os.environ["SM_NUM_GPUS"]`, which what starts the script sets."""
    text = _text(name)
    if _GPU_VARIABLE.match(text) and not unit.is_claimed(name):
        reason = "counts or chooses GPUs, and is set by what starts the script"
        unit.list(name, "strings/environment", reason)


def _find_passed_on(unit: Unit, text: ast.expr) -> None:
    """The word `"gpu"` that something for devices is given, and that the project itself nowhere asks for.

    Then whoever gets it decides which devices it means: `trainer = {"accelerator": "gpu"}`.
    """
    if unit.is_claimed(text):
        return
    if not unit.target.single and LIGHTNING.search(_text(text)):
        unit.list(text, "libraries/gpu", LIGHTNING_GPU)
    if _GPU_OPTION.match(_text(text)) or _is_behind_option(unit, text):
        unit.list(text, "libraries/gpu", "counts GPUs, or chooses one, in a command's option")
        return
    word = _text(text)
    name = receiving_name(unit.scopes, text) if _GPU.match(word) else ""
    if not name or (_WORD.match(word) and unit.own.asks_for_gpu):
        return
    if unit.target.single and name.endswith("accelerator"):
        return  # Lightning's word for Apple's GPU, too
    told = any(
        isinstance(above, ast.keyword) and unit.is_claimed(above)
        for above in unit.scopes.ancestors(text)
    )
    if _PLACING.search(name) and word not in unit.own.gpu_words and not told:
        unit.list(text, "libraries/gpu", "is passed on: which devices that means is not said here")


def _is_behind_option(unit: Unit, text: ast.expr) -> bool:
    """Whether a text is the word for GPUs behind an option in a list of a command's words."""
    words = getattr(unit.scopes.parents[text], "elts", [])
    before = words[words.index(text) - 1] if text in words[1:] else text
    return _WORD.match(_text(text)) is not None and _text(before).startswith("--")


def receiving_name(scopes: ModuleScopes, node: ast.expr) -> str:
    """The name that a value is given under: a variable, an attribute, a key, a parameter or a flag."""
    below: ast.AST = node
    above = scopes.parents[node]
    while isinstance(above, _THROUGH) or (
        isinstance(above, ast.keyword) and above.arg in _DEFAULTS
    ):
        if isinstance(above, ast.Call):
            flags = [_text(one).lstrip("-") for one in above.args if _text(one).startswith("-")]
            asked = called(above) in _ENVIRONMENT and below in above.args[1:]
            if flags or not (asked or isinstance(below, ast.keyword)):
                return flags[0] if flags else ""
        below, above = above, scopes.parents[above]
    if isinstance(above, ast.Dict):
        pairs = zip(above.keys, above.values, strict=True)
        return next((_text(key) for key, value in pairs if key and value is below), "")
    if isinstance(above, ast.Assign | ast.AnnAssign):
        target = above.targets[0] if isinstance(above, ast.Assign) else above.target
        if isinstance(target, ast.Subscript):
            return _text(target.slice)
        return getattr(target, "attr", "") or getattr(target, "id", "")
    if isinstance(above, ast.arguments):
        return parameter_of(above, below)
    return (above.arg or "") if isinstance(above, ast.keyword) else ""


def _is_device_name(unit: Unit, node: ast.expr, steps: int = _STEPS) -> bool:
    """Whether an expression is the name of a card, as its driver says it, at once or by a variable."""
    while isinstance(node, ast.Attribute | ast.Call):
        if unit.scopes.name(node.func if isinstance(node, ast.Call) else node) == _CARD_NAME:
            return True
        node = node.func if isinstance(node, ast.Call) else node.value
    if not isinstance(node, ast.Name) or not steps:
        return False
    values = [one.value for one in unit.scopes.bindings(node.id, unit.scopes.scope(node))]
    return any(
        isinstance(one, ast.Call) and _is_device_name(unit, one, steps - 1) for one in values
    )


def _find_compared(unit: Unit, comparison: ast.Compare) -> None:
    """`onnxruntime.get_device() == "GPU"`."""
    sides = [comparison.left, *comparison.comparators]
    if any(_is_device_name(unit, side) for side in sides):
        texts = [
            side for side in sides if isinstance(side, ast.Constant) and not unit.is_claimed(side)
        ]
        for text in texts:
            unit.list(text, "leftovers/message", "is compared with the name of a card of NVIDIA's")
    compared = [
        one for side in sides for one in getattr(side, "elts", [side]) if isinstance(one, ast.expr)
    ]
    for side in compared:
        if _is_asked_elsewhere(unit, sides) and _WORD.match(_text(side)):
            unit.list(
                side, "libraries/gpu", "is compared with what another library calls its devices"
            )
        if re.match(r"[A-Z]+_GPUS?\Z", _text(side)) and _text(side) not in unit.own.gpu_words:
            reason = "is a word for GPUs that the project gives nowhere: it is another's"
            unit.list(side, "libraries/gpu", reason)
    words = [side for side in sides if _GPU.match(_text(side))]
    libraries = [
        library_called(unit, side) for side in sides if isinstance(side, ast.Attribute | ast.Call)
    ]
    if words and any(libraries) and not unit.is_claimed(words[0]):
        unit.list(words[0], "libraries/gpu", _asks(next(filter(None, libraries))))


def _is_asked_elsewhere(unit: Unit, sides: list[ast.expr]) -> bool:
    """Whether a comparison asks for the kind of a device that the project nowhere sets: `array.device.platform`."""
    asked = [side for side in sides if isinstance(side, ast.Attribute)]
    return any(side.attr == "platform" and _is_foreign(unit, side) for side in asked)


def _is_foreign(unit: Unit, attribute: ast.Attribute) -> bool:
    """Whether an attribute is read that the project nowhere gives anything, such as one of a library's class."""
    if attribute.attr in unit.own.given or not isinstance(attribute.ctx, ast.Load):
        return False
    known = unit.scopes.name(attribute).split(".")[0] in OF_TORCH | NO_DEVICES
    return not unit.is_claimed(attribute) and not known and not is_setting(attribute)


def _find_compiled(unit: Unit, statement: ast.Import | ast.ImportFrom, told: set[str]) -> None:
    """Imports of packages whose kernels are for CUDA, each told once, and of modules that are compiled."""
    if unit.is_claimed(statement) or any(map(unit.is_claimed, statement.names)):
        return
    if isinstance(statement, ast.ImportFrom):
        packages = [] if statement.level else [(statement.module or "").split(".")[0]]
        compiled = any(_COMPILED.match(alias.name) for alias in statement.names)
    else:
        packages = [alias.name.split(".")[0] for alias in statement.names]
        compiled = any(_COMPILED.match(alias.name.rpartition(".")[2]) for alias in statement.names)
    named = [alias for alias in statement.names if _GPU_NAME.search(alias.name)]
    things = [surroundings().package(one) for one in packages if one not in told]
    told.update(packages)
    foreign = [one for one in packages if package_of(unit, one)]
    if found := next(filter(None, things), None):
        unit.list(statement, "leftovers/import", found.about)
    elif named and foreign:
        unit.list(statement, "libraries/gpu", _asks(foreign[0]))
    elif foreign and any(_KERNEL_NAME.search(alias.name) for alias in statement.names):
        reason = (
            f"has kernels of {foreign[0]}'s own by its name, which may be for the old device alone"
        )
        unit.list(statement, "leftovers/import", reason)
    elif compiled and foreign:
        reason = "imports compiled code, which may be for the old device alone"
        unit.list(statement, "leftovers/import", reason)


def _say_what_takes(unit: Unit, text: ast.expr) -> None:
    """Say of a device that was rewritten that a library takes it, which has to know the new one."""
    mention = unit.mention_of(text)
    if mention is None or mention.outcome is not Outcome.REWRITTEN:
        return
    if "strings/" not in mention.rule or mention.rule == "strings/library":
        return
    parent = unit.scopes.parents[text]
    if isinstance(parent, ast.List | ast.Tuple) and (program := _program(parent)):
        reason = _has_to_know(program)
        unit.supersede(text, mention.rule, reason, mention.edits, span=mention.span, differs=True)
    call = unit.scopes.parents[parent] if isinstance(parent, ast.keyword) else parent
    if not isinstance(call, ast.Call) or text is call.func:
        return
    name = parent.arg if isinstance(parent, ast.keyword) else called(call)
    library = _taking(unit, call) if _PLACING.search(name or "") else ""
    if library:
        reason = _has_to_know(library)
        unit.supersede(text, mention.rule, reason, mention.edits, span=mention.span, differs=True)


def _program(words: ast.List | ast.Tuple) -> str:
    """The program that a list of a command's words starts, if it is none that runs Python."""
    texts = [_text(word) for word in words.elts]
    is_command = any(text.startswith("-") for text in texts[1:])
    return "" if not is_command or not texts[0] or _RUNNING_PYTHON.match(texts[0]) else texts[0]


def _find_behind_variable(unit: Unit, chain: ast.Attribute) -> None:
    """List a name of the device's module that is reached through a variable, and that the target lacks."""
    leaves: list[str] = []
    node: ast.expr = chain
    while isinstance(node, ast.Attribute):
        if unit.is_claimed(node) and not leaves:
            return
        leaves.insert(0, node.attr)
        node = node.value
        if isinstance(node, ast.Call) and (
            called(node) in unit.own.device_modules or _is_looked_up(unit, node, leaves[0])
        ):
            break
        last = getattr(node, "attr", "") or getattr(node, "id", "")
        if last in unit.own.device_modules and not _is_elsewhere(unit, node):
            break
    else:
        return
    name = ".".join(("torch.cuda", *leaves))
    found = unit.settings.table.longest(name)
    if found is None:
        return
    # What a row drops, renames or stands in for is not there behind a variable.
    lacking = [
        one.name
        for one in unit.target.among or (unit.target,)
        if not one.has_name(".".join((one.module, *leaves)))
    ]
    if found[1].action is Action.LIST or lacking:
        lists = found[1].action is Action.LIST
        what = found[1].reason if lists else f"{', '.join(lacking)} has no {leaves[0]}"
        reason = f"reached through a variable: {what}"
        unit.list(chain, "unfollowed/variable", reason, unit.settings.readable(found[1].becomes))


def _is_looked_up(unit: Unit, call: ast.Call, leaf: str) -> bool:
    """Whether a call looks the device's module up in torch by a computed name, and has the leaf."""
    return (
        called(call) == "getattr"
        and len(call.args) > 1
        and unit.scopes.name(call.args[0]) == "torch"
        and not isinstance(call.args[1], ast.Constant)
        and has_name("torch", f"torch.cuda.{leaf}")
    )


def _is_elsewhere(unit: Unit, node: ast.expr) -> bool:
    """Whether an expression stands for something that is known: of torch, which other rules decide, or of a library."""
    meanings = unit.scopes.meanings(node)
    return any(
        meaning.name.startswith("torch.")
        or (meaning.binding is not None and package_of(unit, meaning.binding.qualified) != "")
        or unit.own.has_module(meaning.name)
        for meaning in meanings
    )


def _gpu_words(call: ast.Call) -> Iterator[ast.AST]:
    """The arguments of a call that ask for GPUs by name."""
    for given in call.args:
        if isinstance(given, ast.Dict):
            yield from _counting_keys(given)
        elif _GPU_TEXT.match(_text(given)):
            yield given
    for item in call.keywords:
        inner = item.value
        if item.arg and _GPU.match(item.arg):
            if getattr(inner, "value", True):  # not multi_gpu=False
                yield item
        elif item.arg and _PLACING.search(item.arg) and item.arg != "accelerator":
            words = [*inner.keys] if isinstance(inner, ast.Dict) else [*chosen_from(inner)]
            numbered = item.arg == "device" and type(getattr(inner, "value", None)) is int
            if numbered or any(word and _GPU.match(_text(word)) for word in words):
                yield item
        elif _GPU_TEXT.match(_text(inner)):
            yield inner
    if isinstance(call.func, ast.Attribute) and _GPU.match(call.func.attr):
        yield call.func


def _counting_keys(settings: ast.Dict) -> Iterator[ast.expr]:
    """The keys of settings, and of settings in them, that count GPUs: `{"launcher": {"gpus_per_node": 8}}`."""
    for word, given in zip(settings.keys, settings.values, strict=True):
        if isinstance(given, ast.Dict):
            yield from _counting_keys(given)
        elif word is not None and isinstance(given, ast.Constant) and _GPU.match(_text(word)):
            yield word


def chosen_from(node: ast.expr) -> Iterator[ast.expr]:
    """The expressions of which one is a value: both sides of `x if test else y` and of `x or y`."""
    if isinstance(node, ast.IfExp | ast.BoolOp):
        for one in (node.body, node.orelse) if isinstance(node, ast.IfExp) else node.values:
            yield from chosen_from(one)
    else:
        yield node


def _text(node: ast.AST) -> str:
    """The text that a literal is; empty for anything else."""
    value = node.value if isinstance(node, ast.Constant) else ""
    return value if isinstance(value, str) else ""


def is_unknown_key(unit: Unit, key: ast.Constant) -> bool:
    """Whether something is asked for what it has under a key that the project nowhere puts anything under.

    `vars(args)` has what is a flag or an attribute elsewhere.
    """
    parent = unit.scopes.parents[key]
    if isinstance(parent, ast.Tuple):
        parent = unit.scopes.parents[parent]
    if isinstance(parent, ast.Subscript):
        asks = isinstance(parent.ctx, ast.Load)
    else:
        asks = isinstance(parent, ast.Call) and called(parent) in ("get", "pop")
    text = unit.text(parent)
    is_view = text.startswith("vars(") or ".__dict__" in text
    return asks and key.value not in (unit.own.given if is_view else unit.own.keys)
