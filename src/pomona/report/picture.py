"""A figure with its words and numbers, and the three forms in which it leaves: SVG for the page, PNG, CSV."""

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from markupsafe import Markup

from pomona.report.style import INK

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows: TypeAlias = list[Mapping[str, Any]]


def slug(name: str) -> str:
    """A name as it may stand in a file name, an address or an id."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "unnamed"


@dataclass(frozen=True)
class Picture:
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

    @property
    def width(self) -> int:
        """The natural width of the drawing in CSS pixels."""
        return round(96 * float(self.figure.get_figwidth()))

    @cached_property
    def svg(self) -> Markup:
        """The drawing as an element to put into a page: own ids, the page's text colour, no namespaces or metadata."""
        buffer = io.StringIO()
        self.figure.savefig(buffer, format="svg", dpi=120, transparent=True, metadata={"Date": None})
        # The layout stands now; to solve it again for the PNG would take as long as all the drawing.
        self.figure.set_layout_engine("none")
        text = buffer.getvalue()
        box = re.search(r'viewBox="[^"]*"', text)
        assert box is not None
        body = text[text.index(">", text.index("<svg")) + 1 :]
        body = re.sub(r"<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", body, flags=re.DOTALL)
        used = set(re.findall(r'(?:url\(#|xlink:href="#)([^)"]*)', body))
        body = re.sub(r'\bid="([^"]*)"', lambda name: name[0] if name[1] in used else "", body)
        body = re.sub(r'\bid="|url\(#|xlink:href="#', rf"\g<0>{self.name}-", body).replace("xlink:href", "href")
        body = body.replace("-DejaVuSans-", "-")
        # Two decimals of a point are finer than any screen; transforms keep theirs.
        body = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), body)
        body = re.sub(r"\n\s*", "\n", body).replace(INK, "currentColor")
        return Markup(  # noqa: S704 - drawn by matplotlib, and the words are escaped
            f'<svg role="img" aria-label="{escape(self.alt)}" {box[0]} '
            f'style="stroke-linejoin: round; stroke-linecap: butt">{body}'
        )

    def save(self, folder: Path) -> None:
        """Write ``NAME.png`` and ``NAME.csv`` into a folder."""
        self.png(folder)
        self.csv(folder)

    def png(self, folder: Path) -> None:
        """Write ``NAME.png`` into a folder, on white: it travels into slides."""
        self.figure.savefig(folder / f"{self.name}.png", dpi=150, facecolor="white")

    def csv(self, folder: Path) -> None:
        """Write ``NAME.csv`` into a folder."""
        with (folder / f"{self.name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=list(self.rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
