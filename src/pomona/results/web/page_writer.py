"""Shared by all pages: rendering of templates, the numbers of a figure as a table, and writing a
page with its files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup

from pomona.core.files import publish, writing
from pomona.core.table import PLACEHOLDER, Table, of_records
from pomona.results.figures.inline_svg import inline_svg
from pomona.results.figures.plot import ReportFigure, Rows, save
from pomona.results.method_colours import COLOURS

FIGURES = "figures"
"""Folder of figures next to a page."""


WEB = "pomona.results.web"
"""Package of templates shared by all pages."""


def render(template: str, package: str = WEB, **context: Any) -> str:
    """Render a template of a package as HTML; undefined names are errors.

    It may extend templates in ``WEB``.
    """
    return str(_templates(package).get_template(template).render(context))


@cache
# jinja2.Environment; compiling templates is slower than rendering them
def _templates(package: str) -> Any:
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=ChoiceLoader([PackageLoader(name, ".") for name in (package, WEB)]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"unbroken": unbroken, "inline_svg": inline_svg, "numbers": numbers}
    environment.globals["colours"] = COLOURS
    return environment


def unbroken(text: str) -> Markup:
    """Mark up a text so that words with a hyphen are not broken if they fit a line: FedAvg-FT is
    one name.
    """
    span = Markup('<span class="whole">{}</span>')
    return Markup(" ").join(
        span.format(token) if "-" in token else token for token in text.split(" ")
    )


def write_page(
    folder: Path,
    texts: Mapping[str, str],
    figures: Sequence[ReportFigure] = (),
    formats: Sequence[str] = (),
) -> Path:
    """Write figures and then texts by their file names, each text atomically.

    Args:
        folder: the folder; created if missing.
        texts: the page comes last.
        figures: written as files in the folder of figures, replacing those of an earlier call.
        formats: the formats of each figure; with none the folder is unchanged.

    Returns:
        The path of the page.

    Raises:
        StorageError: the folder cannot be written.
    """
    with writing(folder):
        if figures and formats:
            save(figures, folder / FIGURES, formats)
        return [publish(folder / name, [text.encode()]) for name, text in texts.items()][-1]


MOST_CELLS = 600
"""More numbers than this are thinned: rounds first, then rows."""


def numbers(picture: ReportFigure) -> Table:
    """Return the figure's numbers; columns that never change are a note."""
    rows = _thinned(picture.rows)
    constant = _constants(rows)
    notes = [text] if (text := ", ".join(filter(None, constant.values()))) else []
    if len(rows) < len(picture.rows):
        notes.append(
            f"{len(rows):,} of {len(picture.rows):,} rows; pomona report with --figures csv writes "
            f"all to figures/{picture.name}.csv."
        )
    changing = [{k: v for k, v in row.items() if k not in constant} for row in rows]
    return replace(of_records(changing, picture.title, notes), name=f"numbers-{picture.name}")


def _constants(rows: Rows) -> dict[str, str]:
    """Return column -> "name: value" of columns with one value in several rows; empty for None."""
    if len(rows) < 2:
        return {}
    names = [name for name in rows[0] if len({row[name] for row in rows}) == 1]
    shown = of_records([{name: rows[0][name] for name in names}])
    pairs = zip(names, shown.header, shown.rows[0], strict=True)
    return {name: "" if value == PLACEHOLDER else f"{head}: {value}" for name, head, value in pairs}


def _thinned(rows: Rows) -> Rows:
    """Return rows of at most ``MOST_CELLS`` numbers: of evenly spaced rounds, or the first ones."""
    most = max(1, MOST_CELLS // len(rows[0])) if rows else 0
    rounds = sorted({row["round"] for row in rows if "round" in row})
    thinned = rounds
    while len(rows) > most and len(thinned) > 2:
        spaced = np.linspace(0, len(rounds) - 1, max(2, len(thinned) // 2)).round().astype(int)
        thinned = [rounds[k] for k in spaced]
        rows = [row for row in rows if row["round"] in set(thinned)]
    return rows[:most]
