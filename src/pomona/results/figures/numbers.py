"""The table of the numbers that a figure draws."""

from dataclasses import replace

import numpy as np

from pomona.core.table import Table, of_records
from pomona.results.figures.plot import ReportFigure, Rows

MOST_CELLS = 600
"""More numbers than this are thinned: rounds first, then rows."""


def numbers(picture: ReportFigure) -> Table:
    """Return the figure's numbers; columns that never change are a note."""
    rows = _thinned(picture.rows)
    constant = _constants(rows)
    notes = [", ".join(constant.values())] if constant else []
    if len(rows) < len(picture.rows):
        notes.append(
            f"{len(rows):,} of {len(picture.rows):,} rows; pomona report with --figures csv writes "
            f"all to figures/{picture.name}.csv."
        )
    changing = [{k: v for k, v in row.items() if k not in constant} for row in rows]
    return replace(of_records(changing, picture.title, notes), name=f"numbers-{picture.name}")


def _constants(rows: Rows) -> dict[str, str]:
    """Return column -> "name: value" of columns with one value in several rows."""
    if len(rows) < 2:
        return {}
    names = [name for name in rows[0] if len({row[name] for row in rows}) == 1]
    shown = of_records([{name: rows[0][name] for name in names}])
    pairs = zip(names, shown.header, shown.rows[0], strict=True)
    return {name: f"{heading}: {value}" for name, heading, value in pairs}


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
