"""Tables for some runs only: subgroups of samples by the values of a column, clients that did not
train, and epsilon.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.rng import stream
from pomona.core.table import PLACEHOLDER, Table
from pomona.metrics.influence import FEW
from pomona.metrics.intervals import Interval, intervals
from pomona.metrics.metric import Metric
from pomona.metrics.nan_safe import Array, mean_of_known
from pomona.privacy.settings import in_sums
from pomona.record.headline import headline
from pomona.record.rows import Evaluation
from pomona.results.gain_presentation import MINUS
from pomona.results.run_numbers import Run, leader, stage_name
from pomona.results.wording import capital, listing
from pomona.tasks import Task, task_of
from pomona.tasks.scores import measured

RESAMPLES = 2000


@dataclass(frozen=True)
class Pool:
    """All clients' test samples: predictions and targets (n, ...), and each sample's subgroup (n,).

    ``clustered``: whether several samples are of one group, which a bootstrap of samples would take
    for independent.
    """

    metric: Metric
    task: Task
    predictions: Array
    targets: NDArray[Any]
    subgroup: NDArray[np.int64]
    client: NDArray[np.int64]
    clustered: bool

    def cells(self, chosen: NDArray[np.bool_]) -> list[str]:
        """Format the metric of chosen samples, and its difference from the others', with intervals
        where the samples suffice.
        """
        sides = [(side, self.predictions[side], self.targets[side]) for side in (chosen, ~chosen)]

        def statistics(weights: Array) -> dict[str, Array]:
            inside, outside = (
                measured(self.metric, self.task, predictions, targets, weights[:, side])
                for side, predictions, targets in sides
            )
            return {"inside": inside, "outside": outside, "difference": inside - outside}

        unit_weights = np.ones((1, len(chosen)))
        value = {name: float(metric[0]) for name, metric in statistics(unit_weights).items()}
        # two subgroups have the same resamples, since their differences are one but for the sign
        strata = 2 * self.task.strata(self.targets) + (chosen ^ chosen[0])
        enough, comparable = (self._enough(targets) for _, _, targets in sides)
        draws = stream(0, "subgroups") if enough else None
        shares = {"inside", "outside"} if self.metric.is_share else set()
        bounds = intervals(statistics, strata, RESAMPLES, draws, shares=shares)
        inside, outside = bounds.get("inside"), bounds.get("outside")
        difference = bounds["difference"] if comparable and inside and outside else None
        return [
            _cell(self.metric, value["inside"], inside),
            _cell(self.metric, value["difference"], difference, "+"),
        ]

    def _enough(self, targets: NDArray[Any]) -> bool:
        """Return whether samples are independent and ``FEW`` or more, also of the rarer answer."""
        if self.clustered or len(targets) < FEW:
            return False
        informative = None if self.metric.pools else self.task.informative
        return informative is None or informative(targets) >= FEW


def subgroups(runs: list[Run]) -> Table:
    """Return the metric of the leading run's headline models in each subgroup, and the difference
    from the others; no rows without subgroups.
    """
    run = leader([run for run in runs if pooled(run)])
    pool = pooled(run) if run else None
    if run is None or pool is None:
        return Table("subgroups", "Subgroups", [], [], [])
    recorded = run.result.about["subgroups"]
    note = (
        f"{run.label}, {run.model}: all clients' test samples together, each predicted by its "
        "client's own headline model. Intervals at 95 %, by the bootstrap, unless samples are "
        "too few or several of one group; the difference is to all samples of other subgroups."
    )
    header = ["Subgroup", "Clients", "Test samples", capital(run.metric.heading), "Difference"]
    rows = list(_rows(pool, recorded["names"]))
    return Table("subgroups", f"Subgroups by {recorded['column']}", [note], header, rows, range(1))


def pooled(run: Run) -> Pool | None:
    """Return the test samples of a run with recorded subgroups, else None."""
    metadata = run.result.about
    task = task_of(metadata.get("targets", "classes"), metadata.get("edges") or ())
    if not metadata.get("subgroups") or run.metric.name not in task.measures:
        return None
    clients, predictions, targets, subgroups = [], [], [], []
    for client, groups in enumerate(metadata["subgroups"]["test"]):
        answers = run.result.predictions(client)
        if answers is not None and len(answers[1]) == len(groups):
            clients.append(np.full(len(groups), client))
            predictions.append(task.natural(answers[0]))
            targets.append(answers[1])
            subgroups.append(np.asarray(groups, np.int64))
    if not clients:
        return None
    return Pool(
        run.metric,
        task,
        np.concatenate(predictions),
        np.concatenate(targets),
        np.concatenate(subgroups),
        np.concatenate(clients),
        clustered=any(run.units(int(ids[0]), len(ids)) < len(ids) for ids in clients if len(ids)),
    )


def _rows(pool: Pool, names: list[str]) -> Iterator[list[str]]:
    for k, name in enumerate(names):
        chosen = pool.subgroup == k
        if not chosen.any():
            continue
        yield [
            name,
            str(len(np.unique(pool.client[chosen]))),
            f"{int(chosen.sum()):,}",
            *pool.cells(chosen),
        ]


def _cell(metric: Metric, value: float, bounds: Interval, sign: str = "") -> str:
    """Format a value with its interval, if it has one."""
    if np.isnan(value):
        return PLACEHOLDER
    text, *limits = metric.numbers([value, *(bounds or ())], sign)
    return (text + (f" ({' to '.join(limits)})" if limits else "")).replace("-", MINUS)


def unseen(runs: list[Run]) -> Table:
    """Return test results of the clients that did not train, one row per client and named model."""
    tested = [(run, [e for e in run.result.unseen if e.split == "test"]) for run in runs]
    headings = list(dict.fromkeys(capital(run.metric.heading) for run in runs))
    one_loss = len({run.loss for run in runs}) == 1
    columns = ["Client", *["Run"] * (len(runs) > 1), "Model"]
    rows = []
    for run, evaluations in tested:
        label = [run.label] * (len(runs) > 1)
        text = run.metric.number if len(headings) == 1 else run.metric.text
        for client, model, samples, value, loss in _clients(evaluations):
            row = [run.client(client), *label, model, f"{samples:,}", text(value)]
            rows.append([*row, *[PLACEHOLDER if loss is None else f"{loss:.4f}"] * one_loss])
    return Table(
        "unseen",
        "Clients not in training",
        [
            "No model was trained on these clients: after the last round each received the "
            "federation's model and adapted it alone. Results on their own test splits.",
            *(
                sentence
                for run, evaluations in tested
                if (sentence := _compare_with_members(run, evaluations))
            ),
        ],
        [*columns, "Test samples", " or ".join(headings), *["Test loss"] * one_loss],
        rows,
        range(len(columns)),
    )


def _clients(
    evaluations: list[Evaluation],
) -> Iterator[tuple[int, str, int, float | None, float | None]]:
    """Yield (client, model, samples, value, loss)."""
    for e in evaluations:
        for client, samples, value, loss in zip(e.clients, e.samples, e.value, e.loss, strict=True):
            yield client, f"{e.model}, {stage_name(e.when)}", samples, value, loss


def _compare_with_members(run: Run, rows: list[Evaluation]) -> str:
    """Compare the headline model's mean over unseen clients with that over the members."""
    mean = mean_of_known([e.mean for e in rows if (e.model, e.when) == headline(run.result)])
    if mean is None or run.mean is None:
        return ""
    return (
        f"{run.label}, {run.model}: {run.metric.title} {run.metric.text(mean)} on average over "
        f"these clients, {run.metric.text(run.mean)} over the members."
    )


