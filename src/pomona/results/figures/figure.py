"""A figure with its text and numbers, and the folder that contains the figures of one page."""

import json
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pomona.core.bounds import parse
from pomona.core.errors import ConfigError, StorageError
from pomona.core.files import anew, content, own
from pomona.core.table import csv_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Rows: TypeAlias = list[Mapping[str, Any]]

DRAWINGS = {"png": "Creation Time", "svg": "Date", "pdf": "CreationDate"}
"""Formats of the drawing, with the metadata for the date, which is omitted so that files are
reproducible.
"""
FORMS = (*DRAWINGS, "csv")
INDEX = "index.json"
"""List of files written by the report; no other files are ever deleted."""


def forms(text: str) -> tuple[str, ...]:
    """Parse the formats in a list such as ``svg,pdf``, each once, in the order of ``FORMS``; none
    for an empty list.

    Raises:
        ConfigError: an unknown format.
    """
    given = {form.strip().lower() for form in text.split(",") if form.strip()}
    if unknown := sorted(given - set(FORMS)):
        raise ConfigError(
            f"figures are written as {', '.join(FORMS)}; unknown: {', '.join(unknown)}"
        )
    return tuple(form for form in FORMS if form in given)


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the report.

    Attributes:
        name: file name without suffix, unique in a report.
        title: heading.
        caption: content of the figure and how to read it.
        alt: text alternative for readers who cannot see it.
        figure: the drawing.
        rows: the numbers drawn, one mapping per row of the CSV, all with the same keys.
    """

    name: str
    title: str
    caption: str
    alt: str
    figure: "Figure"
    rows: Rows

    def save(self, folder: Path, forms: Sequence[str] = FORMS) -> None:
        """Write the figure in some ``FORMS`` into a folder."""
        for form in forms:
            path = anew(folder / f"{self.name}.{form}")
            path.write_text(csv_text(self.rows), encoding="utf-8") if form == "csv" else self.draw(
                path, form
            )

    def png(self) -> str:
        """Return the drawing for a self-contained page: a PNG in a data address."""
        drawn = BytesIO()
        self.draw(drawn, "png")
        return f"data:image/png;base64,{b64encode(drawn.getvalue()).decode('ascii')}"

    def draw(self, out: Path | BytesIO, form: str) -> None:
        """Write the drawing in one of ``DRAWINGS``, on white, for use in slides and papers."""
        self.figure.savefig(
            out, format=form, dpi=150, facecolor="white", metadata={DRAWINGS[form]: None}
        )
        # The layout of the first drawing is reused for the others.
        self.figure.set_layout_engine("none")


def save(pictures: Sequence[ReportFigure], folder: Path, forms: Sequence[str] = FORMS) -> None:
    """Save all pictures in some formats, then delete files of earlier calls that were not written
    again.

    Raises:
        OSError: the folder cannot be created or written.
        StorageError: it is a link, so that files of another folder would be replaced.
    """
    own(folder.parent, folder.name).mkdir(parents=True, exist_ok=True)
    new = {f"{picture.name}.{form}": picture.title for picture in pictures for form in forms}
    old = listed(folder)
    # Both lists, until the old files are deleted: a kill in between leaves no unlisted file.
    _list(folder, dict.fromkeys(old, "") | new)
    for picture in pictures:
        picture.save(folder, forms)
    for name in old - new.keys():
        (folder / name).unlink(missing_ok=True)
    _list(folder, new)


def listed(folder: Path) -> set[str]:
    """Return the names of figure files in the list; anything else in it is ignored."""
    try:
        names = parse(content(folder / INDEX), StorageError)
    except (OSError, StorageError):
        return set()
    return (
        {n for n in names if re.fullmatch(rf"[a-z0-9-]+\.({'|'.join(FORMS)})", n)}
        if isinstance(names, dict)
        else set()
    )


def _list(folder: Path, names: dict[str, str]) -> None:
    text = json.dumps(names, indent=2, ensure_ascii=False) + "\n"
    anew(folder / INDEX).write_text(text, encoding="utf-8")
