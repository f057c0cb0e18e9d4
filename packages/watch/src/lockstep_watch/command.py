"""`lockstep watch`: rules on each step of a training while it runs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from lockstep import options
from lockstep.errors import UsageError, code_of
from lockstep.launch import Ended, Event, NotArmed, Notice, WrittenStep
from lockstep.options import StepSelection, TrainingCommand, runs_elsewhere, training_command
from lockstep.plugin import manager
from lockstep.recordings import Options
from lockstep.terminal import enveloped, json_text, say
from lockstep_watch.acting import Acting
from lockstep_watch.asking import Asking, typed
from lockstep_watch.boards import Boards
from lockstep_watch.chosen_rules import ChosenRule, choose, rules_in
from lockstep_watch.event_file import EventFile, hit_values
from lockstep_watch.lines import Lines, conclusion
from lockstep_watch.panel import Panel, is_wanted
from lockstep_watch.places import own_streams, path_of_events
from lockstep_watch.rule_texts import listing, rule_values
from lockstep_watch.rules import needs_finiteness_alone, needs_sketches
from lockstep_watch.running import watch_training, what_is_missing
from lockstep_watch.watcher import Watched, Watcher, WatchEvent

_WIDTH = 100


@runs_elsewhere(writes=("--output", "--tensorboard", "--events"), stays=("--interactive",))
@click.command(cls=TrainingCommand)
@options.option("--every")
@options.option("--steps", default="0:", show_default=False, words="[default: all]")
@options.option("--level", choices=["module", "api"])
@options.option("--only", multiple=True)
@options.option("--rules", "rule_files", multiple=True, words="A Python file. Repeatable.")
@click.option(
    "--only-rule", "only_rules", cls=options.Option, old=["--rule"], multiple=True, metavar="RULE",
    help="Check this rule alone. Repeatable.",
)  # fmt: skip
@click.option(
    "--skip-rule", "off", cls=options.Option, old=["--off"], multiple=True, metavar="RULE",
    help="Leave this rule out. Repeatable.",
)  # fmt: skip
@click.option(
    "--set", "settings", multiple=True, metavar="RULE.SETTING=VALUE", help="Change this setting of a rule. Repeatable."
)  # fmt: skip
@click.option(
    "--stop-on", multiple=True, metavar="RULE",
    help="End the training, with exit code 0, when this rule fires; `any` for each.",
)  # fmt: skip
@click.option(
    "--save-on", multiple=True, metavar="RULE",
    help="Keep the first step in which this rule fires, for replay. Every step is then recorded with whole tensors.",
)  # fmt: skip
@options.option("--output", default=Path("watched-step"), words="The step that --save-on keeps.")
@click.option(
    "--interactive", is_flag=True,
    help="Wait after each step for your questions: numbers, histograms, slices, the step before, other limits.",
)  # fmt: skip
@options.option("--tensorboard", words="Loss, gradient norm and loss scale of each rank.")
@options.option(
    "--budget",
    form=options.Share(),
    words="a share of the training's, as in 20%; steps beyond it are left out.",
)
@click.option(
    "--events", type=options.PATH_HERE, metavar="FILE",
    help="Write each step and each hit into this file, as JSON lines.  [default: watch-DATE.jsonl here]",
)  # fmt: skip
@click.option(
    "--lines", type=click.FloatRange(min=0), default=10.0, show_default=True, metavar="SECONDS",
    help="Without a terminal, print the latest step once in this many seconds; 0 never does.",
)  # fmt: skip
@click.option("--list-rules", is_flag=True, help="Print all rules, and end.")
@options.force
@options.as_json
def watch(
    every: int,
    steps: str,
    level: str,
    only: tuple[str, ...],
    rule_files: tuple[Path, ...],
    only_rules: tuple[str, ...],
    off: tuple[str, ...],
    settings: tuple[str, ...],
    stop_on: tuple[str, ...],
    save_on: tuple[str, ...],
    output: Path,
    interactive: bool,
    tensorboard: Path | None,
    budget: float | None,
    events: Path | None,
    lines: float,
    list_rules: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Run a training and check each step by rules: NaN, spikes, vanishing or exploding gradients, dead layers.

    You change no line of the script, and every number of the training stays the same to the last
    bit. Lockstep watches each Python process that trains. It prints a rule that fires once, as long
    as it holds, with the line of your script. Each step and each hit is a line of the event file.

    Exit code 0 if no rule fired, 1 if one did, 2 if nothing could be looked at or the training
    failed.

    \b
    lockstep watch -- python train.py
    lockstep watch --level module --every 10 -- torchrun --nproc_per_node 2 train.py
    lockstep watch --stop-on not-finite --save-on not-finite -- python train.py
    lockstep watch --interactive -- python train.py
    lockstep watch --rules my_rules.py --set dead-relu.share=0.9 --skip-rule loss-spike -- python train.py
    lockstep watch --list-rules
    """
    added = [rule for rules in manager().hook.lockstep_watch_rules() for rule in rules]
    added += [rule for path in rule_files for rule in rules_in(path)]
    rules = choose(added, only=only_rules, off=off, settings=settings)
    if list_rules:
        functions = [rule.function for rule in rules]
        told = json_text(enveloped({"rules": list(map(rule_values, functions))}))
        click.echo(told if as_json else listing(functions, width=_WIDTH))
        return 0
    command = training_command()
    if not command:
        raise UsageError("give the training's command after --")
    StepSelection.parse(steps)
    whole = bool(save_on) or interactive
    recorded = Options(
        steps=options.thinned(steps, every), level=level, only=list(only),
        save="tensors" if whole else "stats", optimizer_state=whole,
        sketch_parameters=needs_sketches(rule.function for rule in rules),
        finite_alone=needs_finiteness_alone(rule.function for rule in rules),
    )  # fmt: skip
    plan = _Plan(
        rules,
        Acting(stop_on, save_on, output, [rule.name for rule in rules]),
        EventFile(path_of_events(events), say, force=force),
        Boards(tensorboard, force=force),
        Asking(rules, typed, click.echo) if interactive else None,
        _shown(lines, as_json=as_json, interactive=interactive),
    )
    streams = own_streams(as_json=as_json)
    watched, ended = _run(command, recorded, plan, streams, budget, may_end=bool(stop_on))
    return _conclude(watched, ended, as_json=as_json)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What looks at a training's steps, and where that is told."""

    rules: list[ChosenRule]
    acting: Acting
    file: EventFile
    boards: Boards
    asking: Asking | None
    shown: Panel | Lines