def privacy(runs: list[Run]) -> Table:
    """Return the epsilon of each client of a private run; a federation's silos keep theirs."""
    accounted = [run for run in runs if _account(run)]
    by_silo = [run for run in runs if run.setting("privacy.delta") and not _account(run)]
    private = [*accounted, *by_silo]
    several, grouped = len(private) > 1, any("groups" in _account(run) for run in accounted)
    shown = {
        "Client": True,
        "Run": several,
        "ε": True,
        "ε by its own noise alone": any("alone" in _account(run) for run in accounted),
        "Most samples of a group": grouped,
        "ε of that group": grouped,
    }
    return Table(
        "privacy",
        "Privacy spent",
        [
            "Differential privacy: the smaller ε, the less a client's uplinks reveal about any one "
            "training sample, or about all samples of a group where that is the unit.",
            *map(_terms, private),
        ],
        [*compress(shown, shown.values())],
        [[*compress(row, shown.values())] for run in private for row in _epsilon_rows(run)],
        range(1 + several),
    )


def _account(run: Run) -> Mapping[str, Any]:
    """Return the epsilon of a run's clients; empty if it has none, or silos keep theirs."""
    return run.result.summary.get("privacy") or {}


def _epsilon_rows(run: Run) -> list[list[str]]:
    """Return a row with all columns for each client, or one for all silos."""
    account = _account(run)
    if not account:
        return [["each silo", run.label, "in its own account: pomona silo report", "", "", ""]]
    groups = account.get("groups")
    return [
        [run.client(k), run.label, *map(_epsilon_text, bounds), *_group_cells(groups, k)]
        for k, bounds in enumerate(_bounds(account))
    ]


def _bounds(account: Mapping[str, Any]) -> list[tuple[float | None, float | None]]:
    """Return each client's ε, and that by its own noise alone; None where they bound nothing."""
    if account["void"]:
        return [(None, None)] * len(account["clients"])
    return list(zip(account["clients"], account.get("alone", account["clients"]), strict=True))


def _group_cells(groups: Mapping[str, Any] | None, client: int) -> list[str]:
    """Return the most samples of one group at a client and their epsilon, if they are no unit."""
    if groups:
        return [str(groups["rows"][client]), _epsilon_text(groups["clients"][client])]
    return ["", ""]


def _epsilon_text(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else f"{epsilon:.3f}"


def _terms(run: Run) -> str:
    """Describe the conditions of a run's ε."""
    if void := _account(run).get("void"):
        return f"{run.label}: {void}."
    budget, accepted = run.setting("privacy.epsilon_budget"), run.setting("privacy.acknowledge")
    honest, minimum = run.setting("privacy.honest"), run.setting("secure_aggregation.minimum")
    summed = honest and honest > 1
    adversary = in_sums(honest, minimum) if summed else "against anyone who sees a client's uplinks"
    return (
        f"{run.label}: for one {run.setting('privacy.unit')}, {adversary}; δ = "
        f"{run.setting('privacy.delta'):g}, noise multiplier "
        f"{run.setting('privacy.noise_multiplier'):g}, gradients clipped at "
        f"{run.setting('privacy.max_grad_norm'):g}"
        f"{f', a budget of ε = {budget:g}' if budget else ''}"
        f"{f'; not covered, and accepted: {listing(list(accepted))}' if accepted else ''}."
    )
