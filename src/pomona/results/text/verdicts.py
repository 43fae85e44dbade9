"""The opening verdict of a page: whether federation helps, by how much, and which clients it does
not help.

A sentence claims no more than its interval: a run is better than another only if the paired
interval over clients excludes 0, of several runs after Holm's correction (see
``pomona.record.paired_gain``).
"""

from collections.abc import Collection

from pomona.metrics.metric import METRICS, is_own
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.paired_gain import Verdict, jointly
from pomona.results.gain_presentation import (
    Gains,
    by_client,
    evidence,
    gained,
    interval,
    measured,
    signed,
)
from pomona.results.run_numbers import Run, baseline, comparable, contender, records, spoken
from pomona.results.seeds import over_seeds
from pomona.results.text.narrative import REMEDY, worse_since
from pomona.results.wording import capital, listing

LEVEL = "no difference that this data can show"


def verdicts(runs: list[Run]) -> list[str]:
    """Return the sentences, with every number named."""
    compared = over_seeds(runs)
    sentences = _one(compared[0]) if len(compared) == 1 else _several(compared)
    return [sentence.replace(" %", "\N{NO-BREAK SPACE}%") for sentence in sentences]


def _one(run: Run) -> list[str]:
    kept = run.reported
    if kept is None:
        return ["No model was evaluated on a test split, so there is no result to state."]
    if kept.mean is None:
        return [f"{capital(run.moment)}, no client's test samples define {run.metric.title}."]
    pooled = (
        ""
        if kept.pooled is None
        else f", and {run.metric.text(kept.pooled)} over all test samples taken together"
    )
    return [
        f"{capital(run.moment)}, {judged(run)}: {run.metric.title} {run.metric.text(kept.mean)} on "
        f"average over clients{pooled}.",
        *_yardsticks(run),
    ]


def judged(run: Run) -> str:
    """Describe the headline model of a run, and the moment of its evaluation."""
    kept = run.reported
    assert kept is not None
    owner = "the global model" if kept.model == "global" else f"the clients' {kept.model} models"
    return f"{owner}, evaluated {spoken(kept.when)}"


def _several(runs: list[Run]) -> list[str]:
    if why := unranked(runs):
        return [why]
    known = [run for run in runs if run.mean is not None]
    base = baseline(known, known[0]) if known else None
    best = contender(known)
    if best is None or best is base:
        return [f"No {runs[0].metric.title} was recorded, so the runs cannot be ranked."]
    others = [run for run in known if run is not best and run is not base]
    rivals = [gained(best, run) for run in others]
    if base is None:
        return [*useless(known), _level(best), *_yardsticks(best), *_among(best, rivals)]
    found = gained(best, base)
    verdict = jointly([found.mean, *(gained(run, base).mean for run in others)])[0]
    return [
        *useless(known),
        _helps(found, verdict, len(rivals) + 1),
        *([evidence(best, found.mean)] if found.mean else []),
        by_client(found),
        *_yardsticks(best, _counted(found)),
        *_among(best, rivals),
    ]


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


def _counted(found: Gains) -> list[int]:
    """Return the clients in a gain's mean; those with values in both runs, if there is no such
    mean.
    """
    left_out = {out.client for out in found.mean.left_out} if found.mean else set()
    return [client for client in found.differences if client not in left_out]


def _level(run: Run) -> str:
    return (
        f"{run.label} has the best {run.metric.title}, {run.metric.text(run.mean)} on average over "
        f"clients{_seeds(run)} {run.moment}."
    )


def _seeds(run: Run) -> str:
    return f", over {len(run.seeds)} seeds" if run.seeds else ""


