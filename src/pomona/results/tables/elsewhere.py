"""Each client's model on the other clients' test rows, in a table and a sentence."""

from functools import lru_cache

from pomona.core.table import PLACEHOLDER, Table
from pomona.record.elsewhere import Elsewhere, read
from pomona.results.gain_presentation import client_names, value_and_interval
from pomona.results.run_numbers import Run
from pomona.results.wording import capital


@lru_cache(maxsize=64)
def evaluations(run: Run) -> Elsewhere | None:
    """Return a run's evaluations elsewhere, if they are on file and of its last models.

    Raises StorageError for a damaged file.
    """
    recorded = read(run.result)
    return recorded if recorded and recorded.rounds == len(run.result.rounds) else None


def headings(run: Run) -> list[str]:
    """Return the headings of ``cells``; none without evaluations on file."""
    if evaluations(run) is None:
        return []
    return [f"{capital(run.metric.heading)} elsewhere", "Gain over the other clients' own models"]


def cells(run: Run, client: int) -> list[tuple[str, str]]:
    """Return a client's mean score on the others' test rows, and its gain there over those clients'
    own models, each with its small print.
    """
    scores, metric = evaluations(run), run.metric
    if scores is None:
        return []
    gain = scores.gains[client]
    return [
        (metric.number(scores.means()[client]), ""),
        value_and_interval(metric, gain) if gain else (PLACEHOLDER, ""),
    ]


def elsewhere_table(run: Run) -> Table:
    """Return the clients of a run whose evaluations are on file: scores on their own test rows, and
    elsewhere.
    """
    scores = evaluations(run)
    assert scores
    rows = [
        [
            run.client(i),
            run.metric.number(scores.scores[i][i]),
            *(f"{value} ({small})" if small else value for value, small in cells(run, i)),
        ]
        for i in range(run.result.clients)
    ]
    note = (
        f"{run.label}: each client's model on its own test rows, and on the other clients', "
        "averaged over these; gains with 95 % intervals."
    )
    header = ["Client", capital(run.metric.heading), *headings(run)]
    notes = [note, verdict(run), *scores.notes]
    return Table("elsewhere", "Elsewhere", notes, header, rows, range(1))


def verdict(run: Run) -> str:
    """Name the models that fail elsewhere, with the rule."""
    scores = evaluations(run)
    assert scores
    tested = [gain for gain in scores.gains if gain and gain.p is not None]
    if not tested:
        return "Whether a model fails elsewhere is unknown: there are no intervals."
    margin = (
        f" by more than {run.metric.gap(tested[0].margin).lstrip('+')}" if tested[0].margin else ""
    )
    rule = (
        f"worse{margin} on the other clients' test rows than those clients' own models (95 %, "
        f"corrected for {len(tested)} models)"
    )
    if failing := scores.failing:
        every = len(failing) == len(tested) > 1
        owners = f"all {len(failing)} clients" if every else client_names(run, failing)
        subject = f"models of {owners} fail" if len(failing) > 1 else f"model of {owners} fails"
        return f"Elsewhere, the {subject}: {rule}."
    return f"No model is shown to fail elsewhere, that is, to be {rule}."
