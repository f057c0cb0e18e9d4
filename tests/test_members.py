"""The members: packages of their own with verbs; each is what the core's table, settings and contracts say of it."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import plugins
from lockstep.capture.source_code.code_frames import frames_here
from lockstep.capture.source_code.user_code import is_of_the_user
from lockstep.cli.main import main
from lockstep.core.errors import UsageError
from lockstep.core.members import MEMBERS, OWN_VERBS, SOURCE_VARIABLE, Member, own_folders
from lockstep.core.version import DISTRIBUTION, VERSION
from lockstep.recorder import precision_face

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # of pytest's own needs

ROOT = Path(__file__).parents[1]


def settings_of(folder: Path) -> dict[str, Any]:
    return tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))


def built_from(folder: Path, into: Path) -> list[str]:
    """The names in the wheel of a package."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    (wheel,) = into.glob("*.whl")
    return zipfile.ZipFile(wheel).namelist()


@pytest.fixture
def reloaded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Plug-ins are found anew before and after the test."""
    plugins.forget()
    yield
    monkeypatch.undo()
    plugins.forget()


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch, reloaded: None) -> Callable[[str], None]:
    """Leaves a member out, as if it were not installed."""

    def leave_out(name: str) -> None:
        def others(group: str) -> list[EntryPoint]:
            found = entry_points(group=group)
            return [one for one in found if one.dist is None or one.dist.name != name]

        monkeypatch.setattr(plugins, "entry_points", others)

    return leave_out


def test_the_table_names_every_folder_of_packages() -> None:
    folders = sorted(path.parent.name for path in ROOT.glob("packages/*/pyproject.toml"))
    assert len(folders) >= 4
    assert sorted(member.name for member in MEMBERS) == folders


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: str(member.name))
def test_a_member_has_the_version_of_the_core_and_stands_in_its_settings(member: Member) -> None:
    # given what the member and the core say of themselves
    folder = ROOT / "packages" / member.name
    own, core = settings_of(folder), settings_of(ROOT)
    # then their versions are one, and each pins the other
    assert own["project"]["name"] == member.distribution
    assert own["project"]["version"] == core["project"]["version"] == VERSION
    assert f"{DISTRIBUTION} == {VERSION}" in own["project"]["dependencies"]
    extras = core["project"]["optional-dependencies"]
    assert extras[member.name] == [f"{member.distribution} == {VERSION}"]
    assert member.name in extras["all"][0].strip("]").partition("[")[2].split(",")
    # and the license, the types and the tests are there, and what it says of itself
    for name in ("LICENSE", "README.md", "tests", f"src/{member.package}/py.typed"):
        assert (folder / name).exists(), name
    # and mypy and import-linter look at it
    tools = core["tool"]
    assert f"packages/{member.name}/src" in tools["mypy"]["mypy_path"].split(":")
    assert member.package in tools["importlinter"]["root_packages"]
    contracts = {one["id"]: one for one in tools["importlinter"]["contracts"]}
    assert member.package in contracts["members-apart"]["modules"]
    assert member.package in contracts["core-without-members"]["forbidden_modules"]
    assert member.package in contracts["faces"]["source_modules"]


def test_whatever_a_package_asks_for_has_a_version_that_development_installs() -> None:
    # given the names of all that the core and the members need, and of what `constraints.txt` says the version of
    needed = set()
    for folder in (ROOT, *(ROOT / "packages" / member.name for member in MEMBERS)):
        project = settings_of(folder)["project"]
        for asked in (project["dependencies"], *project.get("optional-dependencies", {}).values()):
            needed |= {_name_of(one) for one in asked}
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pinned = {_name_of(line) for line in lines if "==" in line}
    # then none is missing, Lockstep's own apart
    own = {DISTRIBUTION, *(member.distribution for member in MEMBERS)}
    assert needed - own - pinned == set()
    assert "kubernetes" in needed


def _name_of(requirement: str) -> str:
    return re.split(r"[\[ =<>;]", requirement)[0].lower().replace("_", "-")


@pytest.mark.parametrize("member", MEMBERS, ids=lambda member: str(member.name))
def test_the_verbs_of_a_member_are_those_of_the_table(member: Member) -> None:
    points = settings_of(ROOT / "packages" / member.name)["project"]["entry-points"]["lockstep"]
    modules = [importlib.import_module(name) for name in points.values()]
    added = [
        verb.name
        for module in modules
        if hasattr(module, "lockstep_commands")
        for verb in module.lockstep_commands()
    ]
    assert sorted(added) == sorted(member.verbs)


def test_the_table_of_verbs_is_that_of_the_plug_ins() -> None:
    # given every plug-in of the core and of the members, and the verbs that it adds
    found = {}
    for folder in (ROOT, *(ROOT / "packages" / member.name for member in MEMBERS)):
        points = settings_of(folder)["project"]["entry-points"]["lockstep"]
        for name in points.values():
            module = importlib.import_module(name)
            if hasattr(module, "lockstep_commands"):
                found[name] = tuple(verb.name for verb in module.lockstep_commands())
    # then the table, by which a verb loads no plug-in but its own, says the same
    assert found == OWN_VERBS


def test_a_verb_whose_member_is_absent_says_what_to_install(
    without: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    # given Lockstep without the member migrate
    without("lockstep-migrate")
    # then its verb ends as bad usage does, with the command to install it
    assert main(["migrate", "train.py", "--to", "npu"]) == 2
    assert capsys.readouterr().err == (
        f"lockstep: migrate needs lockstep-migrate {VERSION}: pip install 'lockstep-numerics[migrate]'\n"
    )
    # and the help has the verbs that are there, and one line for the others
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "  migrate " not in shown
    assert "  cache " in shown
    assert "Not installed: migrate. To install them:\n" in shown
    assert shown.endswith("\n  pip install 'lockstep-numerics[migrate]'\n")
    # and who mistypes it is led to it
    assert main(["migrat"]) == 2
    assert "did you mean migrate" in capsys.readouterr().err


def test_an_option_whose_member_is_absent_says_what_to_install(
    without: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    without("lockstep-remote")
    assert main(["record", "--on", "gpu1", "-o", "ref", "--", "python", "train.py"]) == 2
    assert capsys.readouterr().err == (
        f"lockstep: --on needs lockstep-remote {VERSION}: pip install 'lockstep-numerics[remote]'\n"
    )


def test_a_dump_whose_readers_are_absent_says_what_to_install(
    without: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a folder of another tool's, and Lockstep without the member that reads such
    dump = tmp_path / "dump"
    dump.mkdir()
    (dump / "tensor.npy").write_bytes(b"")
    without("lockstep-interop-names")
    # when it is looked at, then the sentence says what may read it, also where its form is named
    assert main(["show", str(dump)]) == 2
    said = capsys.readouterr().err
    assert "holds no manifest.json" in said
    assert said.endswith("wrote it: pip install 'lockstep-numerics[interop-names]'\n")
    assert main(["show", "--format", "npy", str(dump)]) == 2
    assert capsys.readouterr().err == (
        f"lockstep: --format npy needs lockstep-interop-names {VERSION}:"
        " pip install 'lockstep-numerics[interop-names]'\n"
    )
    # and of a path that is not there nothing is said of other tools
    assert main(["show", str(tmp_path / "nothing")]) == 2
    assert "pip install" not in capsys.readouterr().err


def test_a_training_whose_recorder_is_absent_says_what_to_install(
    without: Callable[[str], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    # given Lockstep without the member that records JAX, and a script that imports what is called so
    (tmp_path / "jax.py").write_text("")
    monkeypatch.chdir(tmp_path)
    without("lockstep-frameworks")
    # when it is recorded, then it runs, and the sentence says what installs the recorder
    main(["record", "-o", "ref", "--", sys.executable, "-c", "import jax; print('trained')"])
    told = capfd.readouterr()
    assert "trained" in told.out
    assert (
        "JAX was imported, and what records it is not installed: pip install 'lockstep-numerics[jax]'"
        in told.err
    )
    # and the same of the calls of precision_tool, which it records
    for name in [one for one in sys.modules if one.split(".")[0] == "lockstep_frameworks"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent("lockstep_frameworks"), *sys.meta_path])
    monkeypatch.delenv(SOURCE_VARIABLE, raising=False)
    with pytest.raises(UsageError, match=r"lockstep-frameworks.*numerics\[frameworks\]"):
        precision_face()


def test_where_all_members_are_installed_the_help_names_none_as_absent(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr()
    assert "Not installed" not in shown.out
    assert shown.err == ""


def test_a_member_of_a_different_version_is_said_and_not_loaded(
    tmp_path: Path,
    reloaded: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given an older release of a member, of which two plug-ins would fail to load
    install(tmp_path, "lockstep-tune", "0.1.0", {"one": "no_such_module", "two": "no_such_module"})
    monkeypatch.syspath_prepend(str(tmp_path))
    # then that is said once, with the command, and its verb tells what it needs
    assert main(["search"]) == 2
    told = capsys.readouterr().err
    assert told.count("lockstep-tune 0.1.0 is not loaded") == 1
    assert f"pip install 'lockstep-tune == {VERSION}'" in told
    assert f"search needs lockstep-tune {VERSION}" in told
    assert "cannot be loaded" not in told
    assert "Traceback" not in told


CLAIM = """
import click
from lockstep.hookspecs import Verb, hookimpl

