"""CUDA and C++ sources, and the CMake files that build them: what they hold, and what has to happen to them.

Kernels are not translated. Each is listed by its name, and each file once, with what it takes from CUDA.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from lockstep_migrate.files.surroundings import names_old_device, said_of
from lockstep_migrate.hookspecs import MigrationTarget
from lockstep_migrate.plan import Mention, Outcome, Span

_HIDDEN = re.compile(
    r"""//[^\n]*|/\*[^*]*(?:\*(?!/)[^*]*)*(?:\*/|\Z)|"(?:[^"\\\n]|\\.)*(?:"|\\?(?=\n)|\\?\Z)|'(?:[^'\\\n]|\\.)'"""
)
_KERNEL = re.compile(r"\b__global__\b")
_NAME = re.compile(r"([A-Za-z_]\w*)\s*\(")
_LAUNCH_BOUNDS = re.compile(r"__launch_bounds__\s*\([^()]*(?:\([^()]*\)[^()]*)*\)")
_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*[<\"]([^>\"\n]*(?:cuda|cublas|cudnn|cufft|cusparse|cusolver|curand|nccl|thrust|cub/"
    r"|cutlass|nvtx|nvml|NvInfer|mma\.h|THC/)[^>\"\n]*)[>\"]",
    re.MULTILINE,
)
_HEAD_END = re.compile(r"[{;]|\b__global__\b")
_LONGEST_HEAD = 2000
"""Characters between `__global__` and the body of a kernel."""

_USES = (
    ("kernel launches", re.compile(r"<<<")),
    ("dispatches over types (AT_DISPATCH)", re.compile(r"\bAT_DISPATCH_\w+")),
    (
        "streams and guards of at::cuda or c10::cuda",
        re.compile(r"\b(?:at|c10|torch)::cuda\b|\bCUDAGuard\b|\bOptionalCUDAGuard\b"),
    ),
    ("calls of the CUDA runtime or driver", re.compile(r"\bcu(?:da)?[A-Z]\w+(?=\s*\()")),
    (
        "cuBLAS, cuDNN and their like",
        re.compile(r"\b(?:cublas|cudnn|cufft|cusparse|cusolver|curand)[A-Z]\w+"),
    ),
    ("NCCL", re.compile(r"\bnccl[A-Z]\w+")),
    ("functions of CUDA sources", re.compile(r"\b\w*(?:_cuda|_CUDA|[a-z]Cuda)\w*(?=\s*\()")),
    (
        "kernels registered for CUDA (TORCH_LIBRARY_IMPL)",
        re.compile(r"\bTORCH_LIBRARY(?:_FRAGMENT|_IMPL)?\s*\([^)]*CUDA[^)]*\)"),
    ),
    ("device functions", re.compile(r"\b__device__\b")),
    (
        "checks and constants for CUDA tensors",
        re.compile(r"\bis_cuda\b|\bkCUDA\b|\bCHECK_CUDA\b|\bDeviceType::CUDA\b|\bkCuda\b"),
    ),
)
_BUILD = re.compile(
    r"\bCUDAToolkit\b|\bLANGUAGES\b[^)]{0,200}\bCUDA\b|\benable_language\s*\(\s*CUDA\b|\b\w*CUDA\w*|\bcuda_\w+|\bCUDA::\w+"
    r"|\bcu(?:dnn|blas|fft)\w*|\bnccl\w*|\bnvcc\w*|\.cuh?\b|\bcudart\b",
    re.IGNORECASE,
)


def native_mentions(text: str, name: str, target: MigrationTarget) -> tuple[Mention, ...]:
    """What a CUDA, C++ or CMake file needs of the old device.

    Returned: one for the file and one for each kernel; one for each line of a build file; none where the file is
    plain C++.
    """
    if name.endswith((".cmake", "CMakeLists.txt")):
        return tuple(_build_mentions(text))
    is_cuda = name.endswith((".cu", ".cuh"))
    if not is_cuda and not names_old_device(text) and "<<<" not in text:
        return ()
    return tuple(_source_mentions(text, is_cuda, target))


def _source_mentions(text: str, is_cuda: bool, target: MigrationTarget) -> Iterator[Mention]:
    code = _code(text)
    kernels = list(_kernels(code))
    includes = list(_INCLUDE.finditer(text))
    uses = {what: list(pattern.finditer(code)) for what, pattern in _USES}
    places = [span.start for _, span in kernels] + [
        match.start()
        for match in (*includes, *(match for found in uses.values() for match in found))
    ]
    if not places and not is_cuda:
        yield from _prose(text)
        return
    first = min(places, default=0)
    new = said_of(target, lambda one: one.native)
    shown = Span(first, _line_end(text, first))
    reason = _summary(kernels, [match[1] for match in includes], uses)
    yield Mention("native/file", Outcome.LISTED, shown, reason, new)
    for _, span in kernels:
        reason = "is a kernel of CUDA, which runs on no other device"
        yield Mention("native/kernel", Outcome.LISTED, span, reason, new)


def _summary(
    kernels: list[tuple[str, Span]], includes: list[str], uses: Mapping[str, list[re.Match[str]]]
) -> str:
    """What a file takes from CUDA, in one sentence."""
    parts = []
    if kernels:
        names = ", ".join(name for name, _ in kernels)
        parts.append(f"{len(kernels)} kernel{'s' * (len(kernels) > 1)} ({names})")
    parts += [f"{what} ({len(found)})" for what, found in uses.items() if found]
    if includes:
        parts.append(f"headers {', '.join(dict.fromkeys(includes))}")
    return f"needs CUDA: {'; '.join(parts) or 'a CUDA source'}: port it, or replace its operator"


def _kernels(code: str) -> Iterator[tuple[str, Span]]:
    """Kernels by name, each from `__global__` to the bracket before its parameters."""
    for match in _KERNEL.finditer(code):
        head = _HEAD_END.split(code[match.end() : match.end() + _LONGEST_HEAD], 1)[0]
        head = _LAUNCH_BOUNDS.sub(lambda bounds: " " * len(bounds[0]), head)
        name = _NAME.search(head)
        if name:
            yield name[1], Span(match.start(), match.end() + name.end(1))


def _code(text: str) -> str:
    """The text with comments and strings blanked, every character in its place."""
    return _HIDDEN.sub(lambda match: re.sub(r"[^\n]", " ", match[0]), text)


def _prose(text: str) -> Iterator[Mention]:
    """C++ that speaks of the old device only in comments and messages."""
    match = re.search(r"cuda|nvidia|nccl|cudnn", text, re.IGNORECASE)
    if match:
        yield Mention("native/prose", Outcome.KEPT, Span(*match.span()), "a comment or message")


def _build_mentions(text: str) -> Iterator[Mention]:
    line = -1
    for match in _BUILD.finditer(re.sub(r"#[^\n]*", lambda comment: " " * len(comment[0]), text)):
        start = text.rfind("\n", 0, match.start()) + 1
        if start != line:
            line = start
            reason = "the build asks for CUDA: build for the target's own toolkit, or leave it out"
            yield Mention("native/build", Outcome.LISTED, Span(*match.span()), reason)


def _line_end(text: str, start: int) -> int:
    end = text.find("\n", start)
    return len(text) if end < 0 else end
