"""A figure with its words and numbers, and the files it is saved as: PNG, SVG and PDF, and its numbers as CSV."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pomona.core.errors import ConfigError
from pomona.core.table import csv_text
from pomona.storage.atomic_io import anew

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows: TypeAlias = list[Mapping[str, Any]]

DRAWINGS = {"png": "Creation Time", "svg": "Date", "pdf": "CreationDate"}
"""The forms of the drawing, and the metadata that would give each the date: no two files of a figure differ."""
FORMS = (*DRAWINGS, "csv")


def forms(text: str) -> tuple[str, ...]:
    """The forms in a list such as ``svg,pdf``, each once, in the order of ``FORMS``; none for an empty one.

    Raises:
        ConfigError: one of them is unknown.
    """
    given = {form.strip().lower() for form in text.split(",") if form.strip()}
    if unknown := sorted(given - set(FORMS)):
        raise ConfigError(f"figures are written as {', '.join(FORMS)}; unknown: {', '.join(unknown)}")
    return tuple(form for form in FORMS if form in given)


@dataclass(frozen=True)
class ReportFigure:
    """A figure of the report.

    Attributes:
        name: file name without suffix, unique in a report.
        title: heading.
        caption: what is drawn and how to read it.
        alt: what it shows, for those who do not see it.
        figure: the drawing.
        rows: the numbers drawn, one mapping a row of the CSV, all with the same keys.
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
            path.write_text(csv_text(self.rows), encoding="utf-8") if form == "csv" else self.draw(path, form)

    def png(self) -> str:
        """The drawing as it stands in a page that needs no other file: a PNG in a data address."""
        drawn = BytesIO()
        self.draw(drawn, "png")
        return f"data:image/png;base64,{b64encode(drawn.getvalue()).decode('ascii')}"

    def draw(self, out: Path | BytesIO, form: str) -> None:
        """Write the drawing in one of ``DRAWINGS``, on white: it travels into slides and papers."""
        self.figure.savefig(out, format=form, dpi=150, facecolor="white", metadata={DRAWINGS[form]: None})
        # The places of the first drawing are those of the others.
        self.figure.set_layout_engine("none")