def _helps(found: Gains, verdict: Verdict | None, tried: int) -> str:
    """Describe whether federation helps, by the best of the runs tried and its verdict among them.

    No conclusion is drawn if the worse run was better before the compared round.
    """
    run, base, title = found.run, found.base, found.run.metric.title
    best = (
        f"{run.label}, the best of {tried} {'candidates' if run.seeds else 'runs'},"
        if tried > 1
        else run.label
    )
    levels, over = _levels(found), _over(found)
    if found.mean is None:
        why = (
            "a metric of your own has no interval"
            if is_own(run.metric.name)
            else "the records do not hold the models' answers"
        )
        return (
            f"{capital(over)} the {title} of {best} and of {base.label}, training alone, are "
            f"{levels}; {why}, so whether that is more than chance is not known."
        )
    gain = measured(run.metric, found.mean)
    if verdict == LEVEL:
        corrected = (
            ", corrected for the number of runs compared" if found.mean.verdict != LEVEL else ""
        )
        return (
            f"Does federation help? Between {best} and {base.label}, training alone, there is "
            f"{LEVEL}{corrected}: {title} {levels} {over}, a gain of {gain}."
        )
    if verdict == "better":
        place, unfair = "ahead of", overtrained(base)
        opening = "" if unfair or useless([run]) else "Federation helps: "
    else:
        place, unfair = "behind", overtrained(run)
        opening = "" if unfair else "Federation does not help here: "
    return (
        f"{opening}{best} is {place} {base.label}, training alone, in {title}, {levels} {over}: "
        f"{gain}.{unfair}"
    )


def _levels(found: Gains) -> str:
    """Format both runs' means over the clients in the gain's mean, ``91.20 % against 90.40 %``."""
    counted, metric = _counted(found), found.run.metric
    mine, its = (
        mean_of_known([one.values[client] for client in counted]) if counted else one.mean
        for one in (found.run, found.base)
    )
    return f"{metric.text(mine)} against {metric.text(its)}"


def _over(found: Gains) -> str:
    """Format what these means are over, ``on average over 3 of 4 clients, over 3 seeds``."""
    counted, of = len(_counted(found)), len(found.run.values)
    few = f"{counted} of {of} " if counted < of else ""
    return f"on average over {few}clients{_seeds(found.run)}"


def overtrained(behind: Run) -> str:
    """Explain why the compared round is unfair to the worse run; empty if it is not."""
    since = worse_since(behind)
    if since is None:
        return ""
    return (
        f" But {behind.label} has got worse since round {since}, so this does not show whether "
        f"federation helps: {REMEDY}."
    )


def useless(runs: list[Run]) -> list[str]:
    """Report first if no run, including local training, is better than a constant prediction."""
    for run in runs:
        constant = mean_of_known([v for c, v in run.constant.items() if c in run.values])
        if constant is None or run.metric.better(run.mean, constant):
            return []
    return [
        (
            "None of these runs has learned anything of use yet: always giving one answer does no "
            "worse."
        )
    ]


def _yardsticks(run: Run, clients: Collection[int] | None = None) -> list[str]:
    """Report the score of a constant prediction, and for regression the explained share of
    variance.

    ``clients``: those for the constant; all if None.
    """
    constant = mean_of_known(
        [v for c, v in run.constant.items() if clients is None or c in clients]
    )
    explained = mean_of_known([r.get("r2") for r in records(run)])
    return [
        *(
            [f"A model that gives always the same answer has {run.metric.text(constant)}."]
            if constant is not None and run.metric.name != "auroc"
            else []
        ),
        *(
            [f"The R² of {run.label} is {METRICS['r2'].text(explained)} on average over clients."]
            if explained is not None and run.metric.name != "r2"
            else []
        ),
    ]


def _among(best: Run, rivals: list[Gains]) -> list[str]:
    """Compare the best run with the other federated runs, corrected for all pairs of them: any
    could have come out best.

    It may be behind one of them, where their gain leaves out clients that its mean counts.
    """
    told: dict[Verdict | None, list[str]] = {}
    pairs = len(rivals) * (len(rivals) + 1) // 2
    for g, verdict in zip(rivals, jointly([g.mean for g in rivals], pairs), strict=True):
        told.setdefault(verdict, []).append(
            f"{g.base.label} ({signed(best.metric, g.mean.value)}, 95 % interval "
            f"{interval(best.metric, g.mean)})"
            if g.mean and verdict != LEVEL
            else g.base.label
        )
    ahead, behind, level, blank = map(told.get, ("better", "worse", LEVEL, None))
    return [
        *([f"{best.label} came out ahead of {listing(ahead)}."] if ahead else []),
        *(
            [f"On the clients that can be compared, {best.label} is behind {listing(behind)}."]
            if behind
            else []
        ),
        *(
            [
                (
                    f"Between {best.label} and "
                    f"{'each of ' if len(level) > 1 else ''}{listing(level)} there is {LEVEL}."
                )
            ]
            if level
            else []
        ),
        *(
            [f"Of {listing(blank)} the records do not hold what a comparison takes."]
            if blank
            else []
        ),
    ]
