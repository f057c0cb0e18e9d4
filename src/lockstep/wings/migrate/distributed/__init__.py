"""From one card to many: torchrun starts one process a device, and each trains on its share of the samples."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.wings.migrate.distributed.head import takes_devices
from lockstep.wings.migrate.distributed.launch import launch_script
from lockstep.wings.migrate.distributed.models import assigned_names, likely_models
from lockstep.wings.migrate.distributed.project_modules import imported_modules, list_imported
from lockstep.wings.migrate.distributed.script import WRAP, distribute

__all__ = [
    "RULES",
    "WRAP",
    "assigned_names",
    "distribute",
    "imported_modules",
    "launch_script",
    "likely_models",
    "list_imported",
    "takes_devices",
]

RULES: Mapping[str, str] = {
    "distributed/batch-norm": "Batch norm of one process's share of a batch.",
    "distributed/batch-size": "The batch size stays that of one process.",
    "distributed/device": "A device's number becomes the process's own device.",
    "distributed/done": "A script that runs in many processes already.",
    "distributed/elsewhere": "What a module that the main script imports does for the training.",
    "distributed/end": "The processes part at the end.",
    "distributed/epoch": "The sampler is told each epoch, so that its order changes.",
    "distributed/evaluation": "Every process evaluates the whole set.",
    "distributed/files": "Files and folders that every process would make.",
    "distributed/load": "A checkpoint that every process loads to one device.",
    "distributed/loader": "The training's samples are shared out by a DistributedSampler.",
    "distributed/logging": "Rank 0 alone prints; what else shows or logs.",
    "distributed/metric": "A number that is of one process's share.",
    "distributed/model": "The model is wrapped in DistributedDataParallel.",
    "distributed/own": "The script runs on many devices by means of its own.",
    "distributed/saving": "Rank 0 alone saves; what else writes.",
    "distributed/seed": "A seed that all processes share.",
    "distributed/start": "The processes meet.",
    "distributed/unwrapped": "The model itself, where its wrapper would not do.",
}
