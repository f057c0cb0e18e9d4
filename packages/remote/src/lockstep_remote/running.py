"""Runs a verb on another machine: sends what it needs, starts it under a supervisor, brings back what it writes."""

from __future__ import annotations

import asyncio
import posixpath
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.errors import ExitCode, LockstepError, OutputExistsError, UsageError
from lockstep.files import Claim
from lockstep.plugin import Elsewhere, PathWord, Use
from lockstep.recordings import Options, RunDirectory
from lockstep.terminal import say
from lockstep_remote import bundle
from lockstep_remote.bringing import Bringing
from lockstep_remote.bundle import Bundle
from lockstep_remote.jobs import Job, Output, new_job
from lockstep_remote.link import Answer, CutOffError, Link, RemoteError
from lockstep_remote.machines import Machine

_PYTHON = re.compile(r"(?:.*/)?python(?:3(?:\.\d+)?)?")
_DETACHING = (signal.SIGTERM, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Lying:
    """Recordings that a verb reads beside what is sent with it, by their names in the folder where it runs.

    names: By the path as it was typed.
    sent, links: Those that lie here, and those that lie on the machine: where.
    """

    names: Mapping[str, str]
    sent: Mapping[str, Path]
    links: Mapping[str, str]

    def bundle(self) -> Bundle:
        """Return what is sent."""
        files = [
            replace(file, name=f"{name}/{file.name}")
            for name, path in self.sent.items()
            for file in bundle.everything_below(path).files
        ]
        return Bundle(Path.cwd(), tuple(files))


def run_elsewhere(asked: Elsewhere, machine: Machine) -> int:
    """Run a verb on a machine to its end; returns its exit code.

    Raises RemoteError if the machine cannot do it. Raises UsageError if what was asked for cannot be sent. Raises
    OutputExistsError if what it writes is here already.
    """
    environment = machine.environment()
    return asyncio.run(run_on(asked, machine, environment))


def attach(job: Job, machine: Machine) -> int:
    """Go on with a job: print what it prints, bring what it writes; returns its exit code.

    Raises RemoteError if the machine cannot do it. Raises OutputExistsError if somebody else brings it already.
    """

    async def go_on() -> int:
        link = Link(machine)
        with ExitStack() as held:
            held.callback(link.close)
            for output in job.outputs:
                if Path(output.here).is_dir():
                    held.enter_context(Claim(Path(output.here)))
            return await _to_its_end(link, job, Bringing(job))

    return asyncio.run(go_on())


def stop(job: Job, machine: Machine, number: signal.Signals) -> bool:
    """Send a signal to a job; returns whether it was running still."""

    async def send() -> bool:
        link = Link(machine)
        try:
            return bool((await link.ask("signal", job=job.folder, signal=int(number)))["sent"])
        finally:
            link.close()

    return asyncio.run(send())


async def look_at(link: Link) -> Answer:
    """Return what a machine has, as the agent tells it; `lacks` says what Lockstep needs and is not there."""
    needed = bundle.needed_packages()
    there = await link.ask("hello", workdir=link.machine.workdir, packages=list(needed))
    there["version"] = ".".join(map(str, there["python"]))
    there["lacks"] = [
        f"{name} {least}" if there["packages"][name] else name
        for name, least in needed.items()
        if _numbers(there["packages"][name]) < _numbers(least)
    ]
    return there


def check_packages(machine: Machine, there: Answer) -> None:
    """Raise where the Python of a machine has not what Lockstep needs.

    Raises RemoteError if something is missing, with the command that installs it.
    """
    if there["lacks"]:
        names = [name.replace(" ", ">=") for name in there["lacks"]]
        words = shlex.join([there["executable"], "-m", "pip", "install", *names])
        raise RemoteError(
            f"{machine.name}: {there['executable']} has no {', '.join(there['lacks'])}; install it there: {words}"
        )


def _numbers(version: str) -> list[int]:
    """The release of a version, as numbers; -1 of one that is not there, before that of any that is."""
    return [int(one) for one in re.findall(r"\d+", version.partition("+")[0])[:3]] or [
        -1 if not version else 0
    ]


# --- one run ------------------------------------------------------------------------------------


async def run_on(
    asked: Elsewhere, machine: Machine, environment: dict[str, str], lying: Lying | None = None
) -> int:
    """Run a verb on a machine to its end; returns its exit code."""
    link = Link(machine)
    try:
        there = await look_at(link)
        check_packages(machine, there)
        shown = [str(word.path if isinstance(word, PathWord) else word) for word in asked.words]
        job = new_job(machine.name, [*shown, "--", *asked.command], there["workdir"])
        runs: list[RunDirectory] = []
        try:
            _take_places(asked, job, runs)
            start = await _send(link, job, asked, there, lying)
        except BaseException:
            for run in runs:
                run.discard()
            raise
        for run in runs:
            run.started()
        job.keep()
        try:
            await _start(link, job, {**start, "environment": environment})
            places = {} if lying is None else _places_here(job)
            return await _to_its_end(link, job, Bringing(job, places))
        finally:
            for run in runs:
                run.release()
    finally:
        link.close()


def _take_places(asked: Elsewhere, job: Job, runs: list[RunDirectory]) -> None:
    """Take the places here where the job's outputs go, before anything is sent; recordings are added to `runs`."""
    for number, word in enumerate(asked.words):
        if not isinstance(word, PathWord) or word.use in (Use.READS, Use.LIES):
            continue
        here = word.path.absolute()
        output = Output(str(here), f"{job.folder}/out/{number}/{here.name}", word.use)
        job.outputs.append(output)
        if word.use is Use.RECORDS:
            run = RunDirectory.create(here, list(asked.command), Options(), force=asked.force)
            runs.append(run)
            Bringing(job).begin(output)
        elif here.exists() and not asked.force:
            raise OutputExistsError(f"{here}: exists already; remove it, or give another path")


async def _send(
    link: Link, job: Job, asked: Elsewhere, there: Answer, lying: Lying | None
) -> Answer:
    """Send what the verb needs; returns what the agent is to be told to start it."""
    tree = bundle.tree_around(Path.cwd()) if lying is None else lying.bundle()
    lockstep = bundle.lockstep_itself()
    place = there["workdir"]
    package = f"{place}/lockstep/{lockstep.digest}"
    laid = [
        (tree, f"{job.folder}/tree"),
        (lockstep, package),
        (_programs(there), f"{job.folder}/bin"),
    ]
    words: list[str] = []
    outputs = {output.here: output.there for output in job.outputs}
    for number, word in enumerate(asked.words):
        if isinstance(word, str):
            words.append(word)
        elif word.use is Use.LIES and lying is not None:
            words.append(lying.names[str(word.path)])
        elif word.use is Use.READS:
            folder = f"{job.folder}/in/{number}"
            laid.append(_read_input(word.path, folder))
            words.append(f"{folder}/{word.path.absolute().name}")
        else:
            words.append(outputs[str(word.path.absolute())])
    await _bring_there(link, place, laid)
    here = Path.cwd().relative_to(tree.root)
    command = [
        _command_word(one, number, tree.root, job) for number, one in enumerate(asked.command)
    ]
    python = there["executable"]
    return {
        "job": job.folder,
        "outputs": [one.there for one in job.outputs],
        "words": [python, "-m", "lockstep", *words, *(["--", *command] if command else [])],
        "links": {} if lying is None else dict(lying.links),
        "folder": posixpath.join(job.folder, "tree", here.as_posix()),
        "in_front": {
            "PYTHONPATH": package,
            "PATH": f"{job.folder}/bin:{posixpath.dirname(python)}",
        },
    }


def _places_here(job: Job) -> dict[str, str]:
    """Return what the folders of a job there are called here: its own is gone when its answer is read."""
    return {one.there: one.here for one in job.outputs} | {f"{job.folder}/tree": str(Path.cwd())}


async def _start(link: Link, job: Job, asked: Answer) -> None:
    """Start the command; where the connection is lost over it, it may run, and is found again."""
    try:
        await link.ask("start", **asked)
    except CutOffError as error:
        raise CutOffError(
            f"{error} while the command was started, so it may run there: lockstep remote attach {job.key}"
        ) from error


def _read_input(path: Path, folder: str) -> tuple[Bundle, str]:
    """A file or folder that the verb reads, and where it is laid."""
    if path.is_dir():
        return bundle.everything_below(path), f"{folder}/{path.absolute().name}"
    if path.is_file():
        return bundle.everything_below(path), folder
    raise UsageError(f"{path}: there is no such file")


def _programs(there: Answer) -> Bundle:
    """`python` and `python3` of the machine's Python, whatever else its path has."""
    text = f'#!/bin/sh\nexec {shlex.quote(there["executable"])} "$@"\n'
    return Bundle(
        Path(), tuple(bundle.made_file(name, text, 0o700) for name in ("python", "python3"))
    )


def _command_word(word: str, number: int, root: Path, job: Job) -> str:
    """A word of the command as it stands there: a Python is that machine's, a path in the tree is one there."""
    if number == 0 and "/" in word and _PYTHON.fullmatch(word):
        return "python"
    path = Path(word)
    if path.is_absolute() and path.is_relative_to(root):
        return posixpath.join(job.folder, "tree", path.relative_to(root).as_posix())
    return word


async def _bring_there(link: Link, place: str, laid: Sequence[tuple[Bundle, str]]) -> None:
    """Send the files that are not there yet, and lay all where they belong."""
    bundles = [one for one, _ in laid]
    digests = sorted({file.digest for one in bundles for file in one.files})

    async def send() -> list[str]:
        wanted = (await link.ask("missing", place=place, digests=digests))["missing"]
        if wanted:
            asked = {"place": place}
            await link.send("take", asked, bundle.packed(bundles, set(wanted)))
            wanted = (await link.ask("missing", place=place, digests=wanted))["missing"]
        return list(wanted)

    lost = await link.try_again(send)
    if lost:
        names = [file.name for one in bundles for file in one.files if file.digest in lost]
        raise UsageError(f"{names[0]} changed while it was sent; run the same again")
    await link.ask("lay", place=place, folders={folder: one.rows() for one, folder in laid})


# --- until it ends ------------------------------------------------------------------------------


async def _to_its_end(link: Link, job: Job, bringing: Bringing) -> int:
    """Follow a job until it has ended or the user lets go of it."""
    following = asyncio.create_task(_follow(link, job, bringing))
    _hear_signals(link.machine, job, following)
    try:
        last = await following
    except asyncio.CancelledError:
        say(f"{job.machine}: the command goes on there; lockstep remote attach {job.key}")
        return ExitCode.INTERRUPTED
    except CutOffError as error:
        raise CutOffError(
            f"{error}. The command goes on there, and not all that it wrote is here: lockstep remote attach {job.key}"
        ) from error
    finally:
        job.keep()
    return await _conclude(link, job, bringing, last)


async def _follow(link: Link, job: Job, bringing: Bringing) -> Answer:
    async def once() -> Answer:
        asked = {
            "job": job.folder, "logs": job.logs, "have": bringing.have(),
            "outputs": [one.there for one in job.outputs],
        }  # fmt: skip
        async for answer, data in link.stream("follow", asked):
            if answer.get("kind") in ("end", "gone"):
                return answer
            bringing.take(answer, data)
        raise CutOffError(f"{job.machine}: the agent there ended")

    return await link.try_again(once)


def _hear_signals(machine: Machine, job: Job, following: asyncio.Task[Any]) -> None:
    """Pass the first Ctrl-C on; let go of the job at a second, and where this process is to end."""
    loop = asyncio.get_running_loop()
    passing: list[asyncio.Task[None]] = []

    async def pass_on() -> None:
        link = Link(machine)
        try:
            await link.ask("signal", job=job.folder, signal=int(signal.SIGINT))
        except LockstepError as error:
            say(str(error))
        finally:
            link.close()

    def at_ctrl_c() -> None:
        if passing:
            following.cancel()
        else:
            say(
                f"{machine.name}: passing Ctrl-C on; press it again to leave the command running there"
            )
            passing.append(loop.create_task(pass_on()))

    loop.add_signal_handler(signal.SIGINT, at_ctrl_c)
    for number in _DETACHING:
        loop.add_signal_handler(number, following.cancel)


async def _conclude(link: Link, job: Job, bringing: Bringing, last: Answer) -> int:
    if last["kind"] == "gone":
        why = f"{job.machine} ended it before it was done, as where a machine starts anew"
        bringing.is_lost(why)
        job.forget()
        raise RemoteError(
            f"{job.machine}: the command is gone and left no exit code; what is here is a part of it"
        )
    missing = bringing.finish(last["outputs"])
    if missing:
        raise RemoteError(
            f"{job.machine}: {missing[0]} did not come whole; lockstep remote attach {job.key} tries again"
        )
    _drop_empty(job)
    files, size_bytes = last["left"]
    if files:
        say(
            f"{job.machine}: files that the command left there: {files} ({size_bytes / 1e6:.1f} MB), in"
            f" {job.folder}/tree"
        )
    else:
        await link.ask("remove", job=job.folder)
    for output in job.outputs:
        if Path(output.here).exists():
            say(f"{job.machine}: brought back {output.here}")
    job.forget()
    return int(last["code"])


def _drop_empty(job: Job) -> None:
    """Remove the folder of a recording that was not made."""
    for output in job.outputs:
        here = Path(output.here)
        if output.use is Use.RECORDS and here.is_dir() and not any(here.iterdir()):
            here.rmdir()
