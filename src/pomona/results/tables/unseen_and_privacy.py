"""Tables for some runs only: clients that did not train, and epsilon."""

from collections.abc import Iterator

from pomona.core.table import NOTHING, Table
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.rows import Evaluation
from pomona.results.run_numbers import Run, headline, spoken
from pomona.results.wording import capital, listing


def unseen(runs: list[Run]) -> Table:
    """Return test results of the clients that did not train, one row per client and named model."""
    found = [(run, _tested(run)) for run in runs]
    several, headings = (
        len(runs) > 1,
        list(dict.fromkeys(capital(run.metric.heading) for run in runs)),
    )
    one_loss = len({run.loss for run in runs}) == 1
    columns = ["Client", *(["Run"] if several else []), "Model"]
    rows = []
    for run, evaluations in found:
        label = [run.label] if several else []
        text = run.metric.number if len(headings) == 1 else run.metric.text
        for client, model, samples, value, loss in _clients(evaluations):
            row = [run.client(client), *label, model, f"{samples:,}", text(value)]
            rows.append([*row, *([_loss(loss)] if one_loss else [])])
    return Table(
        "unseen",
        "Clients never trained with",
        [
            "No model was trained on these clients: after the last round each received the "
            "federation's model, and adapted it alone. Results on their own test splits.",
            *(sentence for run, evaluations in found if (sentence := _beside(run, evaluations))),
        ],
        [*columns, "Test samples", " or ".join(headings), *(["Test loss"] if one_loss else [])],
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
    """Return the epsilon of each client of a private run."""
    private = [(run, spent) for run in runs if (spent := run.result.summary.get("privacy"))]
    several = len(private) > 1
    return Table(
        "privacy",
        "What privacy was spent",
        [
            "Differential privacy against anyone who sees a client's uplinks: the smaller ε, the "
            "less they reveal about any one training sample.",
            *(_terms(run, spent["delta"], spent["void"]) for run, spent in private),
        ],
        ["Client", *(["Run"] if several else []), "ε"],
        [
            [
                run.client(client),
                *([run.label] if several else []),
                "no bound" if e is None else f"{e:.3f}",
            ]
            for run, spent in private
            for client, e in enumerate(spent["clients"])
        ],
        range(1 + several),
    )


def _terms(run: Run, delta: float, void: str | None) -> str:
    """Describe the conditions of a run's ε."""
    if void:
        return f"{run.label}: {void}."
    budget, accepted = run.setting("privacy.epsilon_budget"), run.setting("privacy.acknowledge")
    return (
        f"{run.label}: δ = {delta:g}, noise multiplier "
        f"{run.setting('privacy.noise_multiplier'):g}, gradients clipped "
        f"at {run.setting('privacy.max_grad_norm'):g}"
        f"{f', a budget of ε = {budget:g}' if budget else ''}"
        f"{f'; not covered, and accepted: {listing(list(accepted))}' if accepted else ''}."
    )