def _shown(lines: float, *, as_json: bool, interactive: bool) -> Panel | Lines:
    if is_wanted() and not (as_json or interactive):
        return Panel()
    return Lines(0.0 if interactive else lines)


def _run(
    command: Sequence[str],
    recorded: Options,
    plan: _Plan,
    streams: dict[str, Any],
    budget: float | None,
    *,
    may_end: bool,
) -> tuple[Watched, Ended]:
    """Watch the command to its end."""
    shown, asking = plan.shown, plan.asking

    def told(event: WatchEvent) -> None:
        plan.file.add(event)
        plan.boards.told(event)
        shown.told(event)

    def hear(event: Event) -> None:
        plan.file.add(event)
        if isinstance(event, NotArmed | Notice):
            shown.say(str(event))

    watcher = Watcher(plan.rules, told)

    def look(step: WrittenStep) -> None:
        if asking is not None:
            asking.before(watcher.memory_of(step.name))
        hits = watcher.look(step)
        for sentence in plan.acting.act(step, [*hits, *watcher.new_notes]):
            shown.say(sentence)
        if asking is not None:
            asking.after(step, hits)

    with shown, plan.boards:
        streams = {**streams, **shown.streams}
        streams |= {"stdin": subprocess.DEVNULL} if asking is not None else {}
        ended = watch_training(
            command, recorded, look, hear, budget=budget, may_end=may_end or asking is not None,
            one_by_one=asking is not None, **streams,
        )  # fmt: skip
    plan.file.close()
    return watcher.watched, ended


def _conclude(watched: Watched, ended: Ended, *, as_json: bool) -> int:
    if as_json:
        hits = {
            rule: {**hit_values(hit), "steps": watched.fired[rule]}
            for rule, hit in watched.first.items()
        }
        values = {
            "steps": dict(watched.steps), "skipped": watched.skipped, "left_out": ended.left_out,
            "left_out_by_script": watched.by_hand, "fired": hits,
            "notes": [hit_values(hit) for hit in watched.notes.values()],
            "exit_code": ended.code, "not_written": ended.unwritten,
        }  # fmt: skip
        click.echo(json_text(enveloped(values)))
    else:
        click.echo(conclusion(watched, left_out=ended.left_out))
        for line in what_is_missing(ended):
            click.echo(line)
    looked = bool(watched.steps) and not (ended.code or ended.unwritten)
    return code_of(differs=bool(watched.first), looked=looked)
