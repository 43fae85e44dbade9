"""The one sentence at the top of a report: whether federation helps, and by how much."""

from pomona.record.paired_gain import UNDECIDED, Gain
from pomona.results.gain_presentation import MINUS, interval_text, value_and_interval
from pomona.results.run_numbers import Run, baseline, contender
from pomona.results.seeds import over_seeds
from pomona.results.text.verdicts import Contest, contest_of, few_clients, levels, unranked, useless
from pomona.results.wording import capital, counted


def headline(runs: list[Run]) -> str:
    """Return the sentence; it claims no more than ``verdicts``, which has the reservations."""
    compared = over_seeds(runs)
    sentence = _single_run(compared[0]) if len(compared) == 1 else _several(compared)
    return sentence.replace(" %", "\N{NO-BREAK SPACE}%")


def _single_run(run: Run) -> str:
    if run.reported is None:
        return "No model has been evaluated on a test split."
    if run.mean is None:
        return f"No client's test samples define {run.metric.title}."
    return (
        f"{capital(run.metric.title)}: {run.metric.text(run.mean)} on average over "
        f"{counted(len(run.values), 'client')}, {run.moment}."
    )


def _several(runs: list[Run]) -> str:
    if reason := unranked(runs):
        return reason
    evaluated = [run for run in runs if run.mean is not None]
    best, contest = contender(evaluated), contest_of(evaluated)
    if best is None:
        return f"No {runs[0].metric.title} was recorded."
    if sentences := useless(evaluated):
        return sentences[0]
    if contest:
        return _helps(contest)
    missing = "other run" if baseline(evaluated, best) is best else "run of training alone"
    return (
        f"{best.label} has the best {best.metric.title}, {best.metric.text(best.mean)} on average "
        f"over clients; there is no {missing} to compare it with."
    )


def _helps(contest: Contest) -> str:
    """Return the verdict, with the gain and its interval."""
    gains, metric = contest.gains, contest.gains.run.metric
    if gains.mean is None:
        return (
            f"Not decided: {contest.best} has {metric.title} {levels(gains)} with training alone, "
            "without an interval."
        )
    change = _change(contest, gains.mean)
    if gains.mean.interval is None or (gains.verdict == "better" and useless([gains.run])):
        return f"Not decided: {change}."
    if gains.verdict in UNDECIDED:
        also = f", not worse by {gains.margin}" if gains.verdict == "not worse" else ""
        return f"No significant difference{gains.correction}{also}: {change}."
    if contest.caveat:
        return f"Not decided: {change}, but one of the two has got worse since its best round."
    helps = "helps" if gains.verdict == "better" else "does not help here"
    return f"Federation {helps}: {change}."


def _change(contest: Contest, mean: Gain) -> str:
    """Return the gain or loss of the best run, with its interval and reservations."""
    run, base, metric = contest.gains.run, contest.gains.base, contest.gains.run.metric
    few = few_clients(contest.gains)
    value = value_and_interval(metric, mean)[0].lstrip(f"+{MINUS}")
    reservations = [
        f"mean of {few}clients" if few else "",
        "" if metric.higher else "less is better",
        interval_text(metric, mean),
        "" if run.moment == base.moment else "in different rounds",
    ]
    return (
        f"{contest.best} {'gains' if mean.value >= 0 else 'loses'} "
        f"{value}{metric.unit_of_gaps} in {metric.title} against training alone "
        f"({'; '.join(filter(None, reservations))})"
    )
