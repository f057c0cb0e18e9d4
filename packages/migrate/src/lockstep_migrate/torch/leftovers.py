"""Whatever names the old device and was claimed by no rule: kept where it is the user's own or prose, else listed."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator

from lockstep.plugin import devices
from lockstep_migrate.engine.arguments import attribute_span, called
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.files.surroundings import surroundings
from lockstep_migrate.name_lists import listed_names
from lockstep_migrate.plan import Span
from lockstep_migrate.torch.context import DEVICE_KEY, OTHER_DEVICES, Use, is_device_key, use_of
from lockstep_migrate.torch.receivers import is_setting
from lockstep_migrate.torch.strings import is_docstring
from lockstep_migrate.torch.table import Action, Entry
from lockstep_migrate.torch.takers import library_called, library_of
from lockstep_migrate.torch.unfollowed import RUNNING
from lockstep_migrate.torch.unit import Unit
from lockstep_migrate.torch.vocabulary import DEVICE_WORDS, is_device_word

_PROSE = re.compile(r"\s")
_CODE = re.compile(
    r"__global__|nvidia-smi|torch\.cuda|\.cuda\(|<<<|blockIdx|CUDA_VISIBLE_DEVICES|NCCL_\w+=|^\W*nvcc\b|\bnsys\b|\bnvprof\b|"
    r"--gpus|nvcr\.io|[+/-]cu1\d\d\b|-gencode|-arch=",
    re.I,
)
_ADDRESS = re.compile(
    r"[\w.+-]+@[\w-]+\.[\w.]+\Z|(?:https?|git|ssh|s3|gs|file)://(?!\S*(?:/whl/|\+cu)\S*)\S*\Z"
)
"""An e-mail address, or one that is opened; not that of packages which are built for CUDA."""
_DATA = re.compile(
    r"(?!/usr/|/opt/|cuda/\d+\Z)(?:[\w.~-]*/)*[\w.-]+/[\w.-]+\Z|[\w-]+\.(?!cuh?\Z|so\Z)[a-z0-9]{1,5}\Z"
)
"""A path, a file, or the name of a model or data set on a hub."""
_SYSTEM = re.compile(r"/(?:proc|dev|sys|usr|opt|etc|run|var/lib)/\S*\Z")
"""A path of the machine's own, which the project does not bring."""
_NUMBERED_NAME = re.compile(r"(?!.*(?:torch|jax|lib|tensor|onnx))[a-z]+(?:-[a-z]+)*-cuda-\d+\Z")
"""The name of a data set or a run: `wiki-cuda-103`."""
_HARDWARE = re.compile(
    r"\b(?:[AHVP]100|H200|GeForce|Tesla|RTX|sm_\d\d|compute_\d\d)|\bsm_\Z|SLURM\w*GPU|(?-i:\bGPU_[A-Z]+)",
    re.IGNORECASE,
)
"""Cards of NVIDIA's, what they are called by its compiler, and variables by which a cluster counts them."""
_DEVICE_ITSELF = re.compile(
    r"cuda|nccl|cudnn|cublas|nvtx|nvml|nvidia|bitsandbytes|(?-i:Apex[A-Z])|nvfuser|nvenc|nvdec|cuvid|transformer_?engine|tf32|tensorrt|triton|__global__|\.cuh?\b",
    re.IGNORECASE,
)
_NAMING: tuple[type[ast.AST], ...] = (
    ast.arg,
    ast.keyword,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
    ast.ImportFrom,
    ast.alias,
    ast.Global,
    ast.Nonlocal,
)
_ONE_PROCESS = re.compile(r"(?<![A-Za-z])DataParallel")
_DOTTED = re.compile(r"(?:\w+\.)*?(?P<name>torch(?:\.\w+)+)\Z")
"""A name of torch's, maybe as a module of the project has it: `mock.patch("utils.torch.cuda.is_available")`."""
_KEY = re.compile(r"(?!torch\.)_*[a-z\d]+(?:[_.][a-z\d]+)+_*\Z")
_WORDS = re.compile(r"\w*(?:[a-z\d]_+[a-z\d]|[a-z][A-Z])\w*\Z")
"""A name of several words, as people give them."""
_VARIABLE = re.compile(r"[A-Z][A-Z\d]*(?:_[A-Z\d]+)+\Z")
_ASKED = frozenset({"get", "getenv", "pop", "setdefault", "setenv", "delenv", "putenv"})
_MATCHING = frozenset({"match", "fullmatch", "search", "findall"})
_HELP = frozenset({"help", "description", "epilog"})
_FLAG = re.compile(r"--?[\w-]+\Z")
_IMPORTING = frozenset({"__import__", "import_module"})
_ASKING = re.compile(r"find_spec|importorskip|requirement|available|installed", re.IGNORECASE)
"""What functions are called that ask whether a package is there."""
_OTHER_DEVICE = re.compile(
    rf"torch\.(?:{'|'.join(one.name for one in devices() if one.name != 'cuda')})\."
)
_COMMAND = re.compile(r"\W*(?:sudo |export |nvidia-smi|nvcc|[A-Z_]+=)")
_QUOTED = re.compile(r"""["'](?:cuda(?::\d+)?|nccl)["']""")
_SETTING = re.compile(
    r"""^[ \t]*(?:- )?["\w.-]+[ \t]*[:=][ \t]*(?:cuda(?::\d+)?|nccl)[ \t]*$""", re.MULTILINE
)
"""A line of settings, as YAML and INI files have them."""
_UNCLEAR = "a string with the device's name in it; its meaning is not clear"
_DEVICE_BYTES = re.compile(rb"\A(?:cuda(?::\d+)?|nccl)\Z", re.IGNORECASE)
_OPTION = re.compile(
    r"(?<![\w-])--?[A-Za-z][\w.-]*(?:=|\s+)[\"']?(?:cuda|nccl)(?![\w-])|--[\w.-]*accelerator[= ]gpu\b"
)
"""An option of a command that is given the device: `--device cuda:0`."""
_LABELLING = listed_names("labelling")
_LABELS = re.compile(r"(?:\A|_)name\Z|\A(?:project|group|tag|label|title|notes|prefix)\Z")
"""Parameters that such a name is given to."""
_IN_PACKAGE = re.compile(r"[a-z_]\w*(?:\.[A-Za-z_]\w*)+")
"""The dotted name of something in a package."""
_PROTOCOL = re.compile(r"__cuda\w*__\Z")
_EXPECTING = re.compile(r"[rR]aises|[wW]arns|Regex|^filterwarnings\Z")
_RESOURCES = frozenset({"nvidia.com/gpu", "nvidia.com/mig"})
_OTHER_MESSAGE = "is compared with a message, which reads otherwise on another device"
_TELLS = re.compile(r"(?:^|_)(?:print|log|warn|warning)(?:_|\Z)|^(?:error|info|message|echo)\Z")
"""What functions are called that show their text to a person."""


