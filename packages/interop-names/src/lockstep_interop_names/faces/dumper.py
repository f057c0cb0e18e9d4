"""`torch.utils.dumper`: what runs inside of a `with` block is recorded, and one `.h5` written of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType

from lockstep.errors import UsageError
from lockstep.options import path_of, truth_of
from lockstep.recorder import warn
from lockstep.recordings import Call, RankRecording
from lockstep_interop_names.faces.api_calls import ApiNumbers, ApiPass, passes_of
from lockstep_interop_names.faces.hdf5_passes import Hdf5Pass, h5py, hdf5_pass, write_hdf5
from lockstep_interop_names.faces.loaded_inputs import LoadedInputs
from lockstep_interop_names.faces.overflows import entered_sentence, overflow_words, overflows_in
from lockstep_interop_names.faces.told import told
from lockstep_interop_names.faces.window import Window


class Dumper:
    """One such block; what cannot be dumped is said, and the block runs as it would without.

    Parameters
    ----------
    use_dump
        Whether the file is written.
    use_load
        Whether operators run on the inputs of `load_file_path`; as where that is given.
    dump_path
        The `.h5`, or a folder for one that is named after the time.
    load_file_path
        An `.h5` of another run.
    load_with_acl_dump
        Is refused: that is a dump of the vendor's runtime.
    check_overflow
        Whether operators that make NaN or infinite numbers are named, and the file holds those alone.
    """

    def __init__(
        self,
        use_dump: bool = False,
        use_load: bool = False,
        dump_path: str | os.PathLike[str] = "",
        load_file_path: str | os.PathLike[str] = "",
        load_with_acl_dump: bool = False,
        check_overflow: bool = False,
    ) -> None:
        self._asked = use_dump or use_load or check_overflow or bool(load_file_path)
        self._path, self._load = dump_path, load_file_path
        self._acl, self._overflows = load_with_acl_dump, check_overflow
        self._window: Window | None = None
        self._loaded: LoadedInputs | None = None
        self._file = Path()

    def __enter__(self) -> Dumper:
        self._begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    @told
    def _begin(self) -> None:
        if not truth_of("use_dump", self._asked):
            return
        if self._acl:
            raise UsageError(
                "load_with_acl_dump is a dump of the vendor's runtime, which Lockstep has not; leave it out"
            )
        self._file = _file_of(path_of("dump_path", self._path or ".")).absolute()
        h5py(self._file)
        self._loaded = LoadedInputs(path_of("load_file_path", self._load)) if self._load else None
        window = Window(self._file.with_suffix(".recording"), self._write)
        window.begin()
        self._window = window

    @told
    def _end(self) -> None:
        window, self._window = self._window, None
        if window is not None:
            window.end()

    def _write(self, _: Path, rank: RankRecording) -> None:
        file = (
            self._file
            if rank.name == "rank0"
            else self._file.with_stem(f"{self._file.stem}_{rank.name}")
        )
        loaded = self._loaded
        count = write_hdf5(file, self._passes(rank, loaded))
        said = ""
        if loaded is not None:
            said = f"; {loaded.ran} passes ran on inputs of {self._load}, {loaded.kept} stand as they ran here"
        warn(
            f"{file}: {count} tensors are dumped{said}{''.join(f'; {one}' for one in rank.missing)}"
        )

    def _passes(self, rank: RankRecording, loaded: LoadedInputs | None) -> Iterator[Hdf5Pass]:
        numbers, number = ApiNumbers(), 0
        for step in rank.steps:
            calls = rank.calls(step)
            passes: Iterator[ApiPass] = passes_of(calls, numbers)
            for one in self._overflowing(passes, calls, step) if self._overflows else passes:
                number += 1
                yield hdf5_pass(one, number) if loaded is None else loaded.again(one, number)
            rank.close_tensors()

    @staticmethod
    def _overflowing(
        passes: Iterator[ApiPass], calls: Sequence[Call], step: int
    ) -> Iterator[ApiPass]:
        seen = list(passes)
        if (entered := entered_sentence(seen, step)) is not None:
            warn(entered)
        for one in overflows_in(seen, calls):
            warn(overflow_words(one, step))
            yield one


def _file_of(path: Path) -> Path:
    if path.suffix in (".h5", ".hdf5"):
        return path
    return path / f"{datetime.now():%Y%m%d_%H%M%S.%f}.h5"
