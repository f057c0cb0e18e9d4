"""`lockstep diagnose`: the known messages of a log, each with cause and cure."""

from __future__ import annotations

import stat
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from lockstep import options
from lockstep.errors import UsageError, code_of
from lockstep.terminal import enveloped, json_text
from lockstep_check.logs.blocks import NotALogError, Source, opened
from lockstep_check.logs.known_messages import Severity, known_messages
from lockstep_check.logs.scan import Findings, Scanner
from lockstep_check.logs.screen import as_values, render

STANDARD_INPUT = Path("-")


@click.command()
@click.argument("logs", nargs=-1, type=click.Path(path_type=Path))
@options.as_json
@options.limit
def diagnose(logs: tuple[Path, ...], as_json: bool, limit: int) -> int:
    """Find known messages in logs, and say what each means and what to do.

    LOGS are files, folders, or `-` for standard input, the default. Files packed by gzip, bzip2 or
    xz are unpacked. Lockstep knows messages of torch, CUDA, ROCm, NCCL, Ascend, HCCL, MPS, data
    loaders and launchers. From an Ascend host log (ASCEND_GLOBAL_LOG_LEVEL=1) it also lists the
    compiled operators.

    Exit code 1 if a message asks you to do something, 0 if none does, 2 if something could not be
    read and nothing was found.

    \b
    lockstep diagnose train.log
    torchrun --nproc_per_node 2 train.py 2>&1 | tee train.log | lockstep diagnose
    """
    findings = Findings()
    scanner = Scanner(known_messages())
    for log in _logs(logs, findings):
        _scan(log, scanner, findings)
    if as_json:
        click.echo(json_text(enveloped(as_values(findings))))
    else:
        click.echo(render(findings, limit=limit).plain, nl=False)
    asked = any(one.severity is not Severity.HARMLESS for one in findings.found.values())
    return code_of(differs=asked, looked=not findings.not_read)


def _logs(given: Sequence[Path], findings: Findings) -> Iterator[Path]:
    """Files to read, those of folders in order of their names."""
    if not given:
        if sys.stdin.isatty():
            raise UsageError("diagnose: give a log, as in `lockstep diagnose train.log`")
        yield STANDARD_INPUT
    if given and not any(path == STANDARD_INPUT or path.exists() for path in given):
        raise UsageError(f"{given[0]}: no such file or folder; give a log")
    for path in given:
        if path != STANDARD_INPUT and path.is_dir():
            files = sorted(file for file in path.rglob("*") if _is_regular(file))
            if not files:
                findings.not_read[str(path)] = "has no files"
            yield from files
        else:
            yield path


def _is_regular(file: Path) -> bool:
    try:
        return stat.S_ISREG(file.lstat().st_mode)
    except OSError:
        return False


def _scan(log: Path, scanner: Scanner, findings: Findings) -> None:
    name = "standard input" if log == STANDARD_INPUT else str(log)
    try:
        with _opened(log) as source:
            scanner.scan(name, source, findings)
    except NotALogError:
        findings.not_read[name] = "is no text"
    except EOFError:
        findings.not_read[name] = (
            "ends in the middle of what was packed; what was there was looked at"
        )
    except OSError as error:
        findings.not_read[name] = f"cannot be read ({error.strerror or error})"


def _opened(log: Path) -> AbstractContextManager[Source]:
    return nullcontext(sys.stdin.buffer) if log == STANDARD_INPUT else opened(log)
