"""The options of a migration."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from lockstep_migrate.torch.user_rules import UserRules


class Framework(enum.Enum):
    """Your scripts use this framework."""

    PYTORCH = "pytorch"
    TENSORFLOW = "tensorflow"


@dataclass(frozen=True, slots=True)
class Distribution:
    """From one card to many.

    main: The script that is started, as it was given.
    model: The variable that holds the model in it; several with commas between them.
    started: What the script will be called once it is migrated; empty where it keeps its name.
    """

    main: Path
    model: str = "model"
    started: str = ""


@dataclass(frozen=True, slots=True)
class MigrationOptions:
    """The options of a migration.

    target: Name of the device to write scripts for, such as `npu`; `neutral` for any.
    framework: What the scripts are written for.
    user_rules: Rules of the user's own, which win over the built-in ones.
    similar: Whether what has no equal becomes what is similar; each such place is listed as a risk.
    distribution: What becomes a training on many cards; None for none.
    advice: Whether equal but faster forms are listed.
    advice_apply: Whether they are written, where that is possible.
    """

    target: str = "neutral"
    framework: Framework = Framework.PYTORCH
    user_rules: UserRules = ()
    similar: bool = False
    distribution: Distribution | None = None
    advice: bool = False
    advice_apply: bool = False
