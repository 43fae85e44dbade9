"""The opening verdict of a page: whether federation helps, by how much, and which clients it does
not help.

A sentence claims no more than its interval: a run is better than another only if the paired
interval over clients excludes 0, of several runs after Holm's correction (see
``pomona.record.paired_gain``).
"""

from collections.abc import Collection
from dataclasses import dataclass

from pomona.metrics.metric import METRICS, is_own
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.paired_gain import UNDECIDED, jointly
from pomona.results.gain_presentation import (
    Gains,
    by_client,
    evidence,
    gained,
    measured,
    resolution,
    value_and_interval,
    with_verdicts,
)
from pomona.results.run_numbers import Run, baseline, comparable, contender, records, stage_name
from pomona.results.seeds import over_seeds
from pomona.results.text.narrative import REMEDY, worse_since
from pomona.results.wording import capital, listing

LEVEL = "no significant difference"
"""Of the verdicts "not worse" and "cannot tell"."""


def verdicts(runs: list[Run]) -> list[str]:
    """Return the sentences, with every number named."""
    compared = over_seeds(runs)
    sentences = _single_run(compared[0]) if len(compared) == 1 else _several(compared)
    return [sentence.replace(" %", "\N{NO-BREAK SPACE}%") for sentence in sentences]


def _single_run(run: Run) -> list[str]:
    evaluation = run.reported
    if evaluation is None:
        return ["No model was evaluated on a test split, so there is no result to state."]
    if evaluation.mean is None:
        return [f"{capital(run.moment)}, no client's test samples define {run.metric.title}."]
    pooled = ""
    if evaluation.pooled is not None:
        pooled = f", and {run.metric.text(evaluation.pooled)} over all test samples taken together"
    return [
        f"{capital(run.moment)}, {evaluated_model(run)}: {run.metric.title} "
        f"of {run.metric.text(evaluation.mean)} on average over clients{pooled}.",
        *_yardsticks(run),
    ]


def evaluated_model(run: Run) -> str:
    """Describe the headline model of a run, and the moment of its evaluation."""
    evaluation = run.reported
    assert evaluation is not None
    owner = "the global model"
    if evaluation.model != "global":
        owner = f"the clients' {evaluation.model} models"
    return f"{owner}, evaluated {stage_name(evaluation.when)}"


def _several(runs: list[Run]) -> list[str]:
    if reason := unranked(runs):
        return [reason]
    evaluated = [run for run in runs if run.mean is not None]
    contest, best = contest_of(evaluated), contender(evaluated)
    if best is None:
        return [f"No {runs[0].metric.title} was recorded, so the runs cannot be ranked."]
    rivals = [
        gained(best, run)
        for run in evaluated
        if run is not best and not (contest and run is contest.gains.base)
    ]
    if contest is None:
        return [*useless(evaluated), _level(best), *_yardsticks(best), *_among(best, rivals)]
    gains = contest.gains
    return [
        *useless(evaluated),
        _helps(contest),
        *([evidence(best, gains.mean)] if gains.mean else []),
        by_client(gains),
        *_yardsticks(best, _counted(gains)),
        *_among(best, rivals),
    ]


@dataclass(frozen=True)
class Contest:
    """The best run against training alone.

    Attributes:
        gains: of the best run, with its verdict among all runs tried.
        tried: the number of runs of which it is the best.
    """

    gains: Gains
    tried: int

    @property
    def best(self) -> str:
        """The best run, ``APPLE, the best of 3 runs,``."""
        run = self.gains.run
        if self.tried == 1:
            return run.label
        return f"{run.label}, the best of {self.tried} {'candidates' if run.seeds else 'runs'},"

    @property
    def caveat(self) -> str:
        """Explain why the compared round is unfair to the worse run; empty if it is not."""
        worse = {"better": self.gains.base, "worse": self.gains.run}.get(self.gains.verdict or "")
        best_round = worse_since(worse) if worse else None
        if worse is None or best_round is None:
            return ""
        return (
            f" But {worse.label} has got worse since round {best_round}, so this does not show "
            f"whether federation helps: {REMEDY}."
        )


def contest_of(evaluated: list[Run]) -> Contest | None:
    """Return the contest of evaluated runs; None without training alone, or a run to compare with
    it.
    """
    best = contender(evaluated)
    base = baseline(evaluated, best) if best else None
    if best is None or base is None or best is base:
        return None
    rivals = [run for run in evaluated if run is not best and run is not base]
    compared = with_verdicts([gained(run, base) for run in (best, *rivals)])
    return Contest(compared[0], len(compared))


def unranked(runs: list[Run]) -> str:
    """Explain why runs are not ranked; empty if they can be."""
    if len({run.scenario for run in runs}) > 1:
        return (
            "They do not share one scenario (data and partition), so their numbers are not ranked."
        )
    if not comparable(runs):
        titles = listing(sorted({run.metric.title for run in runs}))
        return f"Their headline metrics differ ({titles}), so their numbers are not ranked."
    return ""


def _counted(gains: Gains) -> list[int]:
    """Return the clients in a gain's mean; those with values in both runs, if there is no such
    mean.
    """
    excluded = {e.client for e in gains.mean.excluded} if gains.mean else set()
    return [client for client in gains.differences if client not in excluded]


