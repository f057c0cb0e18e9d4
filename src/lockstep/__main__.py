"""The program: `lockstep`, and `python -m lockstep`."""

import sys

from lockstep.cli.starting import end_at_ctrl_c


def program() -> int:
    """Run the command line that the process was given, and return the exit code."""
    end_at_ctrl_c()
    from lockstep.cli.main import main  # takes a while to load

    return main()


if __name__ == "__main__":
    sys.exit(program())
