"""Cautions of a page: one plain sentence for each limitation of its numbers."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from pomona.core.errors import StorageError
from pomona.metrics.metric import ACCURACY
from pomona.metrics.nan_safe import mean_of_known
from pomona.record.judged import finished
from pomona.record.predictions import PREDICTIONS
from pomona.record.run_folder import load, require_unchanged
from pomona.record.run_summary import attack_of, diverging
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.figures.classification import confusions
from pomona.results.figures.relationships import unmoved
from pomona.results.figures.series import recorded
from pomona.results.gain_presentation import gained, named
from pomona.results.method_colours import styles
from pomona.results.run_numbers import ALONE, Run, baseline, comparable, leader
from pomona.results.seeds import over_seeds, unpaired
from pomona.results.text.narrative import REMEDY, still_rising, worse_since
from pomona.results.wording import capital, listing

FEW_EVENTS = 10
"""Number of rarer answers among the test samples below which a client's own numbers are
unreliable.
"""
FEW_SAMPLES = 30
"""Number of test samples below which they are unreliable."""
MOST_NAMED = 6
"""Maximum number of clients named with their rarer answers, and of methods named together."""


@dataclass(frozen=True)
class Caution:
    """Cautions of one run; runs with equal cautions share a sentence.

    Attributes:
        run: the label of the run.
        of_one, of_many: text after the labels of one run, of several if it differs.
        before: text before them.
        figure: the run's own figure, after its label.
    """

    run: str
    of_one: str
    of_many: str = ""
    before: str = ""
    figure: str = ""


def cautions(runs: list[Run]) -> list[str]:
    """Return the sentences, most serious first; those for several runs are merged and name them."""
    each = [
        sentence
        for check in EACH
        for sentence in _merged([note for run in runs for note in check(run)])
    ]
    of_all, compared = (
        (_alone, _moments, _closest, _events, _picked, _losses, _best_on_test),
        over_seeds(runs),
    )
    apart = [why] if (why := unpaired(runs)) else []
    together = [*apart, *_one_seed(runs), *(note for check in of_all for note in check(compared))]
    return [
        sentence.replace(" %", "\N{NO-BREAK SPACE}%") for sentence in dict.fromkeys(each + together)
    ]


def of_bench(made: Comparison) -> list[str]:
    """Return the sentences for a bench whose runs are on file, each with the methods it holds for.

    Runs are judged in the round that the page shows, or as kept if the caution is of the models
    that they keep. A scenario's runs are read together.
    """
    keep = "last" if made.count.moment == "last" else "best"
    held: dict[str, list[tuple[ComparisonRow, int, int]]] = {what: [] for what in EACH.values()}
    few: list[str] = []
    once: dict[str, None] = {}
    for scenario in made.scenarios:
        known = [(entry, runs) for entry in made.of(scenario) if (runs := _recorded(made, entry))]
        shown = [(entry, [_counted(run, keep) for run in runs]) for entry, runs in known]
        for check, what in EACH.items():
            judged = known if check in OF_KEPT else shown
            held[what] += [
                (e, sum(any(check(run)) for run in runs), len(runs)) for e, runs in judged
            ]
        together = [run for _, runs in shown for run in runs]
        where = f"{made.of(scenario)[0].column}: " if len(made.scenarios) > 1 else ""
        few += [f"{where}{sentence}" for sentence in _events(together)]
        once |= dict.fromkeys(_one_seed(together))
    rows = Counter(entry.column for entry in made.entries if entry.cells)
    found = {what: _who(own, rows) for what, own in held.items() if what}
    return [*(f"{what}: {who}." for what, who in found.items() if who), *few, *once]


def _counted(run: Run, keep: str) -> Run:
    """Return a run to be judged in another round than the one whose models it keeps."""
    return replace(run, result=replace(run.result, config={**run.result.config, "keep": keep}))


def _recorded(made: Comparison, entry: ComparisonRow) -> list[Run]:
    """Return a method's runs that can be read, without those with clients that lie, as the page's
    means are of the honest ones.
    """
    (style,) = styles([entry.row])
    found = []
    for cell in entry.cells:
        with suppress(StorageError):
            folder = made.bench.folder / cell["folder"]
            require_unchanged(folder, PREDICTIONS)
            found.append(load(folder))
    return [Run(result, entry.row, style) for result in found if not attack_of(result)]


def _who(held: Sequence[tuple[ComparisonRow, int, int]], rows: Mapping[str, int]) -> str:
    """Name the methods of (method, seeds with a caution, seeds), by scenario; empty if none has
    one. ``rows``: methods of each scenario, also those whose runs cannot be read.
    """
    told: dict[str, list[str]] = {}
    columns = list(dict.fromkeys(entry.column for entry, _, _ in held))
    for column in columns:
        own = [(entry.row, k, n) for entry, k, n in held if entry.column == column]
        alike: dict[str, list[str]] = {}
        for row, k, n in own:
            if k:
                alike.setdefault(f" ({k} of {n} seeds)" if n > 1 else "", []).append(row)
        every = 1 < len(own) == rows[column] and all(k == n for _, k, n in own)
        some = [listing(names, MOST_NAMED) + seeds for seeds, names in alike.items()]
        if alike:
            told.setdefault("all methods" if every else ", ".join(some), []).append(column)
    if len(columns) == 1 or [*told.values()] == [columns]:
        return "".join(told)
    return "; ".join(f"{who} in {listing(where)}" for who, where in told.items())


def _merged(notes: Sequence[Caution]) -> Iterator[str]:
    """Merge notes with the same text into one sentence, in the order of their first."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for note in notes:
        label = f"{note.run} ({note.figure})" if note.figure else note.run
        alike.setdefault((note.before, note.of_one, note.of_many), []).append(label)
    for (before, of_one, of_many), who in alike.items():
        yield before + listing(who) + (of_many or of_one if len(who) > 1 else of_one)


