"""What two runs were set up with: machines, modules, optimizers, dtypes, precision."""