def find_leftovers(unit: Unit) -> None:
    """Claim every name and string that is left."""
    for text in unit.scopes.of(ast.Constant):
        words = text.value if isinstance(text.value, str) else ""
        if isinstance(text.value, bytes) and _DEVICE_BYTES.search(text.value):
            unit.list(text, "leftovers/string", _UNCLEAR)
        if (DEVICE_WORDS.search(words) or _is_library(unit, text)) and not _is_decided(
            unit, text, unit.scopes.span(text)
        ):
            _claim_string(unit, text, words)
    for name in unit.scopes.of(ast.Name):
        if name.id == "cuda" and _is_member(unit, name):
            unit.list(name, "leftovers/key", DEVICE_KEY)
        elif is_device_word(name.id):
            _claim_left(unit, name, name.id, unit.scopes.span(name))
    for attribute in unit.scopes.of(ast.Attribute):
        if is_device_word(attribute.attr):
            place = attribute_span(unit.scopes, attribute)
            _claim_left(unit, attribute, attribute.attr, place)
    for owner in unit.scopes.of(ast.ClassDef) if unit.own.reads_names else ():
        if owner.name.lower() == "cuda":
            reason = "may be looked up by its name, which the project reads: rename it together with its look-ups"
            start = unit.scopes.source.text.index(owner.name, unit.scopes.span(owner).start)
            unit.list(owner, "leftovers/key", reason, span=Span(start, start + len("cuda")))
    for node in unit.scopes.of(*_NAMING):
        for word, span in _names(unit, node):
            if is_device_word(word):
                _claim_left(unit, node, word, span)