@hookimpl
def lockstep_commands():
    return [Verb("{verb}", "Claims a verb.", "Examples", lambda: click.Command("x", callback=lambda: print("{text}")))]
"""


def test_two_plug_ins_that_add_one_verb_are_both_named(
    tmp_path: Path,
    reloaded: None,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given two plug-ins with one verb, and one with a verb of Lockstep
    for name, verb in (("first_one", "paint"), ("second_one", "paint"), ("third_one", "record")):
        (tmp_path / f"{name}.py").write_text(CLAIM.format(verb=verb, text=name))
        install(tmp_path, name, "1.0", {name: name})
    monkeypatch.syspath_prepend(str(tmp_path))
    # when the verb is used, then the first one runs, and both are named
    assert main(["paint"]) == 0
    told = capsys.readouterr()
    assert told.out == "first_one\n"
    for one, other, verb in (
        ("lockstep-numerics:main", "third_one:third_one", "record"),
        ("first_one:first_one", "second_one:second_one", "paint"),
    ):
        said = f"the plug-ins {one} and {other} both add the verb {verb}; that of {one} runs\n"
        assert said in told.err
    assert told.err.count("\n") == 2


def install(folder: Path, name: str, version: str, points: dict[str, str]) -> None:
    """Lay down what an installer does of a distribution with plug-ins."""
    information = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    information.mkdir()
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (information / "METADATA").write_text(metadata)
    lines = "".join(f"{point} = {module}\n" for point, module in points.items())
    (information / "entry_points.txt").write_text(f"[lockstep]\n{lines}")


def test_an_old_import_says_where_the_names_are(monkeypatch: pytest.MonkeyPatch) -> None:
    # with the member the old name of the cache works
    monkeypatch.delitem(sys.modules, "lockstep.cache", raising=False)
    with pytest.warns(DeprecationWarning, match="from lockstep_cache import"):
        old = importlib.import_module("lockstep.cache")
    assert old.CachedDataset is importlib.import_module("lockstep_cache").CachedDataset
    with pytest.raises(AttributeError):
        _ = old.samples_of_another
    # and without it, it says what to install
    monkeypatch.delitem(sys.modules, "lockstep.cache")
    monkeypatch.setitem(sys.modules, "lockstep_cache", None)
    with pytest.raises(
        ImportError, match=r"from lockstep_cache import .*lockstep-numerics\[cache\]"
    ):
        importlib.import_module("lockstep.cache")
    monkeypatch.undo()
    with pytest.raises(ImportError, match=r"lockstep_interop_names.*numerics\[interop-names\]"):
        importlib.import_module("lockstep.compat.msprobe.pytorch")
    import lockstep_cache

    assert all(hasattr(lockstep_cache, name) for name in lockstep_cache.__all__)
    assert not hasattr(lockstep_cache, "samples_of_another")


class Absent:
    """A finder that has no package of a name, as if it were not installed."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, *_: object) -> None:
        if name.split(".")[0] == self.package:
            raise ModuleNotFoundError(f"No module named {self.package!r}", name=self.package)


