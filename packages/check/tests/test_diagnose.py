"""`lockstep diagnose`: every known message by its own line, none by what looks like it, none in healthy logs."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.cli.main import main
from lockstep_check.data_files import rows_of
from lockstep_check.logs import blocks
from lockstep_check.logs.known_messages import KnownMessage, Severity, known_messages
from lockstep_check.logs.ranking import in_order
from lockstep_check.logs.scan import Findings, Scanner

HEALTHY = Path(__file__).parent / "healthy"
FAILED = [
    row
    for name in ("logs_that_failed.yaml", "logs_of_strangers.yaml")
    for row in rows_of(Path(__file__).parent / name)
]
WENT_WELL = rows_of(Path(__file__).parent / "logs_that_went_well.yaml")
MESSAGES = known_messages()
SCANNER = Scanner(MESSAGES)
OUT_OF_MEMORY = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."

FAQ = (
    "pip3.7 install Pillow==5.3.0 failed",
    "RuntimeError: ExchangeDevice:",
    "Error in atexit._run_exitfuncs:",
    "terminate called after throwing an instance of 'c10::Error' what(): HelpACLExecute:",
    "terminate called after throwing an instance of 'c10::Error' what(): 0 INTERNAL ASSERT",
    "ImportError: libhccl.so.",
    "RuntimeError: Initialize.",
    "TVM/te/cce error.",
    "MemCopySync:drvMemcpy failed.",
    "HelpACLExecute.",
    "55056 GetInputConstDataOut: ErrorNo: -1(failed)",
    "RuntimeError: malloc:/..../pytorch/c10/npu/NPUCachingAllocator.cpp:293 NPU error, error code is 500000.",
    "RuntimeError: Could not run 'aten::trunc.out' with arguments from the 'NPUTensorId' backend.",
    "error in op MaxPoolGradWithArgmaxV1",
    "ModuleNotFoundError: No module named 'torch._C'",
    "aicpu_kernels/libpt_kernels.so does not exist",
    "match op inputs failed",
    "Op type SigmoidCrossEntropyWithLogitsV2 of ops kernel AIcoreEngine is unsupported",
    "load state_dict error.",
    "host not found.",
    "RuntimeError:connect() timed out.",
)
"""How the guide for porting to Ascend words its questions."""


def names_in(text: str | bytes) -> list[str]:
    """The messages of a log, in order."""
    data = text if isinstance(text, bytes) else text.encode()
    return [found.message.name for found in look_through(data).found.values()]


def look_through(data: bytes) -> Findings:
    """What is found in a log."""
    findings = Findings()
    SCANNER.scan("log", io.BytesIO(data), findings)
    return findings


@pytest.mark.parametrize("message", MESSAGES.values(), ids=MESSAGES)
def test_a_message_is_known_by_its_own_line_and_by_no_line_that_looks_like_it(
    message: KnownMessage,
) -> None:
    # given its line, bare and as launchers and loggers print it
    for line in (
        message.line,
        f"[rank1]: {message.line}",
        f"\x1b[31m{message.line}\x1b[0m\r\n",
        f"\x00\xff 12%\r{message.line}",
    ):
        if message.name == "npu-processes-left" and not line.startswith("|"):
            continue  # a row of a table begins its line
        log = f"{message.before}\n{line}" if message.before else line
        # then it is found, and no other
        assert names_in(log) == [message.name], line
    # and what looks like it is nothing, or something that a general row explains
    others = names_in(message.near_miss)
    assert message.name not in others
    assert all(MESSAGES[name].fallback for name in others)
    assert all((message.title, message.cause, message.cure, message.source))


@pytest.mark.parametrize("question", FAQ)
def test_the_guides_own_words_are_known(question: str) -> None:
    assert len(names_in(question)) == 1


@pytest.mark.parametrize("log", sorted(HEALTHY.glob("*.log")), ids=lambda log: log.name)
def test_nothing_is_wrong_with_the_logs_of_real_runs_that_ended_well(log: Path) -> None:
    found = look_through(log.read_bytes()).found.values()
    assert all(one.severity is Severity.HARMLESS for one in found)


@pytest.mark.parametrize("case", WENT_WELL, ids=[str(one) for one in range(len(WENT_WELL))])
def test_what_only_looks_like_an_error_asks_for_nothing(case: dict[str, str]) -> None:
    found = look_through(case["log"].encode()).found.values()
    assert all(one.severity is Severity.HARMLESS for one in found)


@pytest.mark.parametrize(
    "case", FAILED, ids=[f"{number}-{case['first']}" for number, case in enumerate(FAILED)]
)
def test_the_first_answer_to_a_log_of_a_training_that_failed_is_its_cause(
    case: dict[str, str],
) -> None:
    assert in_order(look_through(case["log"].encode()))[0].found.message.name == case["first"]


def test_a_loss_scale_that_is_found_asks_for_nothing_and_one_that_keeps_falling_does() -> None:
    # given a log in which dynamic loss scaling halves as often as it may to find its scale, and once more
    line = b"Gradient overflow.  Skipping step, loss scaler 0 reducing loss scale to 32768.0\n"
    (found,) = look_through(line * 16).found.values()
    (falling,) = look_through(line * 17).found.values()
    # then the first is a note, and the second a warning
    assert (found.severity, falling.severity) == (Severity.HARMLESS, Severity.WARNING)


def test_a_line_is_told_with_file_and_number_cause_and_cure_and_repeats_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a log with a message twice and a harmless one before
    log = tmp_path / "train.log"
    nnpack = MESSAGES["nnpack"].line
    log.write_text(f"{nnpack}\nstep 1\n{OUT_OF_MEMORY}\nstep 2\n{OUT_OF_MEMORY}\n")
    # when it is looked through
    code = main(["diagnose", str(log)])
    # then the error comes first, with its first place, its count and its last place
    said = capsys.readouterr().out
    assert code == 1
    assert said.index(f"{log}:3  {OUT_OF_MEMORY}") < said.index(f"{log}:1  {nnpack}")
    assert f"the GPU's memory is full, 2 times, the last at {log}:5" in " ".join(said.split())
    assert "cure: Smaller batches" in said
    assert "source: PyTorch" in said


def test_json_has_every_finding_in_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "train.log"
    log.write_text("\n".join(f"{one.before}\n{one.line}\n" for one in MESSAGES.values()))
    assert main(["diagnose", "--json", str(log)]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["schema"] == 1
    assert {one["id"] for one in answer["findings"]} == set(MESSAGES)
    assert all(one["line"] > 0 and one["cure"] and one["source"] for one in answer["findings"])
    trunc = next(one for one in answer["findings"] if one["id"] == "npu-operator-missing")
    assert trunc["cause"].startswith("aten::trunc.out is not among")


@pytest.mark.parametrize(
    ("text", "code"), [("all is well\n", 0), (MESSAGES["nnpack"].line, 0), (OUT_OF_MEMORY, 1)]
)
def test_exit_codes_say_whether_something_is_to_be_done(
    tmp_path: Path, text: str, code: int
) -> None:
    log = tmp_path / "a.log"
    log.write_text(text)
    assert main(["diagnose", str(log)]) == code


def test_what_cannot_be_read_is_said_and_the_rest_is_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a binary file, one that is not there, one packed and cut off, and a healthy one
    binary, torn = tmp_path / "a.bin", tmp_path / "b.gz"
    binary.write_bytes(bytes(range(256)) * 100)
    torn.write_bytes(gzip.compress(b"well\n" * 10000)[:40])
    healthy = tmp_path / "c.log"
    healthy.write_text("well\n")
    # when all are looked through
    code = main(["diagnose", str(binary), str(torn), str(healthy), str(tmp_path / "none.log")])
    # then nothing was found, and not everything was looked at
    said = " ".join(capsys.readouterr().out.split())
    assert code == 2
    assert "None of the" in said
    assert f"not looked at: {binary} is no text" in said
    assert "ends in the middle of what was packed" in said
    assert "cannot be read (No such file or directory)" in said
    # and with a message in the healthy one there is something to do all the same
    healthy.write_text(OUT_OF_MEMORY)
    assert main(["diagnose", str(binary), str(healthy)]) == 1


def test_a_folder_is_all_files_in_it_and_packed_ones_are_unpacked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    packed = OUT_OF_MEMORY.encode()
    (tmp_path / "rank0").mkdir()
    (tmp_path / "rank0" / "a.log.gz").write_bytes(gzip.compress(packed))
    (tmp_path / "b.log.bz2").write_bytes(bz2.compress(packed))
    (tmp_path / "c.log.xz").write_bytes(lzma.compress(packed))
    (tmp_path / "d.log").write_bytes(
        "\ufeffok\n".encode("utf-16-le") + OUT_OF_MEMORY.encode("utf-16-le")
    )
    assert main(["diagnose", "--json", str(tmp_path)]) == 1
    assert [one["count"] for one in json.loads(capsys.readouterr().out)["findings"]] == [4]


def test_an_ascend_host_log_tells_which_operators_were_compiled_in_how_many_forms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given lines of a host log: one type in two forms, one in one, twice
    def line(operator: str, shape: str) -> str:
        head = "[INFO] ASCENDCL(12,python3.7):2021-02-02-22:23:56.475.679 [op.cpp:99]12 aclopCompile::aclOp"
        return f"{head} = [OpType: {operator}, InputDesc: [dtype=1, shape={shape}]]\n"

    log = tmp_path / "plog.log"
    log.write_text(
        line("MatMul", "2,3") + line("TransData", "1") + line("MatMul", "4,3") + line("TransData", "1")
        + "[INFO] GE OpType: Add, of another part\n"
    )  # fmt: skip
    # when it is looked through
    assert main(["diagnose", "--json", str(log)]) == 0
    # then both are there, the one of more forms first
    operators = json.loads(capsys.readouterr().out)["operators"]
    assert [(one["type"], one["logged"], one["forms"]) for one in operators] == [
        ("MatMul", 2, 2),
        ("TransData", 2, 1),
    ]
    assert operators[0]["examples"] == [
        "InputDesc: [dtype=1, shape=2,3]]",
        "InputDesc: [dtype=1, shape=4,3]]",
    ]
    main(["diagnose", str(log)])
    said = " ".join(capsys.readouterr().out.split())
    assert "Operators that the host log has (2 types)" in said
    assert "2 TransData operators only change a format" in said


class Endless:
    """A log of so many bytes that is made while it is read."""

    def __init__(self, piece: bytes, count: int) -> None:
        self._pieces: Iterator[bytes] = iter([piece] * count)

    def read(self, size: int, /) -> bytes:
        return next(self._pieces, b"")


def test_a_log_without_ends_of_line_takes_no_more_memory_than_a_few_blocks() -> None:
    # given 256 MB of one line, with a message in it that stands across two blocks
    piece = b"x" * (blocks.BLOCK_BYTES - 20) + OUT_OF_MEMORY.encode()
    piece = piece[40:] + piece[:40]
    findings = Findings()
    tracemalloc.start()
    # when it is looked through
    SCANNER.scan("log", Endless(piece, 64), findings)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # then each is found once, on line 1, in a few blocks of memory
    (found,) = findings.found.values()
    assert (found.count, found.last.line) == (64, 1)
    assert peak < 10 * blocks.BLOCK_BYTES


@given(
    st.lists(
        st.sampled_from(
            [b"well", b"", b"x" * 50, b"12%\r13%\rdone", OUT_OF_MEMORY.encode(), b"\xff\x80"]
        )
    ),
    st.integers(1, 90),
)
def test_however_a_log_is_cut_into_pieces_messages_are_found_on_their_lines(
    lines: list[bytes], size: int
) -> None:
    # given a log that comes in pieces of any size
    data = b"\n".join(lines)

    class Pieces(io.BytesIO):
        def read(self, _: int | None = -1) -> bytes:
            return super().read(size)

    findings = Findings()
    # when it is looked through
    SCANNER.scan("log", Pieces(data), findings)
    # then count, first and last line are those of the whole
    numbers = [number for number, line in enumerate(lines, 1) if line == OUT_OF_MEMORY.encode()]
    found = [(one.count, one.first.line, one.last.line) for one in findings.found.values()]
    assert found == ([(len(numbers), numbers[0], numbers[-1])] if numbers else [])
