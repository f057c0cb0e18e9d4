"""Counts the places of a source that name the old device, by tokens and words alone.

It shares nothing with `lockstep migrate`, neither code nor vocabulary, so that the two can be held against each
other. It knows no scopes: a user's own `use_cuda` is counted like any other name, and `migrate` has to say that it
keeps it.
"""

from __future__ import annotations

import io
import json
import keyword
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

_WORDS = re.compile(
    r"(CUDA|NCCL|CUBLAS|CUDNN)_[A-Z0-9_]+"
    r"|cudnn|nccl|nvtx|tf32|nvidia|cuda|\bapex\b|[\w/]+\.cuh?\b",
    re.IGNORECASE,
)
"""What counts within strings, shell lines and settings."""

_NAMES: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        ("cudnn", r"(?i).*cudnn.*"),
        ("nccl", r"(?i).*nccl.*"),
        ("nvtx", r"(?i).*nvtx.*"),
        ("TF32", r"(?i).*tf32.*|set_float32_matmul_precision"),
        ("extension", r"CUDAExtension|load_inline"),
        ("is_cuda", r"is_cuda"),
        ("name with cuda", r"(?i).*cuda.*"),
        (
            "apex",
            r"(?i)apex|scale_loss|Fused(LayerNorm|RMSNorm|Adam|LAMB|SGD|NovoGrad)|FP16_Optimizer",
        ),
        ("Triton", r"triton"),
        ("autocast, GradScaler", r"autocast|custom_fwd|custom_bwd|GradScaler"),
        ("many devices", r"DataParallel|DistributedDataParallel|SyncBatchNorm|convert_sync\w*"),
        ("profiler", r"ProfilerActivity"),
    )
)
"""What counts among names, wherever they stand; the first that fits gives the kind."""

_KEYWORDS = {
    "map_location": "map_location",
    "pin_memory": "pin_memory",
    "pin_memory_device": "pin_memory",
    "device_ids": "many devices",
    "output_device": "many devices",
}
"""What counts as a keyword of a call; the same word as a variable or parameter is a name like any other."""

_LIBRARIES = frozenset(
    {
        *("bitsandbytes", "cupy", "dali", "flash_attn", "nvidia", "nvidia_smi"),
        *("pycuda", "pynvml", "tensorrt", "torch2trt", "transformer_engine", "xformers"),
    }
)
"""What counts where it is imported."""

_SILENT = frozenset({tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT})
_STRINGS = frozenset(
    {
        tokenize.STRING,
        *(
            getattr(tokenize, name, tokenize.STRING)
            for name in ("FSTRING_MIDDLE", "TSTRING_MIDDLE")
        ),
    }
)


@dataclass(frozen=True, order=True)
class Site:
    """A place: line and column of its first character from 1, its text, and what kind it is."""

    line: int
    column: int
    text: str
    kind: str


def python_sites(text: str) -> list[Site]:
    """The sites of Python source.

    Raises
    ------
    SyntaxError, tokenize.TokenError
        If it has no tokens, being none.
    """
    tokens = [
        token
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type not in _SILENT
    ]
    lines = io.StringIO(text).readlines()
    found: list[Site] = []
    statement = ""
    for place, token in enumerate(tokens):
        if place == 0 or _ends_statement(tokens[place - 1]):
            statement = token.string
        if token.type == tokenize.NAME and not keyword.iskeyword(token.string):
            kind = _kind_of_name(tokens, place, statement)
            if kind:
                found.append(Site(token.start[0], token.start[1] + 1, token.string, kind))
        elif token.type in _STRINGS and not _is_prose(tokens, place):
            found += _string_sites(_as_written(token, lines), token.start)
    return sorted(found)


def _ends_statement(token: tokenize.TokenInfo) -> bool:
    return token.type == tokenize.NEWLINE or token.string == ";"


def _is_prose(tokens: Sequence[tokenize.TokenInfo], place: int) -> bool:
    """Whether a string is a statement of its own, such as a docstring."""
    return (place == 0 or _ends_statement(tokens[place - 1])) and _ends_statement(tokens[place + 1])


def _kind_of_name(tokens: Sequence[tokenize.TokenInfo], place: int, statement: str) -> str | None:
    importing = statement in ("import", "from")
    name = tokens[place].string
    before = tokens[place - 1].string if place else ""
    after = tokens[place + 1].string
    if importing and name in _LIBRARIES:
        return "library for CUDA"
    if name == "amp" and before != "." and (importing or after == "."):
        return "amp"
    if name in _KEYWORDS and after == "=" and before in ("(", ",") and statement != "def":
        return _KEYWORDS[name]
    if name == "pin_memory" and before == ".":
        return "pin_memory"
    if name == "cuda" and before == ".":
        return "torch.cuda" if tokens[place - 2].string == "torch" else ".cuda"
    return next((kind for kind, pattern in _NAMES if pattern.fullmatch(name)), None)