def test_noting_weights_without_the_member_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given Lockstep without the member that notes weights, which other tests may have loaded
    for name in [one for one in sys.modules if one.split(".")[0] == "lockstep_sampling"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Absent("lockstep_sampling"), *sys.meta_path])
    monkeypatch.delenv(SOURCE_VARIABLE, raising=False)
    # then the name is there, and its call says what it needs
    with pytest.raises(UsageError) as raised:
        lockstep.weights({}, directory=tmp_path)
    assert str(raised.value) == (
        f"lockstep.weights needs lockstep-sampling {VERSION}: pip install 'lockstep-numerics[sampling]'"
    )
    # and with the member it is noted, and what is wrong within that is said as it is
    monkeypatch.undo()
    assert lockstep.weights({}, directory=tmp_path) is not None
    with pytest.raises(UsageError, match="is no name"):
        lockstep.weights({}, "a/b", directory=tmp_path)


def test_the_code_of_members_is_lockstep_s_own_in_recordings(tmp_path: Path) -> None:
    # given a file of each member, and one of a user's package of a similar name
    files = [str(Path(folder) / "plugin.py") for folder in own_folders()]
    assert len(files) == 1 + len(MEMBERS)
    users = str(tmp_path / "lockstep_mine" / "plugin.py")
    assert [is_of_the_user(file) for file in (*files, users)] == [False] * len(files) + [True]

    # when each calls for its stack
    def seen_from(file: str) -> bool:
        names: dict[str, Any] = {"frames_here": frames_here}
        exec(compile(f"def stack():\n    '{file}'\n    return frames_here()", file, "exec"), names)
        return any(frame.function == "stack" for frame in names["stack"]())

    # then the user's is in it alone
    assert [seen_from(file) for file in (*files, users)] == [False] * len(files) + [True]


@pytest.mark.exhaustive
def test_each_wheel_holds_one_package(tmp_path: Path) -> None:
    # given the wheels of the core and of its members
    core = built_from(ROOT, tmp_path / "core")
    # then none of them has a file of another, a test, or lacks its license
    assert not any(name.startswith(("lockstep_", "packages", "tests")) for name in core
                   if not name.startswith(("lockstep_numerics-", "lockstep_startup.pth")))  # fmt: skip
    for member in MEMBERS:
        names = built_from(ROOT / "packages" / member.name, tmp_path / member.name)
        roots = {name.split("/")[0] for name in names}
        assert roots == {member.package, f"{member.package}-{VERSION}.dist-info"}
        assert any(name.endswith("licenses/LICENSE") for name in names)
        sources = ROOT / "packages" / member.name / "src"
        expected = {
            str(path.relative_to(sources))
            for path in sources.rglob("*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert {name for name in names if name.startswith(f"{member.package}/")} == expected
