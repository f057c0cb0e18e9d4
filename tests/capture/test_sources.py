"""Which files of Python a recorded process had loaded."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest

from lockstep.capture.source_code.user_code import loaded_sources


def test_a_module_is_named_by_the_file_that_a_link_leads_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "own_module.py").touch()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.syspath_prepend(str(tmp_path / "link"))
    importlib.import_module("own_module")
    monkeypatch.delitem(sys.modules, "own_module")
    assert str(tmp_path / "real" / "own_module.py") not in loaded_sources()
    importlib.import_module("own_module")
    assert str(tmp_path / "real" / "own_module.py") in loaded_sources()
    monkeypatch.delitem(sys.modules, "own_module")


def test_python_its_packages_and_lockstep_are_left_out() -> None:
    sources = loaded_sources()
    for name in ("json/", "site-packages", "torch/", "lockstep/capture"):
        assert not any(name in source for source in sources)


def test_odd_modules_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    class Lazy(ModuleType):
        def __getattr__(self, name: str) -> str:
            raise RuntimeError(f"loads {name}")

    monkeypatch.setitem(sys.modules, "lazy", Lazy("lazy"))
    monkeypatch.setitem(sys.modules, "absent", None)
    monkeypatch.setitem(sys.modules, "object", object())
    relative = ModuleType("relative")
    relative.__file__ = "relative.py"
    monkeypatch.setitem(sys.modules, "relative", relative)
    assert not any("relative.py" in source for source in loaded_sources())