def _level(run: Run) -> str:
    return (
        f"{run.label} has the best {run.metric.title}, {run.metric.text(run.mean)} on average over "
        f"clients{_seeds(run)} {run.moment}."
    )


def _seeds(run: Run) -> str:
    return f", over {len(run.seeds)} seeds" if run.seeds else ""


def _helps(contest: Contest) -> str:
    """Describe whether federation helps, by the best of the runs tried and its verdict among them.

    No conclusion is drawn if the worse run was better before the compared round.
    """
    gains, best = contest.gains, contest.best
    run, base, title = gains.run, gains.base, gains.run.metric.title
    averaged = f"on average over {few_clients(gains)}clients{_seeds(run)}"
    if gains.mean is None:
        reason = "the records do not contain the models' outputs"
        if is_own(run.metric.name):
            reason = "a metric of your own has no interval"
        return (
            f"{capital(averaged)} the {title} of {best} and of {base.label}, training alone, are "
            f"{levels(gains)}; {reason}, so whether that is more than chance is unknown."
        )
    gain = measured(run.metric, gains.mean)
    if gains.verdict in UNDECIDED:
        also = f", and it is not worse by {gains.margin}" if gains.verdict == "not worse" else ""
        difference = LEVEL if gains.mean.interval else "a difference that may be chance"
        return (
            f"Does federation help? Between {best} and {base.label}, training alone, there is "
            f"{difference}{gains.correction}{also}: {title} {levels(gains)} {averaged}, a gain of "
            f"{gain}. {resolution(run.metric, gains.mean, contest.tried)}".strip()
        )
    if gains.verdict == "better":
        position = "ahead of"
        opening = "" if contest.caveat or useless([run]) else "Federation helps: "
    else:
        position = "behind"
        opening = "" if contest.caveat else "Federation does not help here: "
    return (
        f"{opening}{best} is {position} {base.label}, training alone, in {title}, {levels(gains)} "
        f"{averaged}: {gain}.{contest.caveat}"
    )


def levels(gains: Gains) -> str:
    """Format both runs' means over the clients in the gain's mean, ``91.20 % against 90.40 %``."""
    counted, metric = _counted(gains), gains.run.metric
    mean, base_mean = (
        mean_of_known([r.values[client] for client in counted]) if counted else r.mean
        for r in (gains.run, gains.base)
    )
    return f"{metric.text(mean)} against {metric.text(base_mean)}"


def few_clients(gains: Gains) -> str:
    """Format the clients in these means, ``3 of 4 ``; empty if these are all."""
    counted, total = len(_counted(gains)), len(gains.run.values)
    return f"{counted} of {total} " if counted < total else ""


def useless(runs: list[Run]) -> list[str]:
    """Return a sentence if no run, including local training, beats a constant prediction."""
    for run in runs:
        constant = mean_of_known([v for c, v in run.constant.items() if c in run.values])
        if constant is None or run.metric.better(run.mean, constant):
            return []
    return [("None of these runs has learned anything useful yet: a constant answer is as good.")]


def _yardsticks(run: Run, clients: Collection[int] | None = None) -> list[str]:
    """Report the score of a constant prediction, and for regression the explained share of
    variance.

    ``clients``: those for the constant; all if None.
    """
    constant = mean_of_known(
        [v for c, v in run.constant.items() if clients is None or c in clients]
    )
    explained = mean_of_known([r.get("r2") for r in records(run)])
    sentences = []
    if constant is not None and run.metric.name != "auroc":
        sentences.append(f"Always giving one answer would reach {run.metric.text(constant)}.")
    if explained is not None and run.metric.name != "r2":
        share = METRICS["r2"].text(explained)
        sentences.append(f"The R² of {run.label} is {share} on average over clients.")
    return sentences


def _among(best: Run, rivals: list[Gains]) -> list[str]:
    """Compare the best run with the other federated runs, corrected for all pairs of them: any
    of them could have been the best.

    It may be behind one of them if their gain leaves out clients that its mean includes.
    """
    labels: dict[str | None, list[str]] = {}
    pairs = len(rivals) * (len(rivals) + 1) // 2
    for g, verdict in zip(rivals, jointly([g.mean for g in rivals], pairs), strict=True):
        size = _size(best, g) if verdict in ("better", "worse") else ""
        labels.setdefault(LEVEL if verdict in UNDECIDED else verdict, []).append(
            g.base.label + size
        )
    prefix = "each of " if len(labels.get(LEVEL, ())) > 1 else ""
    sentences = {
        "better": (f"{best.label} is ahead of ", "."),
        "worse": (f"On the clients that can be compared, {best.label} is behind ", "."),
        LEVEL: (f"Between {best.label} and {prefix}", f" there is {LEVEL}."),
        None: ("The records lack the numbers for a comparison with ", "."),
    }
    return [
        opening + listing(labels[verdict]) + ending
        for verdict, (opening, ending) in sentences.items()
        if verdict in labels
    ]


def _size(best: Run, gains: Gains) -> str:
    """Format a mean gain with its interval."""
    assert gains.mean, "a verdict has a mean"
    value, limits = value_and_interval(best.metric, gains.mean)
    return f" ({value}, 95 % interval {limits})"