def _is_member(unit: Unit, name: ast.Name) -> bool:
    """Whether a class has an entry that is called like the device, beside another device: a member of an Enum."""
    statement = unit.scopes.parents[name]
    block = getattr(unit.scopes.parents[statement], "body", None)
    is_class = isinstance(unit.scopes.parents[statement], ast.ClassDef)
    if not is_class or not isinstance(statement, ast.Assign) or not isinstance(block, list):
        return False
    others = [
        one.targets[0] for one in block if isinstance(one, ast.Assign) and one is not statement
    ]
    return any(getattr(other, "id", "") in OTHER_DEVICES for other in others)


def _is_library(unit: Unit, text: ast.Constant) -> bool:
    """Whether a text is a package for the old device that is looked up: `import_module("cupy")`, `"cupy.x"`."""
    if isinstance(text.value, str) and _IN_PACKAGE.fullmatch(text.value):
        return _of_package(text.value) != ""
    call = unit.scopes.parents[text]
    imports = isinstance(call, ast.Call) and called(call) in _IMPORTING
    return imports and _package_row(unit, str(text.value)) is not None


def _claim_left(unit: Unit, node: ast.AST, name: str, span: Span) -> None:
    if not _is_decided(unit, node, span):
        _claim_name(unit, node, name, span)


def _names(unit: Unit, node: ast.AST) -> Iterator[tuple[str, Span]]:
    """The identifiers that a statement, argument or import itself holds, with their places."""
    scopes = unit.scopes
    if isinstance(node, ast.arg | ast.keyword):
        name, start = node.arg or "", scopes.span(node).start
        yield name, Span(start, start + len(name))
    elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        start = scopes.source.text.index(node.name, scopes.span(node).start)
        yield node.name, Span(start, start + len(node.name))
    elif isinstance(node, ast.alias):
        yield f"{node.name} {node.asname or ''}".strip(), scopes.span(node)
    elif isinstance(node, ast.ImportFrom) and node.module:
        match = re.compile(r"from[\s\\.]+([\w.]+)").match(
            scopes.source.text, scopes.span(node).start
        )
        if match:
            yield node.module, Span(match.start(1), match.end(1))
    elif isinstance(node, ast.Global | ast.Nonlocal):
        yield " ".join(node.names), scopes.span(node)


def _is_decided(unit: Unit, node: ast.AST, span: Span) -> bool:
    """Whether a rule has claimed the node, or the chain, the import or the f-string that it is part of."""
    if unit.is_claimed(node):
        return True
    wholes: list[ast.AST] = list(node.names) if isinstance(node, ast.ImportFrom) else []
    part: type[ast.AST] = ast.JoinedStr if isinstance(node, ast.Constant) else ast.Attribute
    for above in unit.scopes.ancestors(node):
        if not isinstance(above, part):
            break
        wholes.append(above)
    mentions = [mention for whole in wholes if (mention := unit.mention_of(whole))]
    return any(mention.span.contains(span) for mention in mentions)


