"""The one sentence at the top of a report: whether federation helps, and by how much."""

from pomona.record.paired_gain import jointly
from pomona.results.gain_presentation import Gains, gained, interval
from pomona.results.run_numbers import Run, baseline, contender
from pomona.results.seeds import over_seeds
from pomona.results.text.verdicts import LEVEL, overtrained, unranked, useless
from pomona.results.wording import capital, counted


def headline(runs: list[Run]) -> str:
    """Return the sentence; it claims no more than ``verdicts``, which has the reservations."""
    compared = over_seeds(runs)
    sentence = _single_run(compared[0]) if len(compared) == 1 else _several(compared)
    return sentence.replace(" %", "\N{NO-BREAK SPACE}%")


def _single_run(run: Run) -> str:
    if run.reported is None:
        return "No model was evaluated on a test split."
    if run.reported.mean is None:
        return f"No client's test samples define {run.metric.title}."
    return (
        f"{capital(run.metric.title)} {run.metric.text(run.reported.mean)} on average over "
        f"{counted(len(run.values), 'client')}."
    )


def _several(runs: list[Run]) -> str:
    if reason := unranked(runs):
        return reason
    evaluated = [run for run in runs if run.mean is not None]
    best = contender(evaluated)
    base = baseline(evaluated, evaluated[0]) if evaluated else None
    if best is None or best is base:
        return f"No {runs[0].metric.title} was recorded."
    if sentences := useless(evaluated):
        return sentences[0]
    if base is None:
        return (
            f"{best.label} has the best {best.metric.title}, {best.metric.text(best.mean)} on "
            "average over clients; there is no run of training alone to compare it with."
        )
    return _helps(
        gained(best, base), [gained(run, base) for run in evaluated if run not in (best, base)]
    )


def _helps(gains: Gains, rivals: list[Gains]) -> str:
    """Return the verdict on a run's gain over training alone, corrected for the other runs."""
    run, title = gains.run, gains.run.metric.title
    if gains.mean is None:
        return "The records do not show whether federation helps: the gain has no interval."
    verdict = jointly([gains.mean, *(g.mean for g in rivals)])[0]
    range_text = (
        f" (95 % interval {interval(run.metric, gains.mean)})" if gains.mean.interval else ""
    )
    verb = "gains" if gains.mean.value >= 0 else "loses"
    change = f"{verb} {run.metric.gap(abs(gains.mean.value)).lstrip('+')} in {title}"
    if verdict == LEVEL:
        return f"No significant difference from training alone: {run.label} {change}{range_text}."
    if overtrained(gains.base if verdict == "better" else run):
        return (
            f"Not decided: {run.label} {change}{range_text}, but one of the two has got worse "
            "since its best round."
        )
    if verdict == "better":
        return f"Federation helps: {run.label} {change} over training alone{range_text}."
    return (
        f"Federation does not help here: {run.label} {change} against training alone{range_text}."
    )
