"""One recorded call run again."""

__all__ = [
    "again", "alone", "decisions", "held_results", "imported", "layouts", "machine", "one_call", "optimizer_update",
    "rebuild", "recorded_tensors", "refusals", "rerun", "side", "torch_state",
]  # fmt: skip
"""Modules that other rooms import."""