def _claim_name(unit: Unit, node: ast.AST, name: str, span: Span) -> None:
    if isinstance(node, ast.Attribute) and _OTHER_DEVICE.match(unit.scopes.name(node)):
        unit.keep(node, "leftovers/own-name", "a name of another device", span=span)
    elif isinstance(node, ast.Name | ast.Attribute) and _starts_in_torch(unit, node):
        unit.list(
            node, "leftovers/torch", "a name of torch for CUDA that no table knows", span=span
        )
    elif (
        isinstance(node, ast.Attribute) and _PROTOCOL.match(name) and isinstance(node.ctx, ast.Load)
    ):
        reason = "hands an array over as CUDA memory, which tensors of another device refuse"
        unit.list(node, "leftovers/name", reason, "DLPack", span=span)
    elif isinstance(node, ast.keyword) and is_device_key(unit.scopes, node):
        unit.list(node, "leftovers/key", DEVICE_KEY, span=span)
    elif isinstance(node, ast.keyword) and (library := _given_to(unit, node, name)):
        reason = f"is an argument of {library} that names the old device"
        unit.list(node, "leftovers/key", reason, span=span)
    elif isinstance(node, ast.alias | ast.ImportFrom) and _is_own_module(unit, node):
        unit.keep(node, "leftovers/own-name", "a module of this project's own", span=span)
    elif isinstance(node, ast.Attribute | ast.Name) and _is_foreign(unit, node, name):
        reason = "is no name that the project gives: whose it is, and whether other devices have it, cannot be told"
        unit.list(node, "leftovers/name", reason, span=span)
    elif not isinstance(node, ast.alias | ast.ImportFrom):
        unit.keep(node, "leftovers/own-name", "a name of this project's own", span=span)
    elif _ONE_PROCESS.search(name):
        row = unit.settings.table.lookup("torch.nn.DataParallel")
        reason, instead = (row.reason, row.becomes) if row else ("", "")
        unit.list(node, "leftovers/import", reason, instead, span=span)
    elif not _DEVICE_ITSELF.search(name):
        unit.keep(node, "leftovers/own-name", "a name that has no device in it", span=span)
    else:
        reason = "is made for CUDA by its name: it fails, or does nothing, on another device"
        unit.list(
            node, "leftovers/import", reason, "what its package has for the device", span=span
        )


def _is_foreign(unit: Unit, node: ast.Attribute | ast.Name, name: str) -> bool:
    """Whether a name of the device's is read that the project nowhere gives anything."""
    named = _DEVICE_ITSELF.search(name) is not None and name not in unit.own.given
    if isinstance(node, ast.Attribute) and is_setting(node):
        return False
    if not named or not isinstance(node.ctx, ast.Load):
        return False
    return isinstance(node, ast.Attribute) or not unit.scopes.bindings(
        node.id, unit.scopes.scope(node)
    )


def _given_to(unit: Unit, item: ast.keyword, name: str) -> str:
    """The library whose function takes an argument that is called like the device; empty where it is switched off."""
    call = unit.scopes.parents[item]
    off = isinstance(item.value, ast.Constant) and not item.value.value
    if off or not isinstance(call, ast.Call) or not _DEVICE_ITSELF.search(name):
        return ""
    told = _TELLS.search(called(call)) is not None or called(call) in _LABELLING
    return "" if told else library_called(unit, call.func)


def _is_own_module(unit: Unit, node: ast.alias | ast.ImportFrom) -> bool:
    """Whether something is imported from a file of the project."""
    statement = unit.scopes.parents[node] if isinstance(node, ast.alias) else node
    if isinstance(statement, ast.ImportFrom):
        module = statement.module or ""
        return bool(statement.level) or unit.own.has_module(module)
    return isinstance(node, ast.alias) and unit.own.has_module(node.name)


def _starts_in_torch(unit: Unit, node: ast.AST) -> bool:
    return any(
        meaning.name.split(".")[0] == "torch" and not meaning.assigned
        for meaning in unit.scopes.meanings(node)
    )


def _is_key(parent: ast.AST, node: ast.AST) -> bool:
    """Whether a text is what a dictionary is asked by, or made with."""
    if isinstance(parent, ast.Dict):
        return node in parent.keys
    return isinstance(parent, ast.Subscript) and parent.slice is node


def _of_package(text: str) -> str:
    """What the package of a dotted name is, if it is one for the old device; `cuda_results.csv` is a file."""
    thing = None if _DATA.match(text) else surroundings().package(text.split(".")[0])
    return thing.about if thing else ""


def _is_asked(parent: ast.AST, node: ast.AST) -> bool:
    """Whether a text is what the environment, or another dictionary, is asked by."""
    return _is_key(parent, node) or (isinstance(parent, ast.Call) and called(parent) in _ASKED)


