"""Cautions of a page: one plain sentence for each limitation of its numbers."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from pomona.core.errors import StorageError
from pomona.experiments.reference import Average
from pomona.metrics.metric import ACCURACY
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.elsewhere import read
from pomona.record.headline import finished
from pomona.record.predictions import PREDICTIONS
from pomona.record.run_folder import load, require_unchanged
from pomona.record.run_summary import attack_of, diverging
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.figures.classification import confusions
from pomona.results.figures.relationships import unmoved
from pomona.results.figures.series import recorded
from pomona.results.gain_presentation import client_names, gained
from pomona.results.method_colours import styles
from pomona.results.run_numbers import SEPARATE, Run, baseline, comparable, leader
from pomona.results.seeds import over_seeds, unpaired
from pomona.results.tables import elsewhere, outcomes
from pomona.results.tables.participation import rounds_by_client, training_samples
from pomona.results.text.narrative import REMEDY, still_rising, worse_since
from pomona.results.wording import capital, listing

FEW_EVENTS = 10
"""Number of rarer answers among the test samples below which a client's own numbers are
unreliable.
"""
FEW_SAMPLES = 30
"""Number of test samples below which a client's own numbers are unreliable."""
MAX_NAMES = 6
"""Maximum number of clients named with their rarer answers, and of methods named together."""


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


def cautions(runs: list[Run]) -> list[str]:
    """Return the sentences, most serious first; those for several runs are merged and name them."""
    single = [
        sentence
        for check in RUN_CAUTIONS
        for sentence in _merged([note for run in runs for note in check(run)])
    ]
    joint_checks = (_without_baseline, _moments, _closest, _events, _picked, _losses, _best_on_test)
    compared = over_seeds(runs)
    pairing = [reason] if (reason := unpaired(runs)) else []
    together = [
        *pairing,
        *_one_seed(runs),
        *(note for check in joint_checks for note in check(compared)),
    ]
    return [
        sentence.replace(" %", "\N{NO-BREAK SPACE}%")
        for sentence in dict.fromkeys(single + together)
    ]


def bench_cautions(comparison: Comparison) -> list[str]:
    """Return the sentences for a bench with its runs on file, each with the methods that it is
    about.

    Runs are checked in the round that the page shows; for ``KEPT_MODEL_CAUTIONS`` in the round of
    the models that they keep. A scenario's runs are read together.
    """
    recorded = [
        (entry, runs)
        for scenario in comparison.scenarios
        for entry in comparison.in_scenario(scenario)
        if (runs := _recorded(comparison, entry))
    ]
    evaluated = [
        (entry, [_in_round(run, comparison.count) for run in runs]) for entry, runs in recorded
    ]
    counts = defaultdict[str, list[tuple[ComparisonRow, int, int]]](list)
    for check, text in RUN_CAUTIONS.items():
        counts[text] += _seeds_with(check, recorded if check in KEPT_MODEL_CAUTIONS else evaluated)
    rows = Counter(entry.column for entry in comparison.entries if entry.cells)
    by_text = {text: _methods_named(methods, rows) for text, methods in counts.items() if text}
    return [
        *(f"{text}: {names}." for text, names in by_text.items() if names),
        *_joint_cautions(comparison, evaluated),
    ]


def _seeds_with(
    check: Callable[[Run], Iterator[Caution]],
    methods: Sequence[tuple[ComparisonRow, Sequence[Run]]],
) -> list[tuple[ComparisonRow, int, int]]:
    """Return each method with how many of its runs have a caution, and how many there are."""
    return [(e, sum(any(check(run)) for run in runs), len(runs)) for e, runs in methods]


def _joint_cautions(
    comparison: Comparison, methods: Sequence[tuple[ComparisonRow, Sequence[Run]]]
) -> list[str]:
    """Return the sentences on all runs of a scenario: on few events by scenario, on seeds once."""
    few, once = list[str](), dict[str, None]()
    for scenario in comparison.scenarios:
        together = [run for entry, runs in methods if entry.scenario == scenario for run in runs]
        column = comparison.in_scenario(scenario)[0].column
        scope = f"{column}: " if len(comparison.scenarios) > 1 else ""
        few += [f"{scope}{sentence}" for sentence in _events(together)]
        once |= dict.fromkeys(_one_seed(together))
    return [*few, *once]