def _short(run: Run) -> Iterator[Caution]:
    if not finished(run.result):
        planned = run.setting("rounds")
        total = f" of {planned}" if planned is not None else ""
        recorded = f" cut short: {len(run.result.rounds)}{total} rounds are recorded"
        yield Caution(run.label, f" was{recorded}.", f" were{recorded} of each.")


def _diverging(run: Run) -> Iterator[Caution]:
    if why := diverging(run.result):
        ends = f" diverges: {why} before you compare it."
        yield Caution(run.label, ends, before="The training of ")


def _lied(run: Run) -> Iterator[Caution]:
    """Warn that means include clients that lied."""
    if attack := attack_of(run.result):
        ends = (
            f" had clients that lied ({named(run, list(attack.clients))}): means and gains count "
            "them too; the honest clients' mean stands with the table of those that lied."
        )
        yield Caution(run.label, ends)


def _undefined(run: Run) -> Iterator[Caution]:
    last = run.reported
    if last is None:
        return
    without = [
        c for c, v, s in zip(last.clients, last.value, last.samples, strict=True) if v is None and s
    ]
    if without:
        ends = (
            f" is undefined for {named(run, without)}, as it is where all test samples have one "
            f"answer; means are over the other {len(last.clients) - len(without)} clients."
        )
        yield Caution(run.label, ends, before=f"{capital(run.metric.title)} of ")


def _constant(run: Run) -> Iterator[Caution]:
    """Warn that the model is not better than a constant prediction."""
    metric, (floor, mean) = run.metric, _beside_constant(run)
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
    metric, constant, (floor, mean) = run.metric, run.constant, _beside_constant(run)
    below = [
        c for c, v in run.values.items() if c in constant and not metric.better(v, constant[c])
    ]
    if below and metric.better(mean, floor):
        worth = " no better than always giving one answer."
        yield Caution(run.label, f" is{worth}", f" are{worth}", before=f"For {named(run, below)} ")


def _beside_constant(run: Run) -> tuple[float | None, float | None]:
    """Return the means of a constant prediction and of the model, over the clients that have
    both.
    """
    both = [(run.constant[c], v) for c, v in run.values.items() if c in run.constant]
    return mean_of_known([floor for floor, _ in both]), mean_of_known([v for _, v in both])


def _threshold(run: Run) -> Iterator[Caution]:
    """Warn that, although scores rank well, predictions at the usual threshold may all be the most
    frequent class.
    """
    counts = [matrix for _, matrix in confusions(run)]
    if run.metric == ACCURACY or not counts:
        return
    right, frequent, total = (
        sum(int(f(m)) for m in counts) for f in (np.trace, lambda m: m.sum(axis=1).max(), np.sum)
    )
    if right <= frequent:
        ends = (
            " are right on no more of the test samples than each client's most frequent class is "
            f"({ACCURACY.text(frequent / total)}): rank by the probabilities, or choose a "
            "threshold, before you act on them."
        )
        before = "Taken as answers, the most likely classes of "
        yield Caution(run.label, ends, "", before, ACCURACY.text(right / total))


def _unmoved(run: Run) -> Iterator[Caution]:
    """Warn that relationships are unchanged, and so carry no information on the clients."""
    series = recorded(run).get("dr")
    if series and unmoved(series):
        ends = (
            " have hardly moved from the clients' shares of the samples: they say who is "
            "large, not who helps."
        )
        yield Caution(run.label, ends, before="The relationships of ")


def _climbing(run: Run) -> Iterator[Caution]:
    """Warn of a curve that was still rising."""
    if what := still_rising(run):
        seen = f"({what}): more rounds may change what this page says."
        yield Caution(
            run.label,
            f" was still getting better when it ended {seen}",
            f" were still getting better when they ended {seen}",
        )


def _overtrained(run: Run) -> Iterator[Caution]:
    """Warn of a curve that was better before the compared round."""
    if (since := worse_since(run)) is not None:
        seen = f"({run.metric.title} on validation): {REMEDY}."
        yield Caution(
            run.label,
            f" has got worse since round {since} {seen}",
            f" have got worse since round {since} {seen}",
        )


