"""Tables for some runs only: subgroups of samples by the values of a column, clients that did not
train, and epsilon.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pomona.core.rng import stream
from pomona.core.table import NOTHING, Table
from pomona.metrics.influence import FEW
from pomona.metrics.intervals import Interval, intervals
from pomona.metrics.metric import Metric
from pomona.metrics.nan_safe import Array, mean_of_known
from pomona.privacy.settings import in_sums
from pomona.record.judged import headline
from pomona.record.rows import Evaluation
from pomona.results.run_numbers import Run, leader, spoken
from pomona.results.wording import capital, listing
from pomona.tasks import Task, task_of
from pomona.tasks.scores import measured

RESAMPLES = 500


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
        sides = {"own": chosen, "rest": ~chosen}

        def statistics(weights: Array) -> dict[str, Array]:
            own, rest = (
                measured(
                    self.metric, self.task, self.predictions[of], self.targets[of], weights[:, of]
                )
                for of in sides.values()
            )
            return {"own": own, "rest": rest, "difference": own - rest}

        value = {name: float(of[0]) for name, of in statistics(np.ones((1, len(chosen)))).items()}
        strata = 2 * self.task.strata(self.targets) + chosen
        enough = {name: self._enough(self.targets[of]) for name, of in sides.items()}
        draws = stream(0, "subgroups") if enough["own"] else None
        ends = intervals(statistics, strata, RESAMPLES, draws)
        own, both = ends.get("own"), enough["rest"] and ends.get("own") and ends.get("rest")
        return [
            _cell(self.metric, value["own"], own),
            _cell(self.metric, value["difference"], ends["difference"] if both else None, "+"),
        ]

    def _enough(self, targets: NDArray[Any]) -> bool:
        """Return whether samples are independent and ``FEW`` or more, also of the rarer answer."""
        if self.clustered or len(targets) < FEW:
            return False
        informative = None if self.metric.pools else self.task.informative
        return informative is None or informative(targets) >= FEW


def subgroups(runs: list[Run]) -> Table:
    """Return the metric of the leading run's headline models in each subgroup, and the difference
    from the others.
    """
    run = leader([run for run in runs if pooled(run)])
    pool = pooled(run) if run else None
    told = (run.result.about.get("subgroups") if run else None) or {"column": "", "names": []}
    of = run.metric if run else None
    return Table(
        "subgroups",
        f"Subgroups by {told['column']}",
        [
            f"{run.label}, {run.model}: all clients' test samples together, each predicted by its "
            "client's own headline model. Intervals at 95 %, by the bootstrap, unless samples are "
            "too few or several of one group; the difference is to all samples of other subgroups."
        ]
        if run
        else [],
        ["Subgroup", "Clients", "Test samples", capital(of.heading) if of else "", "Difference"],
        list(_rows(pool, told["names"])) if pool else [],
        range(1),
    )


def pooled(run: Run) -> Pool | None:
    """Return the test samples of a run with recorded subgroups; None without, or if subgroups
    differ.
    """
    about = run.result.about
    task = task_of(about.get("targets", "classes"), about.get("edges") or ())
    if not about.get("subgroups") or run.metric.name not in task.measures:
        return None
    clients, predictions, targets, subgroups = [], [], [], []
    for client, own in enumerate(about["subgroups"]["test"]):
        answers = run.result.predictions(client)
        if answers is not None and len(answers[1]) == len(own):
            clients.append(np.full(len(own), client))
            predictions.append(task.natural(answers[0]))
            targets.append(answers[1])
            subgroups.append(np.asarray(own, np.int64))
    if not clients:
        return None
    return Pool(
        run.metric,
        task,
        np.concatenate(predictions),
        np.concatenate(targets),
        np.concatenate(subgroups),
        np.concatenate(clients),
        clustered=any(run.units(int(own[0]), len(own)) < len(own) for own in clients if len(own)),
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


def _cell(metric: Metric, value: float, ends: Interval, sign: str = "") -> str:
    """Format a value with its interval, if it has one."""
    if np.isnan(value):
        return NOTHING
    around = f" ({' to '.join(metric.number(end, sign) for end in ends)})" if ends else ""
    return metric.number(value, sign) + around


def unseen(runs: list[Run]) -> Table:
    """Return test results of the clients that did not train, one row per client and named model."""
    found = [(run, _tested(run)) for run in runs]
    headings = list(dict.fromkeys(capital(run.metric.heading) for run in runs))
    one_loss = len({run.loss for run in runs}) == 1
    columns = ["Client", *["Run"] * (len(runs) > 1), "Model"]
    rows = []
    for run, evaluations in found:
        label = [run.label] * (len(runs) > 1)
        text = run.metric.number if len(headings) == 1 else run.metric.text
        for client, model, samples, value, loss in _clients(evaluations):
            row = [run.client(client), *label, model, f"{samples:,}", text(value)]
            rows.append([*row, *[_loss(loss)] * one_loss])
    return Table(
        "unseen",
        "Clients never trained with",
        [
            "No model was trained on these clients: after the last round each received the "
            "federation's model, and adapted it alone. Results on their own test splits.",
            *(sentence for run, evaluations in found if (sentence := _beside(run, evaluations))),
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
            yield client, f"{e.model}, {spoken(e.when)}", samples, value, loss


def _loss(loss: float | None) -> str:
    return NOTHING if loss is None else f"{loss:.4f}"


def _tested(run: Run) -> list[Evaluation]:
    return [e for e in run.result.unseen if e.split == "test"]


def _beside(run: Run, rows: list[Evaluation]) -> str:
    """Compare the headline model's mean over unseen clients with that over the members."""
    own = [e.mean for e in rows if (e.model, e.when) == headline(run.result)]
    mean = mean_of_known(own)
    if mean is None or run.mean is None:
        return ""
    return (
        f"{run.label}, {run.model}: {run.metric.title} {run.metric.text(mean)} on average over "
        f"these clients, {run.metric.text(run.mean)} over the members."
    )


