"""torch.utils.dumper: `import lockstep_interop_names.dumper` puts it where scripts look, or import `dumper` from here.

`with torch.utils.dumper(use_dump=True, dump_path="./model_gpu.h5") as dump:` records what runs inside, and writes one
file of it.
"""

from __future__ import annotations

import sys

from lockstep_interop_names.faces.dumper import Dumper

__all__ = ["dumper"]

dumper = Dumper

# A build of torch that has a dumper of its own keeps it. torch is loaded by now: what records has done so.
if not hasattr(sys.modules["torch.utils"], "dumper"):
    setattr(sys.modules["torch.utils"], "dumper", dumper)  # noqa: B010 - the module is torch's
