"""The command line: `lockstep VERB ...`. Verbs load when used, so that `--help` is quick."""

from __future__ import annotations

import difflib
import io
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress

import click

from lockstep.cli.starting import verb_begins
from lockstep.core.errors import ExitCode, LockstepError, UsageError
from lockstep.core.garbage import rare_collections
from lockstep.core.members import installing, lacking, member_of, shadow
from lockstep.core.text import message, printable
from lockstep.core.version import VERSION
from lockstep.kernels.jit import say_before_compiling
from lockstep.plugins import absent_members, broken_plugins, doubled_verbs, verb_named, verbs


class _ClosedPipeError(Exception):
    """Whoever read the output reads no more. click would end with 1 at an error of a pipe: that two runs differ."""


class _Verbs(click.Group):
    """All verbs, found as plug-ins."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the verb."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            if ctx.parent is not None:
                raise
            raise _ClosedPipeError from error

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(verbs())

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        verb = verb_named(cmd_name)
        return None if verb is None else verb.load()

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the verb that was typed; if there is none of that name, name the likely ones."""
        try:
            found = super().resolve_command(ctx, args)
        except click.UsageError as error:
            if member := member_of(args[0]):
                raise lacking(args[0], member.name) from error
            near = _likely_verbs(args[0])
            hint = f"did you mean {' or '.join(near)}?" if near else "see lockstep --help"
            raise click.UsageError(f"{error.message.rstrip('.')}; {hint}", ctx) from error
        verb_begins()
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for verb in verbs().values():
            groups.setdefault(verb.heading, []).append((verb.name, verb.summary))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)
        if absent := absent_members():
            formatter.write_paragraph()
            words = ", ".join(verb for member in absent for verb in member.verbs)
            formatter.write_text(f"Not installed: {words}. To install them:")
            formatter.write(f"  {installing(absent)}\n")  # whole, to be pasted


def _likely_verbs(typed: str) -> list[str]:
    """Return the verbs that somebody may mean: those that list the word as a guess, else those spelled like it."""
    known = verbs()
    meant = [name for name, verb in known.items() if typed.lower() in verb.guesses]
    absent = [verb for member in absent_members() for verb in member.verbs]
    return meant or difflib.get_close_matches(typed.lower(), [*known, *absent])


@click.group(
    cls=_Verbs,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(VERSION, prog_name="lockstep")
def cli() -> None:
    """Find the first operator where a training run leaves its reference.

    \b
    lockstep record -o ref  -- python train.py --device cuda
    lockstep record -o cand -- python train.py --device npu
    lockstep compare ref cand

    Exit codes are those of Unix diff: 0 agrees, 1 differs, 2 failed. `record` returns the code of its command.

    \b
    lockstep VERB --help        explains a verb
    eval "$(_LOCKSTEP_COMPLETE=bash_source lockstep)"        completes in bash
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    _escape_unprintable()
    if in_the_way := shadow():
        print(f"lockstep: {in_the_way}", file=sys.stderr)
    typed = next(iter(sys.argv[1:] if arguments is None else arguments), "")
    for sentence in (*broken_plugins(typed), *doubled_verbs(typed)):
        print(f"lockstep: {message(sentence)}", file=sys.stderr)
    say_before_compiling(_say)
    try:
        with rare_collections():  # loading modules makes many objects too
            code = cli.main(args=arguments, prog_name="lockstep", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()  # what it cannot take is said here, not while Python ends
    except (BrokenPipeError, _ClosedPipeError):
        _drop_output()
        sys.stderr.close()
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return say_failure(click.Abort())
    except Exception as error:
        return say_failure(error)
    return code if isinstance(code, int) else ExitCode.AGREES


def say_failure(error: Exception) -> ExitCode:
    """Say on standard error why a verb has failed; the one place where errors become text.

    Returns
    -------
    ExitCode
        What the verb ends with.
    """
    if isinstance(error, LockstepError):
        _say(_told(error))
    elif isinstance(error, click.ClickException):
        _leave_out_old_spellings(error)
        error.show()
    elif isinstance(error, click.Abort):
        _say("interrupted")
        return ExitCode.INTERRUPTED
    elif isinstance(error, (OSError, UnicodeEncodeError)):
        _drop_output()
        _say(message(_in_words(error)))
    else:  # a fault of our own: exit code 1 would say that two runs differ
        traceback.print_exception(error)
        _say(f"failed by a fault of its own ({type(error).__name__})")
    return ExitCode.FAILED


def _leave_out_old_spellings(error: click.ClickException) -> None:
    """Have the likely options named by their names of today alone."""
    if isinstance(error, click.NoSuchOption) and error.ctx is not None and error.possibilities:
        known = {
            name for one in error.ctx.command.params for name in (*one.opts, *one.secondary_opts)
        }
        error.possibilities[:] = [name for name in error.possibilities if name in known]


def _say(sentence: str) -> None:
    print(f"lockstep: {sentence}", file=sys.stderr)


def _told(error: LockstepError) -> str:
    """An error on one line; a command in it is whole, for it is there to be pasted."""
    if isinstance(error, UsageError) and error.command:
        return f"{message(error.what)}: {printable(error.command)}"
    return message(str(error))


def _escape_unprintable() -> None:
    """Print characters that the terminal's encoding has not as escapes; a name in one is no reason to end."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    """Let go of output that cannot be written: Python would try once more when it ends, and complain."""
    with suppress(OSError, ValueError, AttributeError):
        sys.stdout.flush()
        return
    with suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _in_words(error: OSError | UnicodeEncodeError) -> str:
    if isinstance(error, UnicodeEncodeError):
        return f"output cannot be written ({error}); set PYTHONIOENCODING=utf-8"
    what = error.strerror or str(error)
    if error.filename is not None:
        return f"{error.filename}: {what}"
    return f"output cannot be written ({what}); make room, or send it elsewhere"