def privacy(runs: list[Run]) -> Table:
    """Return the epsilon of each client of a private run; a federation's silos keep theirs."""
    private = [(run, spent) for run in runs if (spent := run.result.summary.get("privacy"))]
    apart = [
        run
        for run in runs
        if run.setting("privacy.delta") and not run.result.summary.get("privacy")
    ]
    several, added = len(private) + len(apart) > 1, any("alone" in spent for _, spent in private)
    grouped = any("groups" in spent for _, spent in private)
    return Table(
        "privacy",
        "What privacy was spent",
        [
            "Differential privacy: the smaller ε, the less a client's uplinks reveal about any one "
            "training sample, or about all samples of a group where that is the unit.",
            *(_terms(run, spent["delta"], spent["void"]) for run, spent in private),
            *(_terms(run, run.setting("privacy.delta"), None) for run in apart),
        ],
        [
            "Client",
            *(["Run"] if several else []),
            "ε",
            *(["ε by its own noise alone"] if added else []),
            *(["Most samples of a group", "ε of that group"] if grouped else []),
        ],
        [
            [
                run.client(client),
                *([run.label] if several else []),
                *map(_figure, [e, *([alone] if added else [])]),
                *(_of_group(spent.get("groups"), client) if grouped else []),
            ]
            for run, spent in private
            for client, (e, alone) in enumerate(_bounds(spent))
        ]
        + [
            [
                "each silo",
                *([run.label] if several else []),
                "in its own account: pomona silo report",
                *([""] * (added + 2 * grouped)),
            ]
            for run in apart
        ],
        range(1 + several),
    )


def _bounds(spent: Mapping[str, Any]) -> list[tuple[float | None, float | None]]:
    """Return each client's ε, and that by its own noise alone; None where they bound nothing."""
    if spent["void"]:
        return [(None, None)] * len(spent["clients"])
    return list(zip(spent["clients"], spent.get("alone", spent["clients"]), strict=True))


def _of_group(groups: Mapping[str, Any] | None, client: int) -> list[str]:
    """Return the most samples of one group at a client and their epsilon, if they are no unit."""
    return [str(groups["rows"][client]), _figure(groups["clients"][client])] if groups else ["", ""]


def _figure(epsilon: float | None) -> str:
    return "no bound" if epsilon is None else f"{epsilon:.3f}"


def _terms(run: Run, delta: float, void: str | None) -> str:
    """Describe the conditions of a run's ε."""
    if void:
        return f"{run.label}: {void}."
    budget, accepted = run.setting("privacy.epsilon_budget"), run.setting("privacy.acknowledge")
    honest, least = run.setting("privacy.honest"), run.setting("secure_aggregation.minimum")
    summed = honest and honest > 1
    whom = in_sums(honest, least) if summed else "against anyone who sees a client's uplinks"
    return (
        f"{run.label}: for one {run.setting('privacy.unit')}, {whom}; δ = {delta:g}, noise "
        f"multiplier {run.setting('privacy.noise_multiplier'):g}, gradients clipped "
        f"at {run.setting('privacy.max_grad_norm'):g}"
        f"{f', a budget of ε = {budget:g}' if budget else ''}"
        f"{f'; not covered, and accepted: {listing(list(accepted))}' if accepted else ''}."
    )
