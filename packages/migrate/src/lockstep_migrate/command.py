"""Rewrite CUDA scripts for another device, every site rewritten or listed."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import click

from lockstep import options as shared
from lockstep.errors import ExitCode, UsageError
from lockstep.files import check_output_file
from lockstep.options import PATH
from lockstep.terminal import enveloped, json_text, progress_bar
from lockstep_migrate.delivery.diff import unified_diff
from lockstep_migrate.delivery.in_place import write_in_place
from lockstep_migrate.delivery.json import render_migration_json
from lockstep_migrate.delivery.next_words import next_command
from lockstep_migrate.delivery.output import is_file_name, write_tree
from lockstep_migrate.delivery.screen import Delivery, print_migration
from lockstep_migrate.delivery.tables import REPORTS, write_reports
from lockstep_migrate.files.collection import REPORT_FOLDER, Collection, collect, from_here
from lockstep_migrate.options import Distribution, Framework, MigrationOptions
from lockstep_migrate.plan import Plan
from lockstep_migrate.project import plan_collection, target_named
from lockstep_migrate.targets import migration_targets
from lockstep_migrate.torch.user_rules import read_user_rules

_FOR_PYTORCH = ("distributed", "similar", "advice", "advice_apply", "rules")


class _Command(click.Command):
    """Does its other jobs by their names, and takes what stands behind `--` as the command of `verify`."""

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        job = args[0] if args else ""
        if job in _OTHER_JOBS:
            name = f"{info_name} {job}"
            return _OTHER_JOBS[job].make_context(name, args[1:], parent, **extra)
        if job == "verify":
            args = ["--verify", *args[1:]]
        return super().make_context(info_name, args, parent, **extra)

    @property
    def other_jobs(self) -> dict[str, click.Command]:
        """Its other jobs that have options of their own, by name."""
        return _OTHER_JOBS

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        jobs = [(name, job.get_short_help_str()) for name, job in _OTHER_JOBS.items()]
        verify = (
            "Record CMD with the original and the migrated files; compare. Takes these options too."
        )
        with formatter.section("Other jobs"):
            formatter.write_dl([("verify", verify), *jobs])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["lockstep.arguments"] = list(args)
        if "--verify" in args and "--" in args:
            at = args.index("--")
            ctx.meta["lockstep.command"] = tuple(args[at + 1 :])
            ctx.meta["lockstep.arguments"] = args[:at]
            args = args[:at]
        return super().parse_args(ctx, args)


class _Writes(enum.Enum):
    """Where the migrated files go."""

    NOWHERE = "nowhere"
    OUTPUT = "an output folder"
    IN_PLACE = "their own places"


@dataclass(frozen=True, slots=True)
class _Request:
    """What was asked for, checked."""

    paths: tuple[Path, ...]
    options: MigrationOptions
    writes: _Writes
    output: Path
    report: Path | None
    force: bool
    arguments: tuple[str, ...]


_TO = click.option(
    "--to",
    type=click.Choice(list(migration_targets())),
    default="neutral",
    show_default=True,
    is_eager=True,
    help="Write scripts for this device; neutral ones use any device.",
)


@click.command("rules")
@_TO
@shared.as_json
def _rules_job(to: str, as_json: bool) -> None:
    """Print what each rule does."""
    from lockstep_migrate.catalogue import Catalogue  # it loads every rule there is

    entries = list(Catalogue(target_named(to)))
    if as_json:
        click.echo(json_text(enveloped({"rules": list(map(asdict, entries))})))
    for entry in () if as_json else entries:
        click.echo(f"{entry.rule}\n    {entry.words}")


_OTHER_JOBS = {"rules": _rules_job}


@click.command(cls=_Command)
@click.argument("paths", nargs=-1, metavar="PATH... [-- CMD]", type=PATH)
@shared.option("--output", words="The migrated project.")
@click.option("--in-place", is_flag=True, help="Change the files where they are.")
@_TO
@click.option(
    "--from",
    "framework",
    type=click.Choice([framework.value for framework in Framework]),
    default=Framework.PYTORCH.value,
    show_default=True,
    help="Your scripts use this framework.",
)
@click.option("--diff", is_flag=True, help="Print a unified diff; write nothing.")
@click.option("--dry-run", is_flag=True, help="Do everything except writing.")
@click.option("--check", is_flag=True, help="Exit with 1 if a file would change; write nothing.")
@shared.force
@shared.option("--rules", words="A JSON file; they win over the built-in ones.")
@click.option(
    "--similar",
    is_flag=True,
    help="Also write forms that are similar but not equal; each is listed as a risk.",
)
@click.option(
    "--distributed",
    is_flag=True,
    help="Make the training run on several devices; needs --main, see also --model.",
)
@click.option("--main", type=PATH, help="You start this script.")
@click.option("--model", help="The variable that holds the model there.  [default: model]")
@click.option("--advice", is_flag=True, help="List faster equal forms, too.")
@click.option(
    "--advice-apply", is_flag=True, help="Write faster equal forms where that is possible."
)
@shared.as_json
@click.option("--report", type=PATH, help="Write the reports into this folder.")
@shared.option("--all", "show_all")
@click.option("--verify", is_flag=True, hidden=True)
@click.pass_context
def migrate(context: click.Context, /, **given: Any) -> int:
    """Rewrite the CUDA scripts below PATH for another device; what needs a person is listed with a reason.

    Without -o or --in-place it is a preview: nothing is written. Exit code 0 when done, 1 if --check finds work or
    `verify` a difference, 2 if a file could not be read (all others are done).

    \b
    lockstep migrate train.py
    lockstep migrate project -o project-neutral
    lockstep migrate project --in-place --to npu
    lockstep migrate verify project -o out -- python project/train.py
    """
    request = _asked(given, tuple(context.meta["lockstep.arguments"]))
    command = _command(context, request, verify=given["verify"])
    _check_reports(request)
    collection, plan = _planned(request)
    _show(plan, _deliver(plan, collection, request), given)
    verified: int = ExitCode.AGREES
    if command:
        # Here, as it loads what reads recordings, which nothing else in this verb needs.
        from lockstep_migrate.verify.verification import verify

        verified = verify(
            plan,
            collection,
            command,
            report=request.report,
            outputs=_outputs(request),
            to_error=given["as_json"],
        )
    if plan.failures:
        return ExitCode.FAILED
    return ExitCode.DIFFERS if given["check"] and _has_work(plan) else verified


def _asked(given: Mapping[str, Any], arguments: tuple[str, ...]) -> _Request:
    """The request that the options make. Raises UsageError if two of them exclude each other."""
    if given["diff"] and given["as_json"]:
        raise UsageError("--diff and --json both print the result; give one of them")
    if given["framework"] == Framework.TENSORFLOW.value:
        _check_tensorflow(given)
    if given["dry_run"] and given["report"]:
        raise UsageError("--dry-run writes nothing; leave out --report, or --dry-run")
    paths, output = given["paths"], given["output"]
    writing = not (given["diff"] or given["dry_run"] or given["check"])
    return _Request(
        paths=paths,
        options=_options(given),
        writes=_where(output, given["in_place"], writing=writing),
        output=output or Path(),
        report=given["report"],
        force=given["force"],
        arguments=arguments,
    )


def _options(given: Mapping[str, Any]) -> MigrationOptions:
    rules = given["rules"]
    return MigrationOptions(
        target=given["to"],
        framework=Framework(given["framework"]),
        user_rules=read_user_rules(rules) if rules is not None else (),
        similar=given["similar"],
        distribution=_distribution(given["distributed"], given["main"], given["model"]),
        advice=given["advice"],
        advice_apply=given["advice_apply"],
    )


def _show(plan: Plan, delivery: Delivery, given: Mapping[str, Any]) -> None:
    if given["diff"]:
        for line in unified_diff(plan):
            click.echo(line.encode("utf-8", "surrogateescape"), nl=False)
    elif given["as_json"]:
        click.echo(render_migration_json(plan))
        for path in filter(None, (delivery.place, *delivery.written)):
            click.echo(f"wrote {path}", err=True)
    else:
        print_migration(plan, delivery, show_all=given["show_all"])


def _check_tensorflow(given: Mapping[str, object]) -> None:
    """Refuse options that have no effect on TensorFlow scripts."""
    if given["to"] != "npu":
        raise UsageError("--from tensorflow is there for one target: add --to npu")
    names = [f"--{name.replace('_', '-')}" for name in _FOR_PYTORCH if given[name]]
    if names:
        raise UsageError(
            f"--from tensorflow with {' and '.join(names)}: is for PyTorch scripts only; leave it out"
        )


def _distribution(wanted: bool, main: Path | None, model: str | None) -> Distribution | None:
    if not wanted:
        if main is not None or model is not None:
            raise UsageError(
                "--main and --model belong to --distributed; add it, or leave them out"
            )
        return None
    if main is None:
        raise UsageError("--distributed needs to know the script that is started: add --main FILE")
    return Distribution(main, model or "model")


def _command(context: click.Context, request: _Request, *, verify: bool) -> tuple[str, ...]:
    command: tuple[str, ...] = context.meta.get("lockstep.command", ())
    if verify and not command:
        raise UsageError(
            "verify needs a command after --, as in: migrate verify project -- python train.py"
        )
    if command:
        from lockstep_migrate.verify.verification import (
            check_command,  # it loads what nothing else needs
        )

        check_command(command, _outputs(request))
    return command


def _outputs(request: _Request) -> list[Path]:
    return [request.output] if request.writes is _Writes.OUTPUT else []


def _where(output: Path | None, in_place: bool, *, writing: bool) -> _Writes:
    if output is not None and in_place:
        raise UsageError("-o and --in-place name two places to write to; give one of them")
    if not writing or (output is None and not in_place):
        return _Writes.NOWHERE
    return _Writes.IN_PLACE if in_place else _Writes.OUTPUT


def _check_reports(request: _Request) -> None:
    """Refuse to replace a report before any work is done."""
    if request.report is not None:
        for name in REPORTS:
            if (request.report / name).exists():
                check_output_file(request.report / name, force=request.force)


def _planned(request: _Request) -> tuple[Collection, Plan]:
    with progress_bar("migrating") as progress:
        collection = collect(request.paths, exclude=_outputs(request))
        plan = plan_collection(collection, _named_options(request, collection), progress)
    return collection, plan


def _named_options(request: _Request, collection: Collection) -> MigrationOptions:
    """The options, with the name that a single script gets: the launch script starts that."""
    asked = request.options.distribution
    renames = request.writes is _Writes.OUTPUT and collection.single
    if asked is None or not renames or not is_file_name(collection, request.output):
        return request.options
    return replace(request.options, distribution=replace(asked, started=request.output.name))


def _has_work(plan: Plan) -> bool:
    return bool(plan.new_files) or any(file.changed for file in plan.files)


# -- writing


def _deliver(plan: Plan, collection: Collection, request: _Request) -> Delivery:
    """Write what was asked for, and say where it is."""
    place, folder, way_back = "", request.report, ""
    if request.writes is _Writes.OUTPUT:
        written = write_tree(plan, collection, request.output, force=request.force)
        place = from_here(written)
        folder = folder or _beside(written)
    elif request.writes is _Writes.IN_PLACE:
        way_back = write_in_place(plan, collection.root, force=request.force)
        place = "place"
    reports = write_reports(plan, folder) if folder is not None else ()
    unsupported, changes = (
        next((from_here(path) for path in reports if path.stem.startswith(name)), "")
        for name in ("unsupported", "change")
    )
    return Delivery(
        place=place,
        written=tuple(map(from_here, reports)),
        unsupported=unsupported,
        changes=changes,
        next_command=_next_command(plan, collection, request, way_back) if _has_work(plan) else "",
        prefix=_prefix(collection.root),
        not_read=tuple(f"{item.path}: {item.reason}" for item in collection.skipped),
    )


def _beside(written: Path) -> Path:
    """The folder for reports of an output: inside it, or beside a single file and named after it."""
    if not written.is_dir():
        return written.with_name(f"{written.stem}-migrate")
    return written / REPORT_FOLDER


def _next_command(plan: Plan, collection: Collection, request: _Request, way_back: str) -> str:
    if request.writes is _Writes.IN_PLACE:
        return way_back
    written = request.output if request.writes is _Writes.OUTPUT else None
    return next_command(plan, collection, request.arguments, written)


def _prefix(root: Path) -> str:
    relative = from_here(root)
    return "" if relative == "." else f"{relative}/"
