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
    first = rows[0] if rows else {}
    constant = [k for k in first if len(rows) > 1 and len({row[k] for row in rows}) == 1]
    (constants,) = of_records([{k: first[k] for k in constant}]).rows
    names = [column.replace("_", " ") for column in constant]
    notes = [", ".join(f"{k}: {v}" for k, v in zip(names, constants, strict=True))] if names else []
    if len(rows) < len(picture.rows):
        notes.append(
            f"{len(rows):,} of {len(picture.rows):,} rows; pomona report with --figures csv writes "
            f"all to figures/{picture.name}.csv."
        )
    changing = [{k: v for k, v in row.items() if k not in constant} for row in rows]
    return replace(of_records(changing, picture.title, notes), name=f"numbers-{picture.name}")


def _thinned(rows: Rows) -> Rows:
    """Return rows of at most ``MOST_CELLS`` numbers: of evenly spaced rounds, or the first ones."""
    most = max(1, MOST_CELLS // len(rows[0])) if rows else 0
    rounds = sorted({row["round"] for row in rows if "round" in row})
    kept = rounds
    while len(rows) > most and len(kept) > 2:
        spaced = np.linspace(0, len(rounds) - 1, max(2, len(kept) // 2)).round().astype(int)
        kept = [rounds[k] for k in spaced]
        rows = [row for row in rows if row["round"] in set(kept)]
    return rows[:most]
