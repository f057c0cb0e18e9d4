"""What two runs were set up with: machines, modules, optimizers, dtypes, precision."""

__all__ = ["circumstances", "explains_origin", "model_setup", "module_differences", "setup_facts"]
"""Modules that other rooms import."""
