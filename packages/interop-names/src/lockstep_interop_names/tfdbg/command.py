"""`lockstep tfdbg`: every tensor of a step out of TensorFlow 1's debugger, into a folder that `compare` reads."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import click

from lockstep import options
from lockstep.errors import ExitCode, OutputExistsError, UsageError
from lockstep_interop_names.tfdbg.commands import Prints, prints_of, tensor_names
from lockstep_interop_names.tfdbg.prompt import Prompt, written

_MOST_BYTES = 64 << 20
_MOST_LINES = 5


@click.command(context_settings={"allow_interspersed_args": False})
@click.option(
    "--names",
    type=click.Path(path_type=Path),
    help="Read names of tensors from this file: the output of `lt > FILE`, or one name a line.",
)
@options.option("--output", words="A folder: a .npy for each tensor.")
@click.option(
    "--run",
    "runs",
    default="run",
    show_default=True,
    help="Type this first: `run -t 10` for the tenth step.",
)
@options.option(
    "--timeout",
    "timeout_s",
    default=600.0,
    old=["--timeout-s"],
    words="Of a command, the step too.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def tfdbg(
    names: Path | None, output: Path | None, runs: str, timeout_s: float, command: tuple[str, ...]
) -> int:
    """Write the tensors of a step under TensorFlow 1's debugger as .npy, by its own `pt` commands.

    Without COMMAND, Lockstep prints the `pt` commands for the tensors in --names, for you to paste
    into the prompt. With COMMAND, it starts the program and types `run`, `lt` (without --names),
    each `pt` and `exit` into its prompt. The session must be wrapped by LocalCLIDebugWrapperSession
    with ui_type="readline". `lockstep compare` takes the folder.

    Exit code 1 if a tensor was not written. Needs pexpect.

    \b
    lockstep tfdbg --names gpu_dump > dump.txt
    lockstep tfdbg -o gpu.npy -- python3 -u resnet_main.py
    """
    stamp = time.time_ns() // 1000
    if not command:
        prints = prints_of(_named(names), stamp, output)
        for one in prints.commands:
            click.echo(one.command)
        return _told(prints.left_out, err=True)
    if output is None:
        raise UsageError("-o: say which folder the .npy files go to")
    tensors = None if names is None else _named(names)
    folder = _made(output)
    with Prompt(command, timeout_s=timeout_s) as prompt:
        prompt.wait()
        prompt.ask(runs)
        prints = prints_of(_listed(prompt) if tensors is None else tensors, stamp, folder)
        failed = _printed(prompt, prints)
        prompt.leave()
    click.echo(f"{len(prints.commands) - len(failed)} tensors in {output}")
    return _told((*prints.left_out, *failed))


def _named(file: Path | None) -> list[str]:
    if file is None:
        raise UsageError(
            "--names: give the file of `lt > FILE`, or a COMMAND that starts the training under tfdbg"
        )
    try:
        if file.stat().st_size > _MOST_BYTES or not file.is_file():
            raise UsageError(
                f"{file}: is not a file of at most {_MOST_BYTES} bytes; give the file of `lt > FILE`"
            )
        names = tensor_names(file.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be read ({error.strerror}); give the file of `lt > FILE`"
        ) from error
    if not names:
        raise UsageError(
            f"{file}: names no tensor; give the file of `lt > FILE`, or names as conv1/Conv2D:0"
        )
    return names


def _made(output: Path) -> Path:
    if any(one.isspace() for one in str(output.absolute())):
        raise UsageError(
            f"{output}: tfdbg takes no blanks in the path of a file; give another folder with -o"
        )
    try:
        output.mkdir(parents=True)
    except OSError as error:
        raise OutputExistsError(
            f"{output}: cannot be made ({error.strerror}); give another folder with -o"
        ) from error
    return output.resolve()


def _listed(prompt: Prompt) -> list[str]:
    """The tensors that the step made, by a file: what is printed may be broken at the edge of a screen."""
    with tempfile.TemporaryDirectory(prefix="lockstep-tfdbg-") as folder:
        file = Path(folder) / "tensors"
        answer = prompt.ask(f"lt > {file}")
        if not written(file):
            raise UsageError(
                f"lt: tfdbg wrote no list ({answer[-200:]}); give the names with --names"
            )
        return _named(file)


def _printed(prompt: Prompt, prints: Prints) -> list[tuple[str, str]]:
    """Tensors that were not written, each with what tfdbg said."""
    failed = []
    for one in prints.commands:
        answer = prompt.ask(one.command)
        if not written(one.file):
            words = [
                line.strip() for line in answer.splitlines() if "ERROR" in line
            ] or answer.split("\n")[-1:]
            failed.append((one.tensor, " ".join(words[0].split())[:200]))
    return failed


def _told(failed: tuple[tuple[str, str], ...], *, err: bool = False) -> int:
    for tensor, reason in failed[:_MOST_LINES]:
        click.echo(f"not written: {tensor}: {reason}", err=err)
    if len(failed) > _MOST_LINES:
        click.echo(f"and {len(failed) - _MOST_LINES} more", err=err)
    return ExitCode.DIFFERS if failed else ExitCode.AGREES


__all__ = ["tfdbg"]