def _alone(runs: list[Run]) -> Iterator[str]:
    first = next((run for run in runs if run.mean is not None), None)
    if first and comparable(runs) and baseline(runs, first) is None:
        yield (
            "Training alone was not run, so whether federation helps stays open: run “separate” "
            "with the same data, partition and seed, and write a report of all."
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
    known = [(run.mean, run) for run in runs if run.mean is not None and run.metric == ACCURACY]
    if len(known) < 2 or not comparable(runs):
        return
    (first, best), (second, rest) = sorted(known, key=lambda pair: -pair[0])[:2]
    sizes = _tested(best)
    client = min(sizes, key=sizes.__getitem__)
    if first - second < 1 / (len(sizes) * sizes[client]):
        yield (
            f"The means of {best.label} and {rest.label} are closer than one test sample: one "
            "answer more or less on "
            f"{best.client(client)} ({sizes[client]} samples) would level or turn them."
        )


def _tested(run: Run) -> dict[int, int]:
    """Return the number of test samples of each client that has a value."""
    if run.reported is None:
        return {}
    rows = zip(run.reported.clients, run.reported.value, run.reported.samples, strict=True)
    return {client: n for client, value, n in rows if value is not None}


def _events(runs: list[Run]) -> Iterator[str]:
    """Warn of clients with too few test samples in some run, or too few of the rarer answer.

    Runs of other clients than the first's are not looked at.
    """
    run = next((run for run in runs if run.reported), None)
    if run is None:
        return
    who = run.result.about["clients"]
    sizes = [
        (client, samples, one.units(client, samples))
        for one in runs
        if one.reported and one.result.about["clients"] == who
        for client, samples in zip(one.reported.clients, one.reported.samples, strict=True)
    ]
    small = sorted({client for client, _, units in sizes if 0 < units < FEW_SAMPLES})
    if any(units < samples for _, samples, units in sizes):
        yield (
            "Test samples of one group (data.group_column) belong together, such as the rows of a "
            "patient: numbers of single clients have no intervals, gains have those of groups."
        )
    if small:
        yield (
            f"Fewer than {FEW_SAMPLES} test samples are at {named(run, small)}: look at the "
            "intervals, not at the numbers."
        )
    yield from _rare(run, small)


def _rare(run: Run, small: Collection[int]) -> Iterator[str]:
    """Warn of clients with few test samples of the rarer of two answers; ``small``: those named
    already.
    """
    counts = {c: matrix.sum(axis=1) for c, matrix in confusions(run) if len(matrix) == 2}
    if not counts:
        return
    rare = int(np.argmin(sum(counts.values())))
    few = {c: int(n[rare]) for c, n in counts.items() if c not in small and n[rare] < FEW_EVENTS}
    if few:
        classes = run.result.about.get("classes") or ()
        what = f"“{classes[rare]}”" if len(classes) == 2 else f"class {rare}"
        each = listing([f"{run.client(c)} ({n})" for c, n in few.items()], MOST_NAMED)
        yield (
            f"Fewer than {FEW_EVENTS} test samples are {what} at {each}: figures of them alone "
            "are uncertain."
        )


def _picked(runs: list[Run]) -> Iterator[str]:
    """Warn that the best of several runs was selected on the data used to evaluate it."""
    judged = [run for run in runs if run.mean is not None and run.result.name != ALONE]
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
        yield (
            f"The runs minimise different losses ({listing(names)}), which do not compare with "
            "each other."
        )


def _one_seed(runs: list[Run]) -> Iterator[str]:
    if len(runs) > 1 and len({run.setting("seed") for run in runs}) == 1:
        yield (
            "All runs use one seed, so the intervals know of other test samples but not of other "
            "starts or partitions: repeat with other seeds."
        )


def _best_on_test(runs: list[Run]) -> Iterator[str]:
    if any(run.mean is not None for run in runs):
        papers = (
            ", the papers' BMCTA (best mean client test accuracy),"
            if any(run.metric == ACCURACY for run in runs)
            else ""
        )
        yield (
            f"“Best on test”{papers} picks its round by looking at the test data: it compares with "
            "published tables, and is optimistic."
        )


EACH: Mapping[Callable[[Run], Iterator[Caution]], str] = {
    _short: "",
    _diverging: "The training diverges: lower lr before you compare",
    _lied: "",
    _undefined: "Undefined at clients whose test samples have one answer, so means leave them out",
    _constant: "No better than always giving one answer, on average over clients",
    _constant_for_some: "No better than always giving one answer for some clients",
    _threshold: (
        "The most likely classes, taken as answers, are right on no more of the test samples than "
        "each client's most frequent class"
    ),
    _unmoved: "Relationships have hardly moved from the clients' shares of the samples",
    _climbing: "Still getting better at the end, so more rounds may change this page",
    _overtrained: (
        "Worse on validation at the end than earlier, and gains are of the last round: run all "
        "with keep=best"
    ),
}
"""Cautions of one run, most serious first, each with its words for the methods of a bench; empty
where it does not apply: a bench has only finished runs, and its means leave out clients that lie.
"""
OF_KEPT = (_threshold, _overtrained)
"""Those of the models that a run keeps, whichever round a page shows."""