def _in_round(run: Run, count: Average) -> Run:
    """Return a run with the setting of ``keep`` by which it is checked in the page's round."""
    choice = "last" if count.moment == "last" else "best"
    return replace(run, result=replace(run.result, config={**run.result.config, "keep": choice}))


def _recorded(comparison: Comparison, entry: ComparisonRow) -> list[Run]:
    """Return a method's readable runs; those with clients that lie are left out, since the page's
    means are over honest clients.
    """
    (style,) = styles([entry.row])
    results = []
    for cell in entry.cells:
        with suppress(StorageError):
            folder = comparison.bench.folder / cell["folder"]
            require_unchanged(folder, PREDICTIONS)
            results.append(load(folder))
    return [Run(result, entry.row, style) for result in results if not attack_of(result)]


def _methods_named(
    counts: Sequence[tuple[ComparisonRow, int, int]], rows: Mapping[str, int]
) -> str:
    """Name the methods of (method, seeds with a caution, seeds), by scenario; empty if none has
    one. ``rows``: methods of each scenario, also those whose runs cannot be read.
    """
    by_text: dict[str, list[str]] = {}
    columns = list(dict.fromkeys(entry.column for entry, _, _ in counts))
    for column in columns:
        entries = [(entry.row, k, n) for entry, k, n in counts if entry.column == column]
        if text := _methods_by_seeds(entries, rows[column]):
            by_text.setdefault(text, []).append(column)
    if len(columns) == 1 or [*by_text.values()] == [columns]:
        return "".join(by_text)
    return "; ".join(f"{methods} in {listing(scenarios)}" for methods, scenarios in by_text.items())


def _methods_by_seeds(entries: Sequence[tuple[str, int, int]], count: int) -> str:
    """Name those of ``count`` methods of a scenario with cautions, from (method, seeds with one,
    seeds); empty if none has one.
    """
    if 1 < len(entries) == count and all(k == n for _, k, n in entries):
        return "all methods"
    by_seeds: dict[str, list[str]] = {}
    for row, k, n in entries:
        if k:
            by_seeds.setdefault(f" ({k} of {n} seeds)" if n > 1 else "", []).append(row)
    return ", ".join(listing(names, MAX_NAMES) + seeds for seeds, names in by_seeds.items())


def _merged(notes: Sequence[Caution]) -> Iterator[str]:
    """Merge notes with the same text into one sentence, in the order of their first."""
    by_text: dict[tuple[str, str, str], list[str]] = {}
    for note in notes:
        label = f"{note.run} ({note.figure})" if note.figure else note.run
        by_text.setdefault((note.prefix, note.singular, note.plural), []).append(label)
    for (prefix, singular, plural), labels in by_text.items():
        yield prefix + listing(labels) + (plural or singular if len(labels) > 1 else singular)


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
            run.label, f" is{worth}", f" are{worth}", prefix=f"For {client_names(run, below)} "
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


def _events(runs: list[Run]) -> Iterator[str]:
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
            "the intervals, not on the numbers."
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


def _one_seed(runs: list[Run]) -> Iterator[str]:
    if len(runs) > 1 and len({run.setting("seed") for run in runs}) == 1:
        yield (
            "All runs use one seed, so the intervals cover other test samples but not other "
            "initial models or partitions: repeat with other seeds."
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
    chosen = [row for row in rows if target is not None and row[2]["chosen"]]
    return [
        f"{client}{f', {outcome}' if several else ''}: {outcomes.cell(metrics, name)}"
        for client, outcome, metrics in chosen
        for _, high in [metrics["intervals"].get(name) or (0, 1)]
        if high < target
    ]


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
