"""A figure with its words and numbers, and the files it is saved as: PNG, SVG and PDF, and its numbers as CSV."""

from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from pomona.core.table import csv_text
from pomona.storage.atomic_io import anew

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows: TypeAlias = list[Mapping[str, Any]]

DRAWINGS = {"png": "Creation Time", "svg": "Date", "pdf": "CreationDate"}
"""The forms of the drawing, and the metadata that would give each the date: no two files of a figure differ."""
FORMS = (*DRAWINGS, "csv")


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

    def save(self, folder: Path) -> None:
        """Write the figure in all ``FORMS`` into a folder."""
        self.draw(folder)
        self.csv(folder)

    def draw(self, folder: Path) -> None:
        """Write the drawing in all ``DRAWINGS`` into a folder, on white: they travel into slides and papers."""
        for form, dated in DRAWINGS.items():
            path = anew(folder / f"{self.name}.{form}")
            self.figure.savefig(path, dpi=150, facecolor="white", metadata={dated: None})
            # The places of the first drawing are those of the others.
            self.figure.set_layout_engine("none")

    def png(self) -> str:
        """The drawing as it stands in a page that needs no other file: a PNG in a data address."""
        drawn = BytesIO()
        self.figure.savefig(drawn, format="png", dpi=150, facecolor="white", metadata={"Creation Time": None})
        self.figure.set_layout_engine("none")
        return f"data:image/png;base64,{b64encode(drawn.getvalue()).decode('ascii')}"

    def csv(self, folder: Path) -> None:
        """Write ``NAME.csv`` into a folder."""
        anew(folder / f"{self.name}.csv").write_text(csv_text(self.rows), encoding="utf-8")
