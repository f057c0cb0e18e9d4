"""What a comparison shows in Python: one line, text, a table in a notebook, data frames, a report.

This package knows no report and no data frame: `lockstep.report` registers the `Face` that makes them.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from lockstep.core.errors import UsageError

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl

Shown_contra = TypeVar("Shown_contra", contravariant=True)


class Face(Protocol[Shown_contra]):
    """Makes everything that a comparison (`core.finding.Comparison`) shows of itself."""

    def line(self, comparison: Shown_contra) -> str:
        """Return the verdict with its place."""
        ...

    def text(self, comparison: Shown_contra) -> str:
        """Return the text that `lockstep compare` prints."""
        ...

    def html(self, comparison: Shown_contra) -> str:
        """Return a table with the headline."""
        ...

    def frame(self, comparison: Shown_contra, *, short: bool) -> pl.DataFrame:
        """Return a row per pair; a `short` one has the columns that people read."""
        ...

    def write(self, comparison: Shown_contra, path: Path, *, force: bool) -> None:
        """Write a report in the format of the path's suffix."""
        ...


class Shown:
    """The methods of a `Comparison` that show it."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"<Comparison {_face().line(self)}>"

    def __str__(self) -> str:
        """Return the text that `lockstep compare` prints."""
        return _face().text(self)

    def _repr_html_(self) -> str:
        """Return a table for a notebook, below the headline."""
        return _face().html(self)

    @property
    def pairs(self) -> pl.DataFrame:
        """The pairs of tensors as a short table to read, the worst first.

        A row per pair: step, rank, phase, module, op, tensor, difference (relative L2), tolerance, margin (how many
        times the tolerance the difference is), cosine, max_abs, outcome, kind, origin, source.

        Examples
        --------
        >>> comparison.pairs.head(10)  # doctest: +SKIP
        """
        return _face().frame(self, short=True)

    def to_polars(self) -> pl.DataFrame:
        """Return everything that is known of the pairs of tensors, in the order in which they were compared.

        Returns
        -------
        polars.DataFrame
            A row per pair, with the columns of `lockstep compare --csv` under names of their own: `rel_l2`, `max_abs`,
            `reference_dtype` ... Numbers that are not known are null.

        Examples
        --------
        >>> comparison.to_polars().filter(pl.col("origin"))  # doctest: +SKIP
        """
        return _face().frame(self, short=False)

    def to_pandas(self) -> pd.DataFrame:
        """Return the table of `to_polars` as a pandas data frame.

        Raises UsageError if pandas is not installed; Lockstep does not need it otherwise.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise UsageError(
                "to_pandas needs pandas; pip install pandas, or use to_polars"
            ) from error
        table = self.to_polars()
        return pd.DataFrame({column.name: column.to_list() for column in table})

    def report(self, path: str | PathLike[str], *, force: bool = False) -> Path:
        """Write this comparison to a file in the format of its suffix.

        Parameters
        ----------
        path
            A name that ends in .html (the page of `lockstep report`), .md, .csv, .xlsx, .json or .trace.json.
        force
            Whether a file that is there is replaced.

        Returns
        -------
        pathlib.Path
            The file.

        Raises
        ------
        UsageError
            If the suffix is of no format, or the folder does not exist.
        OutputExistsError
            If the file is there already, or cannot be written.
        RecordingError
            If a page is asked for, and a recording is no longer there.

        Examples
        --------
        >>> comparison.report("comparison.html")  # doctest: +SKIP
        """
        _face().write(self, Path(path), force=force)
        return Path(path)


_registered: list[Face[Any]] = []


def show_comparisons_by(face: Face[Any]) -> None:
    """Register what makes the parts that a comparison shows."""
    _registered[:] = [face]


class _Alone:
    """The face of a comparison where `lockstep.report` was not loaded: the verdict."""

    def line(self, comparison: Any) -> str:
        return f"{comparison.verdict.name}: {comparison.reference} / {comparison.candidate}"

    text = html = line

    def frame(self, comparison: Any, *, short: bool) -> Any:
        raise UsageError(_LOAD_IT)

    def write(self, comparison: Any, path: Path, *, force: bool) -> None:
        raise UsageError(_LOAD_IT)


_LOAD_IT = "tables and reports need `import lockstep.report.comparison.in_python` first"


def _face() -> Face[Any]:
    return _registered[0] if _registered else _Alone()
