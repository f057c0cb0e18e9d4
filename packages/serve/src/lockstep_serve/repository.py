"""The models that are served: found in folders, loaded side by side, exchanged without losing a request."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import UsageError
from lockstep_serve.batcher import Batcher
from lockstep_serve.engine import EmbeddedEngine, Engine
from lockstep_serve.failures import NotReadyError, NotThereError, RequestError
from lockstep_serve.opening import Source, settings_of
from lockstep_serve.parity.shadow import Shadow
from lockstep_serve.servable import Signature
from lockstep_serve.servables.kinds import OPENERS

GRACE_S = 5.0
"""How long requests that were begun may take once the server is to end."""

READY, UNAVAILABLE = "READY", "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Limits:
    """How models are run: where (devices by commas), `most` instances a run (None: as many as take a moment),
    `waiting` in the queue, `timeout_s` for a request with its wait and for a run, in how many `processes` each version
    (0: threads of this one), and by how many `threads` a run (0: as many as its runtime takes). `batch` runs requests
    together also where a graph does not show that these stay apart."""

    device: str = "cpu"
    most: int | None = None
    waiting: int = 1024
    timeout_s: float = 60.0
    processes: int = 0
    threads: int = 0
    batch: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """A version that is served."""

    name: str
    number: int
    platform: str
    signature: Signature
    batcher: Batcher
    path: Path


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """One line of the repository's index."""

    name: str
    version: str
    state: str
    reason: str
    batching: str = ""


@dataclass(slots=True)
class _Model:
    """A model of the repository: where it lies, its versions, and why those are not served that are not."""

    path: Path
    versions: dict[int, Version]
    reasons: dict[str, str]


