"""The table of a task with several labels a sample: how well each label is told apart by itself."""

from collections.abc import Iterator

from pomona.core.table import Table
from pomona.metrics.metric import METRICS
from pomona.metrics.nan_safe import mean_of_known
from pomona.results.run_numbers import Run
from pomona.results.wording import capital
from pomona.tasks import TASKS
from pomona.tasks.scores import compute

OF_LABELS = ("auroc", "auprc", "balanced_accuracy")


def labels(runs: list[Run]) -> Table:
    """Of a task with several labels a sample: how well each label is told apart, over the clients that have both."""
    several = len(runs) > 1
    return Table(
        "label-by-label",
        "Label by label",
        [
            "Each label by itself, with the headline models on the clients' own test samples: the mean over the "
            "clients that have test samples with and without it.",
        ],
        [
            "Label",
            *(["Run"] if several else []),
            "Cases",
            "Test samples",
            "Clients",
            *(capital(METRICS[name].heading) for name in OF_LABELS),
        ],
        [
            [name, *([run.label] if several else []), f"{ones:,}", f"{n:,}", str(clients), *figures]
            for run in runs
            if run.result.about.get("targets") == "multilabel"
            for name, ones, n, clients, figures in _labels(run)
        ],
        range(1 + several),
    )


def _labels(run: Run) -> Iterator[tuple[str, int, int, int, list[str]]]:
    """(name, test samples with it, test samples, clients that define it, figures) of each label."""
    everyone = range(len(run.result.about.get("clients") or ()))
    answers = [known for client in everyone if (known := run.result.predictions(client))]
    if not answers:
        return
    count = answers[0][1].shape[1]
    given = [str(name) for name in run.result.about.get("labels") or ()]
    for k, name in enumerate(given if len(given) == count else [f"label {k}" for k in range(count)]):
        cuts = [(outputs[:, [k]], truth[:, [k]]) for outputs, truth in answers]
        figures = {metric: [compute(metric, *cut, TASKS["multilabel"]) for cut in cuts] for metric in OF_LABELS}
        ones = sum(int((truth > 0.5).sum()) for _, truth in cuts)
        defined = sum(value is not None for value in figures[OF_LABELS[0]])
        texts = [METRICS[metric].number(mean_of_known(values)) for metric, values in figures.items()]
        yield name, ones, sum(len(truth) for _, truth in cuts), defined, texts
