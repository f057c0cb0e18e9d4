"""The code of the script: which is the user's, its lines, frames and stacks."""