class Repository:
    """Models by name, each with its versions.

    paths: Files, folders of one model (`1/model.onnx`, `2/model.onnx`), or folders of such folders.
    limits: How they are run.
    engine: By what; without, as `limits` say, on this machine.

    limits: How they are run.
    engine: What runs them; whoever has it run them begins and closes it.
    shadows: The references of models, by the model's name.

    Raises UsageError if a path is missing, or two models have one name.
    """

    def __init__(self, paths: Sequence[Path], limits: Limits, engine: Engine | None = None) -> None:
        self._paths, self.limits = paths, limits
        self.engine = engine or EmbeddedEngine(limits.processes, limits.timeout_s)
        self._models: dict[str, _Model] = {}
        self._loading: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._leaving: dict[asyncio.Task[None], Batcher] = {}
        self.shadows: dict[str, Shadow] = {}
        for name, path in self._found().items():
            self._models[name] = _Model(path, {}, {"": "not loaded"})

    def _found(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for path in self._paths:
            for name, where in models_at(path):
                if found.get(name, where) != where:
                    raise UsageError(
                        f"{name}: is a model at {found[name]} and at {where}; rename one"
                    )
                found[name] = where
        return found

    async def load_all(self) -> None:
        """Load what there is; what cannot be loaded says so in the index, and the rest is served."""
        found = await asyncio.gather(*map(self.load, self._models), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException) and not isinstance(one, RequestError):
                raise one  # else it is kept as the reason in the index

    async def load(self, name: str) -> None:
        """Load a model's versions, or load them anew; requests go to the old ones until the new ones are ready.

        Raises NotThereError if no path has such a model. Raises RequestError if none of its versions can be served;
        what was served before goes on, as does a single version whose file cannot be opened any more.
        """
        path = (await asyncio.to_thread(self._found)).get(name)
        if path is None:
            raise NotThereError(f"there is no model {name} in the repository")
        async with self._loading[name]:
            model = self._models.setdefault(name, _Model(path, {}, {}))
            loaded: dict[int, Version] = {}
            reasons: dict[str, str] = {}
            kept: dict[int, Version] = {}
            for number, where in await asyncio.to_thread(versions_of, path):
                try:
                    loaded[number] = await self._open(name, number, where, path)
                except (UsageError, OSError) as error:
                    reasons[str(number)] = str(error)
                    if number in model.versions:
                        kept[number] = model.versions[number]
            if not loaded:
                reasons = reasons or {"": f"{path}: has no folder of a version in it, such as 1"}
                model.reasons = reasons
                raise RequestError("; ".join(reasons.values()))
            left, model.versions, model.reasons = model.versions, loaded | kept, reasons
            self._let_go({number: one for number, one in left.items() if number not in kept})

    async def unload(self, name: str) -> None:
        """Serve a model no more; what was asked before is answered. Raises NotThereError if there is none."""
        model = self._models.get(name)
        if model is None:
            raise NotThereError(f"there is no model {name} in the repository")
        left, model.versions, model.reasons = model.versions, {}, {"": "unloaded"}
        self._let_go(left)

    def _let_go(self, versions: dict[int, Version]) -> None:
        for version in versions.values():
            task = asyncio.ensure_future(version.batcher.close())
            self._leaving[task] = version.batcher
            task.add_done_callback(self._leaving.pop)

    async def close(self) -> None:
        """Answer what waits, for some seconds at most, and let go of all models."""
        for model in self._models.values():
            self._let_go(model.versions)
            model.versions = {}
        if self._leaving:
            await asyncio.wait([*self._leaving], timeout=GRACE_S)
        for task, batcher in [*self._leaving.items()]:
            task.cancel()
            await batcher.abandon()
        for shadow in self.shadows.values():
            await shadow.close()

    def get(self, name: str, version: str = "") -> Version:
        """A version that is served; the highest where none is named.

        Raises NotThereError, NotReadyError if there is none, or it is not loaded.
        """
        model = self._models.get(name)
        if model is None:
            raise NotThereError(f"there is no model {name}; there are {', '.join(self._models)}")
        if not model.versions:
            raise NotReadyError(f"{name} is not loaded: {'; '.join(model.reasons.values())}")
        if not version:
            return model.versions[max(model.versions)]
        found = model.versions.get(int(version)) if version.isdecimal() else None
        if found is None:
            served = ", ".join(map(str, sorted(model.versions)))
            raise NotThereError(f"{name} has no version {version[:20]}; it has {served}")
        return found

    def known(self, name: str) -> str:
        """A model's name; "(unknown)" for all that are not there, of which whoever asks may think of any number."""
        return name if name in self._models else "(unknown)"

    def versions(self, name: str) -> list[str]:
        """The versions of a model that are served."""
        return [str(one) for one in sorted(self._models[name].versions)]

    def index(self) -> list[IndexEntry]:
        """Every model with its versions, and why one is not served, or could not be loaded anew."""
        entries = []
        for name, model in self._models.items():
            served = self.versions(name)
            entries += [
                IndexEntry(
                    name, one, READY, model.reasons.get(one, ""),
                    model.versions[int(one)].signature.batching,
                )
                for one in served
            ]  # fmt: skip
            entries += [
                IndexEntry(name, one, UNAVAILABLE, reason)
                for one, reason in model.reasons.items()
                if one not in served
            ]
        return entries

    @property
    def ready(self) -> bool:
        """Whether every model has a version that is served, or was unloaded on purpose."""
        return all(
            model.versions or model.reasons == {"": "unloaded"} for model in self._models.values()
        )

    async def _open(self, name: str, number: int, where: Path, path: Path) -> Version:
        asked = {"batches": True} if self.limits.batch else {}
        settings = {
            "threads": self.limits.threads,
            **asked,
            **await asyncio.to_thread(settings_of, path),
        }
        source = Source(where, str(settings.get("device", self.limits.device)), settings)
        runners = await self.engine.open(name, number, source)
        first = runners[0]
        batcher = Batcher(
            runners, first.signature, most=settings.get("most", self.limits.most),
            waiting=self.limits.waiting, timeout_s=self.limits.timeout_s, name=name,
        )  # fmt: skip
        return Version(name, number, first.platform, first.signature, batcher, where)


def models_at(path: Path) -> list[tuple[str, Path]]:
    """The models of a path, each with its name. Raises UsageError if there is none."""
    if path.is_file() and path.suffix in OPENERS:
        return [(path.stem, path)]
    if not path.is_dir():
        raise UsageError(
            f"{path}: is neither a model nor a folder of models; give a file of {', '.join(sorted(OPENERS))},"
            " or a folder as docs/serve.md shows"
        )
    if _numbered(path):
        return [(path.resolve().name, path)]
    folders = [one for one in sorted(path.iterdir()) if one.is_dir() and one.name[:1] != "."]
    if not folders:
        raise UsageError(f"{path}: has no folder of a model in it, such as {path / 'resnet' / '1'}")
    return [(one.name, one) for one in folders]


def versions_of(path: Path) -> list[tuple[int, Path]]:
    """The versions of a model, lowest first."""
    return [(1, path)] if path.is_file() else _numbered(path)


def _numbered(path: Path) -> list[tuple[int, Path]]:
    """Folders by the number that they are named by, as it is written: `01` is no version 1 beside `1`."""
    named = (one for one in path.iterdir() if one.is_dir() and one.name.isdecimal())
    return sorted((int(one.name), one) for one in named if str(int(one.name)) == one.name)
