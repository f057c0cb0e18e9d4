"""Migrates a text in memory for many processes, and shows what became of it."""

import textwrap
from pathlib import PurePosixPath

from lockstep_migrate.engine.own_names import own_names
from lockstep_migrate.engine.text import read_python
from lockstep_migrate.engine.tree import parse
from lockstep_migrate.plan import FilePlan, Outcome, rows_of
from lockstep_migrate.targets import migration_targets
from lockstep_migrate.torch.python import migrate_python
from lockstep_migrate.torch.table import table_of
from lockstep_migrate.torch.unit import Settings

HEAD = """\
import torch
from torch import nn
from torch.utils.data import DataLoader
"""


class Migrated:
    """A text after migration.

    Parameters
    ----------
    text
        The text before.
    first
        The rules under test.
    target
        Where to.
    """

    def __init__(self, text, first, target="neutral"):
        settings = Settings(migration_targets()[target], table_of(migration_targets()[target]))
        source = read_python(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        found = migrate_python(source, settings, own_names(parse(source.text)), first)
        self.plan = FilePlan(PurePosixPath("main.py"), source, found.mentions, found.additions)
        self.text = self.plan.migrated().decode(source.encoding)
        compile(self.text, "main.py", "exec")

    @property
    def unchanged(self):
        return not self.plan.changed

    def listed(self, rule):
        """Reasons of what is listed under a rule."""
        rows = rows_of(self.plan)
        return [row.reason for row in rows if (row.rule, row.outcome) == (rule, Outcome.LISTED)]
