"""Tables for single tasks: masks, times to an event, multi-label."""

from collections.abc import Iterator, Sequence
from typing import Any

from pomona.core.errors import with_extra
from pomona.core.table import PLACEHOLDER, Table
from pomona.metrics.metric import METRICS
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.predictions import Answers
from pomona.results.run_numbers import Run, leader, records
from pomona.results.tables.outcomes import MOST_ROWS, cell, outcome_names, with_interval
from pomona.results.wording import capital
from pomona.tasks import TASKS
from pomona.tasks.scores import compute

PIXELS = (
    "Distances are in pixels, over the test images with the class in truth and in prediction; a "
    "surface counts as matched within one pixel."
)
NO_DISTANCES = f"Distances between surfaces need MONAI: {with_extra('monai')}, and run again."


OF_LABELS = ("auroc", "auprc", "balanced_accuracy")
OF_TIMES = tuple(name for name in TASKS["survival"].measures if name != "loss")


def survival_table(runs: list[Run]) -> list[Table]:
    """Return the metrics of the leading run's clients, with the worst in a separate row; none for
    other tasks.
    """
    run = leader(
        [run for run in runs if run.result.about.get("targets") == "survival" and records(run)]
    )
    if run is None:
        return []
    by_client = records(run)
    note = (
        f"{run.label}, {run.model}: each client's own test samples, with 95 % intervals. "
        "Both C-indices and the AUROC are 0.5 for guessing, 1 at best; the integrated Brier score "
        "is 0.25 for a constant one half, 0 at best. Probabilities of censoring are estimated on "
        "these samples."
    )
    header = ["Client", "Test samples", "Events", *(capital(METRICS[k].heading) for k in OF_TIMES)]
    rows = [
        [run.client(int(r["client"])), f"{r['samples']:,}", f"{r.get('events', 0):,}"]
        + [cell(r, name) for name in OF_TIMES]
        for r in by_client
    ]
    worst = [METRICS[k].number(METRICS[k].worst(r.get(k) for r in by_client)) for k in OF_TIMES]
    rows.append(["worst client", "", "", *worst])
    return [Table("survival-by-client", "Survival by client", [note], header, rows, range(1))]


def labels(runs: list[Run]) -> Table:
    """Return for a multi-label task how well each label is distinguished, over the clients that
    have both values.
    """
    several = len(runs) > 1
    note = (
        "Each label separately, with the headline models on the clients' own test samples: the "
        "mean over the clients that have test samples with and without it."
    )
    header = ["Label", *["Run"] * several, "Cases", "Test samples", "Clients"]
    header += [capital(METRICS[name].heading) for name in OF_LABELS]
    rows = [
        [name, *[run.label] * several, f"{positives:,}", f"{n:,}", str(clients), *figures]
        for run in runs
        if run.result.about.get("targets") == "multilabel"
        for name, positives, n, clients, figures in _labels(run)
    ]
    return Table("label-by-label", "Label by label", [note], header, rows, range(1 + several))


def _labels(run: Run) -> Iterator[tuple[str, int, int, int, list[str]]]:
    """Yield (name, test samples with it, test samples, clients that define it, metrics) of each
    label.
    """
    clients = range(run.result.clients)
    answers = [answer for client in clients if (answer := run.result.predictions(client))]
    if not answers:
        return
    count = answers[0][1].shape[1]
    recorded = [str(name) for name in run.result.about.get("labels") or ()]
    names = recorded if len(recorded) == count else [f"label {k}" for k in range(count)]
    for k, name in enumerate(names):
        yield name, *_label([(outputs[:, [k]], truth[:, [k]]) for outputs, truth in answers])


def _label(clients: Sequence[Answers]) -> tuple[int, int, int, list[str]]:
    """Return a label's numbers from the clients' outputs and targets (n, 1)."""
    task = TASKS["multilabel"]
    figures = {
        metric: [compute(metric, *answer, task) for answer in clients] for metric in OF_LABELS
    }
    cases = sum(int((truth > 0.5).sum()) for _, truth in clients)
    samples = sum(len(truth) for _, truth in clients)
    defined = sum(value is not None for value in figures[OF_LABELS[0]])
    texts = [METRICS[metric].number(mean_of_known(values)) for metric, values in figures.items()]
    return cases, samples, defined, texts


def regions(runs: list[Run]) -> Table:
    """Return metrics by client and foreground class for the leading run with masks; no rows without
    one.
    """
    run = leader([run for run in runs if run.result.about.get("targets") == "segmentation"])
    by_class = list(_rows(run)) if run else []
    measured = any("hd95" in figures for _, _, _, figures in by_class)
    model = f"{run.label}, {run.model}" if run else ""
    source = f"{model}: each client's own test images, with 95 % intervals."
    exclusion = "A class in neither truth nor prediction of an image is left out of its means."
    notes = [source, exclusion, PIXELS if measured else NO_DISTANCES]
    header = ["Client", "Class", "Test images with it", "Dice", "IoU"]
    header += ["95 % Hausdorff distance", "Surface Dice"] if measured else []
    rows = []
    for client, name, k, figures in by_class[:MOST_ROWS]:
        dice = with_interval(figures["dice"][k], figures["dice_interval"][k])
        iou = with_interval(figures["iou"][k], None)
        distances = [_number(figures, key, k, digits) for key, digits in DISTANCES.items()]
        row = [client, name, f"{figures['seen'][k]:,}", dice, iou, *distances]
        rows.append(row[: len(header)])
    return Table("regions", "Class by class", notes, header, rows, range(2))


DISTANCES = {"hd95": 1, "surface_dice": 3}


def _rows(run: Run) -> Iterator[tuple[str, str, int, dict[str, Any]]]:
    """Yield (client, class, its number, the client's metrics) of the headline model."""
    for record in records(run):
        figures = record.get("regions") or {}
        names = outcome_names(run, len(figures.get("dice") or ()))
        for k in range(1, len(figures.get("dice") or ())):
            yield run.client(int(record["client"])), names[k], k, figures


def _number(figures: dict[str, Any], key: str, k: int, digits: int) -> str:
    values = figures.get(key) or ()
    return PLACEHOLDER if k >= len(values) or values[k] is None else f"{values[k]:.{digits}f}"
