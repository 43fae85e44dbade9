"""Table of the runs' notes: what was dropped, guessed, chosen or looks wrong."""

from pomona.core.notes import Note
from pomona.core.table import PLACEHOLDER, Table
from pomona.results.run_numbers import Run


def notes(runs: list[Run]) -> Table:
    """Return one row per distinct note, with its runs if there are several."""
    labels: dict[Note, list[str]] = {}
    for run in runs:
        for note in run.result.notes:
            labels.setdefault(note, []).append(run.label)
    several = len(runs) > 1
    rows = []
    for note, names in labels.items():
        number = PLACEHOLDER if note.round is None else str(note.round)
        shared_by = "all" if len(names) == len(runs) else ", ".join(names)
        rows.append([note.topic, number, *([shared_by] * several), note.text])
    header = ["About", "Round", *["Runs"] * several, "Note"]
    return Table("notes", "Notes", [], header, rows, (0, 2, 3))
