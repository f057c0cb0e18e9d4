"""One piece of Python through the engine, for tests that compare before and after."""

from __future__ import annotations

import io
import re
import warnings
from pathlib import PurePosixPath

from pyflakes.api import check
from pyflakes.reporter import Reporter

from lockstep_migrate.engine.own_names import own_names
from lockstep_migrate.engine.text import read_python
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.plan import FilePlan, Outcome
from lockstep_migrate.project import target_named
from lockstep_migrate.torch.python import migrate_python
from lockstep_migrate.torch.table import table_of
from lockstep_migrate.torch.unit import Settings

TARGETS = ("neutral", "npu", "xpu", "hpu", "mps")
PATH = PurePosixPath("script.py")


def plan_of_code(code: str | bytes, target: str = "neutral", *, similar: bool = False) -> FilePlan:
    """What becomes of one script that stands alone."""
    source = read_python(code.encode() if isinstance(code, str) else code)
    device = target_named(target)
    settings = Settings(device, table_of(device), similar=similar)
    result = migrate_python(source, settings, own_names(parse(source.text), PATH))
    return FilePlan(PATH, source, result.mentions, result.additions)


def migrated(code: str, target: str = "neutral", *, similar: bool = False) -> str:
    """The whole script as it is after migrating."""
    return plan_of_code(code, target, similar=similar).migrated().decode()


def listed(code: str, target: str = "neutral") -> list[str]:
    """The source of each mention that needs a person."""
    plan = plan_of_code(code, target)
    found = sorted(mention.span for mention in plan.mentions if mention.outcome is Outcome.LISTED)
    return [code[span.start : span.end] for span in found]


def warnings_of(code: str) -> list[str]:
    """What pyflakes says of a script, without places; an import inside a function may lose its last use."""
    told = io.StringIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python's own, of the script as it was
        check(code, "script.py", Reporter(told, told))
    lines, found = code.splitlines(), []
    for warning in told.getvalue().splitlines():
        line = lines[int(warning.split(":")[1]) - 1]
        inner = line[:1].isspace() and warning.endswith("imported but unused")
        if "# noqa" not in line and not inner:
            found.append(re.sub(r"^script\.py:\d+:\d+:? | from line \d+", "", warning))
    return sorted(found)


def new_warnings(before: str, after: str) -> list[str]:
    """What pyflakes says of the script after and did not say of the one before."""
    known = warnings_of(before)
    return [warning for warning in warnings_of(after) if warning not in known]
