"""Cautions of a page: one plain sentence for each limitation of its numbers."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from pomona.core.errors import StorageError
from pomona.core.table import grouped
from pomona.experiments.reference import Average
from pomona.record.predictions import PREDICTIONS
from pomona.record.run_folder import load, require_unchanged
from pomona.record.run_summary import attack_of
from pomona.results.comparison import Comparison, ComparisonRow
from pomona.results.method_colours import styles
from pomona.results.run_numbers import Run
from pomona.results.seeds import over_seeds, unpaired
from pomona.results.text.joint_cautions import JOINT_CAUTIONS, MAX_NAMES, few_events, one_seed
from pomona.results.text.run_cautions import KEPT_MODEL_CAUTIONS, RUN_CAUTIONS, Caution
from pomona.results.wording import listing

MethodRuns = Sequence[tuple[ComparisonRow, Sequence[Run]]]
Counts = Sequence[tuple[ComparisonRow, int, int]]  # with a caution, and of all runs of a method


def cautions(runs: list[Run]) -> list[str]:
    """Return the sentences, most serious first; those for several runs are merged and name them."""
    single = [
        sentence
        for check in RUN_CAUTIONS
        for sentence in _merged([note for run in runs for note in check(run)])
    ]
    compared = over_seeds(runs)
    pairing = [reason] if (reason := unpaired(runs)) else []
    together = [
        *pairing,
        *one_seed(runs),
        *(note for check in JOINT_CAUTIONS for note in check(compared)),
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


def _seeds_with(check: Callable[[Run], Iterator[Caution]], methods: MethodRuns) -> Counts:
    """Return each method with how many of its runs have a caution, and how many there are."""
    return [(e, sum(any(check(run)) for run in runs), len(runs)) for e, runs in methods]


def _joint_cautions(comparison: Comparison, methods: MethodRuns) -> list[str]:
    """Return the sentences on all runs of a scenario: on few events by scenario, on seeds once."""
    few, once = list[str](), dict[str, None]()
    for scenario in comparison.scenarios:
        together = [run for entry, runs in methods if entry.scenario == scenario for run in runs]
        column = comparison.in_scenario(scenario)[0].column
        scope = f"{column}: " if len(comparison.scenarios) > 1 else ""
        few += [f"{scope}{sentence}" for sentence in few_events(together)]
        once |= dict.fromkeys(one_seed(together))
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


def _methods_named(counts: Counts, rows: Mapping[str, int]) -> str:
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
    by_seeds = grouped((f" ({k} of {n} seeds)" if n > 1 else "", row) for row, k, n in entries if k)
    return ", ".join(listing(names, MAX_NAMES) + seeds for seeds, names in by_seeds.items())


def _merged(notes: Sequence[Caution]) -> Iterator[str]:
    """Merge notes with the same text into one sentence, in the order of their first."""
    by_text = grouped(((note.prefix, note.singular, note.plural), note.label) for note in notes)
    for (prefix, singular, plural), labels in by_text.items():
        yield prefix + listing(labels) + (plural or singular if len(labels) > 1 else singular)
