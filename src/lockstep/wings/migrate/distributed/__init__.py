"""From one card to many: torchrun starts one process a device, and each trains on its share of the samples."""

from __future__ import annotations

from lockstep.wings.migrate.distributed.head import takes_devices
from lockstep.wings.migrate.distributed.launch import launch_script
from lockstep.wings.migrate.distributed.models import assigned_names, likely_models
from lockstep.wings.migrate.distributed.project_modules import imported_modules, list_imported
from lockstep.wings.migrate.distributed.script import WRAP, distribute

__all__ = [
    "WRAP",
    "assigned_names",
    "distribute",
    "imported_modules",
    "launch_script",
    "likely_models",
    "list_imported",
    "takes_devices",
]
