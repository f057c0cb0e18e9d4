"""`python -m lockstep`."""

import sys

from lockstep.cli.main import main

sys.exit(main())
