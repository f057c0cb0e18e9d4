"""Say where the names of older tools are: in a package of their own."""

raise ImportError(
    "lockstep.compat is the package lockstep_interop_names: write lockstep_interop_names.msprobe.pytorch for"
    " lockstep.compat.msprobe.pytorch, and install it by pip install 'lockstep-numerics[interop-names]'"
)
