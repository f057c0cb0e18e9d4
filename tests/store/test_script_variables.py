"""Which environment variables a script reads by name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lockstep.store.script_variables import variables_read


@pytest.mark.parametrize(
    "line",
    [
        "x = os.environ['MODE']",
        "x = os.environ.get('MODE', '1')",
        "x = os.getenv('MODE')",
        "x = getenv('MODE')",
        "x = environ.setdefault('MODE', '1')",
        "x = 'MODE' in os.environ",
    ],
)
def test_every_way_to_read_one_is_known(tmp_path: Path, line: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os\nfrom os import environ, getenv\n{line}\n")
    assert variables_read([str(script)]) == ["MODE"]


@pytest.mark.parametrize(
    "line",
    [
        "os.environ['MODE'] = '1'; x = os.environ['MODE']",  # the script sets it itself
        "x = os.environ['OMP_NUM_THREADS']",  # a recording keeps it
        "x = os.environ['MASTER_PORT']",  # a launcher sets it
        "x = os.environ[name]",
        "x = settings.get('MODE')",
        "x = os.environ['MODE'",  # no Python
    ],
)
def test_what_is_set_kept_or_not_known_is_left_out(tmp_path: Path, line: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import os\nname = 'MODE'\nsettings = {{}}\n{line}\n")
    assert variables_read([str(script), str(tmp_path / "gone.py")]) == []


def test_a_script_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    # given a script that was asked about
    script = tmp_path / "train.py"
    script.write_text("import os\nx = os.environ['MODE']\n")
    assert variables_read([str(script)]) == ["MODE"]
    # when it reads another variable by now, of a name as long, then that one is told
    script.write_text("import os\nx = os.environ['KIND']\n")
    state = script.stat()
    os.utime(script, ns=(state.st_atime_ns, state.st_mtime_ns + 1_000_000_000))
    assert variables_read([str(script)]) == ["KIND"]