def _is_library_setting(unit: Unit, parent: ast.AST, node: ast.Constant) -> bool:
    """Whether a text with the device's name is the key of a plain value which the project never asks for."""
    if not isinstance(parent, ast.Dict) or not _DEVICE_ITSELF.search(str(node.value)):
        return False
    pairs = zip(parent.keys, parent.values, strict=True)
    plain = any(key is node and isinstance(value, ast.Constant) for key, value in pairs)
    return plain and node.value not in unit.own.asked and library_of(unit, parent) != ""


def _is_matched(unit: Unit, node: ast.Constant) -> bool:
    """Whether a text is matched with an error or warning that is expected."""
    parent = unit.scopes.parents[node]
    call = unit.scopes.parents[parent] if isinstance(parent, ast.keyword) else parent
    return isinstance(call, ast.Call) and _EXPECTING.search(called(call)) is not None


def _is_run(unit: Unit, node: ast.Constant) -> bool:
    """Whether a text is a command, or a part of one, that a shell or another program is given."""
    above = unit.scopes.parents[node]
    while isinstance(above, ast.List | ast.Tuple | ast.JoinedStr | ast.BinOp):
        above = unit.scopes.parents[above]
    return isinstance(above, ast.Call) and called(above) in RUNNING


def _whole(unit: Unit, node: ast.Constant) -> str:
    """A text with what stands around it in its f-string."""
    parent = unit.scopes.parents[node]
    return unit.text(parent) if isinstance(parent, ast.JoinedStr) else str(node.value)


def _filled(unit: Unit, node: ast.Constant) -> str:
    """A text with a letter for each value that its f-string puts in: what a file may be called."""
    parent = unit.scopes.parents[node]
    parts = parent.values if isinstance(parent, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in parts)


def _is_told(unit: Unit, node: ast.Constant) -> bool:
    """Whether a text goes to a person: printed, warned of, said by an error, or the label of a record."""
    parent = unit.scopes.parents[node]
    whole = parent if isinstance(parent, ast.JoinedStr) else node
    call = unit.scopes.parents[whole]
    told = isinstance(call, ast.Call) and (
        _TELLS.search(called(call)) is not None or called(call) in _LABELLING
    )
    told |= isinstance(call, ast.keyword) and _LABELS.search(call.arg or "") is not None
    is_command = _COMMAND.match(str(node.value)) is not None
    return not is_command and (told or use_of(unit.scopes, whole) is Use.TEXT)


def _is_read(text: str) -> bool:
    """Whether a text gives a device as a value: in JSON, YAML and their like, or in code."""
    if _SETTING.search(text):
        return True
    try:
        code = parse(textwrap.dedent(text)) if _QUOTED.search(text) else None
    except SyntaxError:
        return False
    return code is not None


def _package_row(unit: Unit, text: str) -> Entry | None:
    """The row of a package for the old device that is imported by its name."""
    row = unit.settings.table.lookup(text) or unit.settings.table.lookup(text.split(".")[0])
    return row if row is not None and row.action is Action.LIST else None


def _asks_for_package(parent: ast.AST, text: str) -> bool:
    """Whether a call asks for a package that the tables know."""
    if not isinstance(parent, ast.Call) or not _ASKING.search(called(parent)):
        return False
    return called(parent) == "find_spec" or surroundings().package(text) is not None


