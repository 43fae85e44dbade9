"""The table of a task with masks: overlap and distances of each class, client by client."""

from collections.abc import Iterator
from typing import Any

from pomona.core.errors import with_extra
from pomona.core.table import NOTHING, Table
from pomona.metrics.metric import METRICS
from pomona.results.run_numbers import Run, leader, records
from pomona.results.tables.outcomes import MOST_ROWS, with_interval

PIXELS = (
    "Distances are in pixels, over the test images that both have and claim the class; a surface counts as found "
    "within one pixel."
)
NO_DISTANCES = f"Distances between surfaces need MONAI: {with_extra('monai')}, and run again."


def regions(runs: list[Run]) -> Table:
    """Figures of each client and class but the background, of the leading run with masks; no rows without one."""
    run = leader([run for run in runs if run.result.about.get("targets") == "segmentation"])
    found = list(_rows(run)) if run else []
    measured = any("hd95" in figures for _, _, _, figures in found)
    of = f"{run.label}, {run.model}: each client's own test images, with 95 % intervals." if run else ""
    left_out = "A class that an image neither has nor is given is left out of that image's means."
    return Table(
        "regions",
        "Class by class",
        [of, left_out, PIXELS if measured else NO_DISTANCES],
        [
            "Client",
            "Class",
            "Test images with it",
            METRICS["dice"].heading,
            METRICS["iou"].heading,
            *(["95 % Hausdorff distance", "Surface Dice"] if measured else []),
        ],
        [
            [
                client,
                name,
                f"{figures['seen'][k]:,}",
                with_interval(figures["dice"][k], figures["dice_interval"][k]),
                with_interval(figures["iou"][k], None),
                *((_number(figures, key, k, digits) for key, digits in DISTANCES.items()) if measured else ()),
            ]
            for client, name, k, figures in found[:MOST_ROWS]
        ],
        range(2),
    )


DISTANCES = {"hd95": 1, "surface_dice": 3}


def _rows(run: Run) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """(client, class, its number, the client's figures) of the headline model."""
    names = [str(name) for name in run.result.about.get("classes") or ()]
    for record in records(run):
        figures = record.get("regions") or {}
        for k in range(1, len(figures.get("dice") or ())):
            name = names[k] if k < len(names) else f"class {k}"
            yield run.client(int(record["client"])), name, k, figures


def _number(figures: dict[str, Any], key: str, k: int, digits: int) -> str:
    values = figures.get(key) or ()
    return NOTHING if k >= len(values) or values[k] is None else f"{values[k]:.{digits}f}"