def _as_written(token: tokenize.TokenInfo, lines: Sequence[str]) -> str:
    """A string as the source spells it: some versions of Python give `{{` of an f-string as one brace."""
    (first, start), (last, end) = token.start, token.end
    if first == last:
        return lines[first - 1][start:end]
    return "".join([lines[first - 1][start:], *lines[first : last - 1], lines[last - 1][:end]])


def _string_sites(string: str, start: tuple[int, int]) -> Iterator[Site]:
    for match in _WORDS.finditer(string):
        before = string[: match.start()]
        line = start[0] + before.count("\n")
        column = len(before) - before.rfind("\n") if "\n" in before else start[1] + len(before) + 1
        yield Site(line, column, match.group(), f"string: {_kind_of_word(match.group(), string)}")


def _kind_of_word(word: str, string: str) -> str:
    if re.fullmatch(r"(?i)[rbuf]*['\"]+(cuda|nccl)(:\S*)?['\"]*", string):
        return f"{word.lower()} as a value"
    if re.fullmatch(r"(CUDA|NCCL|CUBLAS|CUDNN)_[A-Z0-9_]+", word):
        return "environment variable"
    return "CUDA source" if word.endswith((".cu", ".cuh")) else "within other words"


def plain_sites(text: str) -> list[Site]:
    """The sites of a shell script or of settings: every line without its comment."""
    found = []
    for number, line in enumerate(re.split("\r\n|\r|\n", text), 1):
        code = re.sub(r"(^|\s)#.*", "", line)
        found += [
            Site(number, match.start() + 1, match.group(), "shell and settings")
            for match in _WORDS.finditer(code)
        ]
    return found


def notebook_sites(text: str) -> list[Site]:
    """The sites of a notebook's code cells, placed in its JSON text.

    Raises
    ------
    ValueError
        If it is no notebook.
    """
    document = json.loads(text)
    cells = document.get("cells") or [
        cell for sheet in document.get("worksheets", ()) for cell in sheet["cells"]
    ]
    found: list[Site] = []
    position = 0
    for cell in cells:
        source = cell.get("source", cell.get("input", ""))
        pieces = [source] if isinstance(source, str) else list(source)
        starts = []
        for piece in pieces:
            written = _written(piece, text, position)
            starts.append(text.index(written, position))
            position = starts[-1] + len(written)
        if cell.get("cell_type") == "code":
            found += _in_json(_cell_sites("".join(pieces)), pieces, starts, text)
    return found


def _written(piece: str, text: str, position: int) -> str:
    """A string as the JSON text spells it: with or without escapes of what is not ASCII."""
    plain = json.dumps(piece, ensure_ascii=False)
    return plain if text.find(plain, position) >= 0 else json.dumps(piece)


def _cell_sites(code: str) -> list[Site]:
    """The sites of a cell; one with shell lines or magics is read line by line, as far as it is not Python."""
    bare = re.sub(r"(?m)^(\s*)[!%].*$", r"\1pass", code)
    shell = [
        site for site in plain_sites(code) if re.match(r"\s*[!%]", code.split("\n")[site.line - 1])
    ]
    try:
        return python_sites(bare) + shell
    except (SyntaxError, tokenize.TokenError):
        return plain_sites(code)


def _in_json(
    sites: Iterable[Site], pieces: Sequence[str], starts: Sequence[int], text: str
) -> Iterator[Site]:
    code = "".join(pieces)
    lines = [0, *(match.end() for match in re.finditer("\n", code))]
    for site in sites:
        offset = lines[site.line - 1] + site.column - 1
        for piece, start in zip(pieces, starts, strict=True):
            if offset < len(piece):
                escaped = text[start] + _within(piece, offset, text, start)
                place = start + len(escaped)
                line = text.count("\n", 0, place) + 1
                yield replace(site, line=line, column=place - text.rfind("\n", 0, place))
                break
            offset -= len(piece)


def _within(piece: str, offset: int, text: str, start: int) -> str:
    """The beginning of a piece as the JSON text spells it, without the quotes."""
    plain = json.dumps(piece[:offset], ensure_ascii=False)[1:-1]
    return plain if text.startswith(plain, start + 1) else json.dumps(piece[:offset])[1:-1]