def _claim_string(unit: Unit, node: ast.Constant, text: str) -> None:
    if is_docstring(unit.scopes, node):
        return
    parent = unit.scopes.parents[node]
    if unit.header.is_in_helper(node):
        unit.keep(node, "leftovers/neutral", "asks for the device type as the script runs")
    elif isinstance(parent, ast.keyword) and parent.arg in _HELP:
        unit.keep(node, "leftovers/text", "text for people")
    elif isinstance(parent, ast.Assign) and any(map(unit.is_listed, parent.targets)):
        unit.keep(node, "leftovers/text", "goes with what it is given to, which is listed")
    elif _is_matched(unit, node):
        unit.list(node, "leftovers/message", _OTHER_MESSAGE)
    elif _is_run(unit, node) or text in _RESOURCES:
        unit.list(node, "leftovers/code", "a command that is run, or what is asked of a cluster")
    elif text == "nvcc" and _is_key(parent, node):
        unit.keep(node, "leftovers/text", "goes with the extension that is built")
    elif _is_library_setting(unit, parent, node):
        reason = "is the key of a setting that nothing in the project reads: a library's own, for the old device"
        unit.list(node, "leftovers/key", reason)
    elif _IN_PACKAGE.fullmatch(text) and (about := _of_package(text)):
        unit.list(node, "leftovers/import", f"is looked up by its name: {about}")
    elif _KEY.match(text) and _is_key(parent, node):
        unit.keep(node, "leftovers/own-name", "a key of this project's own")
    elif (name := _DOTTED.match(text)) and (row := unit.settings.table.lookup(name["name"])):
        if row.action is Action.KEEP:
            unit.keep(node, "leftovers/text", row.reason)
        else:
            reason = "the name of something of CUDA's in a text, which a program looks up"
            unit.list(node, "leftovers/code", reason, unit.settings.readable(row.becomes))
    elif (
        isinstance(parent, ast.Call)
        and called(parent) in _IMPORTING
        and (row := _package_row(unit, text))
    ):
        unit.list(node, "leftovers/import", row.reason, unit.settings.readable(row.becomes))
    elif _asks_for_package(parent, text):
        unit.keep(node, "leftovers/text", "asks whether a package is there, and goes on without it")
    elif _SYSTEM.match(text):
        unit.list(node, "leftovers/code", "a file or folder of NVIDIA's driver, toolkit or devices")
    elif isinstance(parent, ast.Call) and called(parent) in _IMPORTING:
        reason = "imports a module that is compiled for CUDA: a device of another kind has none"
        unit.list(node, "leftovers/import", reason)
    elif _is_told(unit, node):
        unit.keep(node, "leftovers/text", "text for people")
    elif _FLAG.match(text) and isinstance(parent, ast.Call) and called(parent) == "add_argument":
        unit.keep(node, "leftovers/flag", "a flag of this project's own")
    elif _CODE.search(text):
        unit.list(
            node, "leftovers/code", "text that a program reads, such as a command or a kernel"
        )
    elif _VARIABLE.match(text) and _is_asked(parent, node) and text in unit.own.asked:
        unit.keep(node, "leftovers/own-name", "an environment variable of this project's own")
    elif _PROSE.search(text.strip()) and use_of(unit.scopes, node) is Use.TEST:
        unit.list(node, "leftovers/message", _OTHER_MESSAGE)
    elif _HARDWARE.search(text) and (not _PROSE.search(text.strip()) or _is_key(parent, node)):
        reason = "names hardware of NVIDIA's: what holds for it does not hold for another device"
        unit.list(node, "leftovers/message", reason)
    elif getattr(parent, "attr", "") == "split" or _is_read(text):
        reason = "text that a program reads, such as settings or code"
        unit.list(node, "leftovers/code", reason)
    elif _OPTION.search(text):
        reason = "a command whose option is given the old device"
        unit.list(node, "leftovers/code", reason)
    elif _PROSE.search(_whole(unit, node).strip()):
        unit.keep(node, "leftovers/text", "text for people")
    elif isinstance(parent, ast.Call) and called(parent) in _MATCHING:
        reason = "is matched with names of devices: change it together with what gives these names"
        unit.list(node, "leftovers/code", reason)
    elif _FLAG.match(text):
        unit.keep(node, "leftovers/flag", "a flag of this project's own")
    elif _ADDRESS.match(text):
        unit.keep(node, "leftovers/text", "an address")
    elif _DATA.match(_filled(unit, node)) or _NUMBERED_NAME.match(text):
        unit.keep(node, "leftovers/text", "a path, or the name of a model or data set")
    elif not _DEVICE_ITSELF.search(text):
        unit.keep(node, "leftovers/own-name", "a name that has no device in it")
    elif _WORDS.match(last := text.rpartition(".")[2]) and unit.scopes.is_taken(last):
        unit.keep(node, "leftovers/own-name", "a name of this module's own")
    else:
        unit.list(node, "leftovers/string", _UNCLEAR)
