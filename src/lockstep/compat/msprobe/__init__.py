"""mindstudio-probe's names: `from lockstep.compat.msprobe.pytorch import PrecisionDebugger, seed_all`."""
