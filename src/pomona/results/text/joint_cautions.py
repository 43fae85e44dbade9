"""Cautions of several runs that are read together."""

from collections.abc import Collection, Iterator

import numpy as np

from pomona.metrics.metric import ACCURACY
from pomona.results.figures.classification import confusions
from pomona.results.gain_presentation import client_names, gained
from pomona.results.run_numbers import SEPARATE, Run, baseline, comparable, leader
from pomona.results.seeds import over_seeds
from pomona.results.text.narrative import REMEDY
from pomona.results.wording import listing

FEW_EVENTS = 10
"""Number of rarer answers among the test samples below which a client's own numbers are
unreliable.
"""
FEW_SAMPLES = 30
"""Number of test samples below which a client's own numbers are unreliable."""
MAX_NAMES = 6
"""Maximum number of clients named with their rarer answers, and of methods named together."""


def _without_baseline(runs: list[Run]) -> Iterator[str]:
    first = next((run for run in runs if run.mean is not None), None)
    if first and comparable(runs) and baseline(runs, first) is None:
        yield (
            "Training alone was not run, so it is unknown whether federation helps: run “separate” "
            "with the same data, partition and seed, and report them together."
        )


def mixed_rounds(runs: list[Run]) -> list[str]:
    """Return the caution on runs that are compared in rounds chosen in different ways, if any."""
    return [*_moments(over_seeds(runs))]


def _moments(runs: list[Run]) -> Iterator[str]:
    """Warn of comparing rounds that were chosen in different ways."""
    best = [run.label for run in runs if run.setting("keep") == "best"]
    last = [run.label for run in runs if run.setting("keep") != "best"]
    if best and last:
        yield (
            f"{listing(best)} {'is' if len(best) == 1 else 'are'} compared in the round best on "
            f"validation, {listing(last)} in the last: {REMEDY}."
        )


def _closest(runs: list[Run]) -> Iterator[str]:
    """Warn of two mean accuracies that a single answer could equalise."""
    means = [(run.mean, run) for run in runs if run.mean is not None and run.metric == ACCURACY]
    if len(means) < 2 or not comparable(runs):
        return
    (first, best), (second, runner_up) = sorted(means, key=lambda pair: -pair[0])[:2]
    sizes = _tested(best)
    client = min(sizes, key=sizes.__getitem__)
    if first - second < 1 / (len(sizes) * sizes[client]):
        yield (
            f"The means of {best.label} and {runner_up.label} are closer than one test sample: one "
            f"answer more or less on {best.client(client)} ({sizes[client]} samples) would "
            "equalise or reverse them."
        )


def _tested(run: Run) -> dict[int, int]:
    """Return the number of test samples of each client that has a value."""
    if run.reported is None:
        return {}
    rows = zip(run.reported.clients, run.reported.value, run.reported.samples, strict=True)
    return {client: n for client, value, n in rows if value is not None}


def few_events(runs: list[Run]) -> Iterator[str]:
    """Warn of clients with too few test samples in some run, or too few of the rarer answer.

    Only runs with the clients of the first run are checked.
    """
    run = next((run for run in runs if run.reported), None)
    if run is None:
        return
    clients = run.result.about["clients"]
    sizes = [
        (client, samples, r.units(client, samples))
        for r in runs
        if r.reported and r.result.about["clients"] == clients
        for client, samples in zip(r.reported.clients, r.reported.samples, strict=True)
    ]
    small = sorted({client for client, _, units in sizes if 0 < units < FEW_SAMPLES})
    if any(units < samples for _, samples, units in sizes):
        yield (
            "Test samples of one group (data.group_column) belong together, such as the rows of a "
            "patient: intervals are computed over groups; classes at a threshold have none."
        )
    if small:
        yield (
            f"Fewer than {FEW_SAMPLES} test samples come from {client_names(run, small)}: rely on "
            "intervals, where there are any, not on the numbers."
        )
    yield from _rare(run, small)
    yield from _rare_class(run)


def _rare(run: Run, small: Collection[int]) -> Iterator[str]:
    """Warn of clients with few test samples of the rarer of two answers; ``small``: clients
    already named.
    """
    counts = {c: matrix.sum(axis=1) for c, matrix in confusions(run) if len(matrix) == 2}
    if not counts:
        return
    rare = int(np.argmin(sum(counts.values())))
    few = {c: int(n[rare]) for c, n in counts.items() if c not in small and n[rare] < FEW_EVENTS}
    if few:
        classes = run.result.about.get("classes") or ()
        label = f"“{classes[rare]}”" if len(classes) == 2 else f"class {rare}"
        clients = listing([f"{run.client(c)} ({n})" for c, n in few.items()], MAX_NAMES)
        yield (
            f"Fewer than {FEW_EVENTS} test samples of {label} come from {clients}: these clients' "
            "own figures are uncertain."
        )


def _rare_class(run: Run) -> Iterator[str]:
    """Warn of a macro AUROC over classes of which some client has few test samples."""
    counts = {c: matrix.sum(axis=1) for c, matrix in confusions(run) if len(matrix) > 2}
    few = {c: int(n[n > 0].min()) for c, n in counts.items() if n.any()}
    few = {client: n for client, n in few.items() if n < FEW_EVENTS}
    if few and run.metric.name == "auroc":
        clients = listing([f"{run.client(c)} ({n})" for c, n in few.items()], MAX_NAMES)
        yield (
            f"Fewer than {FEW_EVENTS} test samples of a class are at {clients}: the AUROC gives "
            "this class the weight of any other, so do not order clients by it."
        )


def _picked(runs: list[Run]) -> Iterator[str]:
    """Warn that the best of several runs was selected on the data used to evaluate it."""
    judged = [run for run in runs if run.mean is not None and run.result.name != SEPARATE]
    best = leader(judged) if comparable(runs) else None
    base = baseline(runs, best) if best else None
    if best and base and len(judged) > 1 and gained(best, base).mean:
        yield (
            f"{best.label} was selected as the best of {len(judged)} runs on the test samples that "
            "also evaluate it: its gain is slightly optimistic."
        )


def _losses(runs: list[Run]) -> Iterator[str]:
    names = list(dict.fromkeys(run.loss for run in runs if run.loss))
    if len(names) > 1:
        yield (f"The runs minimise different losses ({listing(names)}), which cannot be compared.")


def one_seed(runs: list[Run]) -> Iterator[str]:
    """Warn that all runs use one seed."""
    if len(runs) > 1 and len({run.setting("seed") for run in runs}) == 1:
        yield (
            "All runs use one seed, so nothing here covers other initial models or partitions: "
            "repeat with other seeds."
        )


def _best_on_test(runs: list[Run]) -> Iterator[str]:
    if any(run.mean is not None for run in runs):
        papers = ""
        if any(run.metric == ACCURACY for run in runs):
            papers = ", the papers' BMCTA (best mean client test accuracy),"
        yield (
            f"“Best on test”{papers} chooses its round on the test data: it is comparable with "
            f"published tables, but optimistic."
        )


JOINT_CAUTIONS = (
    _without_baseline,
    _moments,
    _closest,
    few_events,
    _picked,
    _losses,
    _best_on_test,
)
"""Checks of several runs, most serious first."""
