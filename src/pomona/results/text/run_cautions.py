"""Cautions of single runs, each a check that yields them; most serious first."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from pomona.metrics.metric import ACCURACY
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.elsewhere import read
from pomona.record.headline import finished
from pomona.record.run_summary import attack_of, diverging
from pomona.results.figures.classification import confusions
from pomona.results.figures.relationships import unmoved
from pomona.results.figures.series import recorded
from pomona.results.gain_presentation import client_names
from pomona.results.run_numbers import Run
from pomona.results.tables import elsewhere, outcomes
from pomona.results.tables.participation import rounds_by_client, training_samples
from pomona.results.text.joint_cautions import MAX_NAMES
from pomona.results.text.narrative import REMEDY, still_rising, worse_since
from pomona.results.wording import capital, listing


@dataclass(frozen=True)
class Caution:
    """Cautions of one run; runs with equal cautions share a sentence.

    Attributes:
        run: the label of the run.
        singular, plural: text after the label of one run, and of several if it differs.
        prefix: text before the labels.
        figure: the run's own figure, after its label.
    """

    run: str
    singular: str
    plural: str = ""
    prefix: str = ""
    figure: str = ""

    @property
    def label(self) -> str:
        """The label of the run with its own figure, if there is one."""
        return f"{self.run} ({self.figure})" if self.figure else self.run


def _incomplete(run: Run) -> Iterator[Caution]:
    if not finished(run.result):
        planned = run.setting("rounds")
        total = f" of {planned}" if planned is not None else ""
        recorded = f" cut short: {len(run.result.rounds)}{total} rounds are recorded"
        yield Caution(run.label, f" was{recorded}.", f" were{recorded} of each.")


def _diverging(run: Run) -> Iterator[Caution]:
    if reason := diverging(run.result):
        text = f" diverges: {reason} before you compare it."
        yield Caution(run.label, text, prefix="The training of ")


def _lied(run: Run) -> Iterator[Caution]:
    """Warn that means include clients that lied."""
    if attack := attack_of(run.result):
        text = (
            f" had attacking clients ({client_names(run, list(attack.clients))}): means and gains "
            "include them; the honest clients' mean is in the table of attacking clients."
        )
        yield Caution(run.label, text)


def _without_largest(run: Run) -> Iterator[Caution]:
    """Warn that the client with the most training samples missed rounds, unless a draw decided who
    takes part.
    """
    sizes, rounds = training_samples(run), run.result.rounds
    if not sizes or not rounds or run.setting("participation") not in (None, 1.0):
        return
    largest = int(np.argmax(sizes))
    missed = len(rounds) - rounds_by_client(run)[largest]
    share = sizes[largest] / sum(sizes)
    if missed and share > 1 / len(sizes):
        text = (
            f" missed {missed} of {len(rounds)} rounds, and holds {share:.0%} of the training "
            f"samples: the models of {run.label} depend on it less than its size suggests."
        )
        yield Caution(run.client(largest), text)


def _undefined(run: Run) -> Iterator[Caution]:
    evaluation = run.reported
    if evaluation is None:
        return
    undefined = [
        c
        for c, v, s in zip(evaluation.clients, evaluation.value, evaluation.samples, strict=True)
        if v is None and s
    ]
    if undefined:
        text = (
            f" is undefined for {client_names(run, undefined)}, since all their test samples have "
            f"one answer; means are over the other {len(evaluation.clients) - len(undefined)} "
            "clients."
        )
        yield Caution(run.label, text, prefix=f"{capital(run.metric.title)} of ")


def _constant(run: Run) -> Iterator[Caution]:
    """Warn that the model is not better than a constant prediction."""
    metric, (floor, mean) = run.metric, _constant_and_model(run)
    if mean is not None and not metric.better(mean, floor):
        worth = (
            f" no better than always giving one answer, which has {metric.text(floor)} on "
            "average over clients."
        )
        yield Caution(
            run.label, f" is{worth}", f" are{worth}", figure=f"{metric.title} {metric.text(mean)}"
        )


def _constant_for_some(run: Run) -> Iterator[Caution]:
    """Warn that it is better on average, but not for some clients."""
    metric, constant, (floor, mean) = run.metric, run.constant, _constant_and_model(run)
    below = [
        c for c, v in run.values.items() if c in constant and not metric.better(v, constant[c])
    ]
    if below and metric.better(mean, floor):
        worth = " no better than always giving one answer."
        yield Caution(
            run.label, f" is{worth}", f" are{worth}", prefix=f"For {client_names(run, below)}: "
        )


def _constant_and_model(run: Run) -> tuple[float | None, float | None]:
    """Return the means of a constant prediction and of the model, over the clients that have
    both.
    """
    pairs = [(run.constant[c], v) for c, v in run.values.items() if c in run.constant]
    return mean_of_known([floor for floor, _ in pairs]), mean_of_known([v for _, v in pairs])


def _threshold(run: Run) -> Iterator[Caution]:
    """Warn that, although scores rank well, predictions at the usual threshold may all be the most
    frequent class.
    """
    counts = [matrix for _, matrix in confusions(run)]
    if run.metric == ACCURACY or not counts:
        return
    correct, frequent, total = (
        sum(int(f(m)) for m in counts) for f in (np.trace, lambda m: m.sum(axis=1).max(), np.sum)
    )
    if correct <= frequent:
        text = (
            " are right on no more of the test samples than each client's most frequent class is "
            f"({ACCURACY.text(frequent / total)}): rank by the probabilities, or choose a "
            "threshold, before you act on them."
        )
        prefix = "The predicted classes of "
        yield Caution(run.label, text, "", prefix, ACCURACY.text(correct / total))


def _unmoved(run: Run) -> Iterator[Caution]:
    """Warn that relationships are unchanged, and so carry no information on the clients."""
    series = recorded(run).get("dr")
    if series and unmoved(series):
        text = (
            " have hardly changed from the clients' shares of the samples: they show which "
            "client is large, not which one helps."
        )
        yield Caution(run.label, text, prefix="The relationships of ")


def _climbing(run: Run) -> Iterator[Caution]:
    """Warn of a curve that was still rising."""
    if curve := still_rising(run):
        text = f"({curve}): more rounds may change the results."
        yield Caution(
            run.label,
            f" was still getting better when it ended {text}",
            f" were still getting better when they ended {text}",
        )


def _overtrained(run: Run) -> Iterator[Caution]:
    """Warn of a curve that was better before the compared round."""
    if (best_round := worse_since(run)) is not None:
        text = f"({run.metric.title} on validation): {REMEDY}."
        yield Caution(
            run.label,
            f" has got worse since round {best_round} {text}",
            f" have got worse since round {best_round} {text}",
        )


def _target_missed(run: Run) -> Iterator[Caution]:
    for name in ("sensitivity", "specificity"):
        if missed := _missing(run, name):
            text = (
                f": thresholds chosen for a {name} of {run.setting(name):g} on validation samples "
                "miss it on test samples, each by its own 95 % interval "
                f"({listing(missed, MAX_NAMES)})."
            )
            yield Caution(run.label, text)


def _missing(run: Run, name: str) -> list[str]:
    """Return the clients, with their outcomes if several, whose interval of a wanted share on test
    samples is below what their threshold was chosen for.
    """
    target, rows = run.setting(name), list(outcomes.outcome_rows(run))
    several = len({outcome for _, outcome, _ in rows}) > 1
    missed = []
    for client, outcome, metrics in rows if target is not None else ():
        _, high = metrics["intervals"].get(name) or (0, 1)
        if metrics["chosen"] and high < target:
            label = f"{client}, {outcome}" if several else client
            missed.append(f"{label}: {outcomes.cell(metrics, name)}")
    return missed


def _fails_elsewhere(run: Run) -> Iterator[Caution]:
    if scores := elsewhere.evaluations(run):
        if scores.failing:
            yield Caution(run.label, f": {elsewhere.verdict(run)}")
    elif read(run.result):
        text = ": the scores elsewhere are of an earlier round; repeat “pomona elsewhere”."
        yield Caution(run.label, text)


RUN_CAUTIONS: Mapping[Callable[[Run], Iterator[Caution]], str] = {
    _incomplete: "",
    _diverging: "The training diverges: lower lr before you compare",
    _lied: "",
    _without_largest: "",
    _undefined: "Undefined for clients with only one answer in their test samples; means leave "
    "them out",
    _constant: "No better than always giving one answer, on average over clients",
    _constant_for_some: "No better than always giving one answer for some clients",
    _threshold: (
        "The predicted classes are right on no more of the test samples than each client's most "
        "frequent class"
    ),
    _target_missed: "Thresholds miss the wanted sensitivity or specificity for some clients",
    _fails_elsewhere: "",
    _unmoved: "Relationships have hardly changed from the clients' shares of the samples",
    _climbing: "Still getting better at the end, so more rounds may change this page",
    _overtrained: (
        "Worse on validation at the end than earlier, and gains are of the last round: run all "
        "with keep=best"
    ),
}
"""Cautions of one run, most serious first, each with its text for the methods of a bench; empty
if it does not apply: a bench has only finished runs, which are not evaluated elsewhere, and its
means leave out clients that lie.
"""
KEPT_MODEL_CAUTIONS = (_threshold, _target_missed, _overtrained)
"""Cautions about the models that a run keeps, whichever round a page shows."""
