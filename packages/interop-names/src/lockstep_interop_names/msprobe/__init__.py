"""mindstudio-probe's names: `from lockstep_interop_names.msprobe.pytorch import PrecisionDebugger, seed_all`."""
