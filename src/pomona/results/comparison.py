"""A bench's results next to reference numbers: one record per scenario and method, from which the
tables are built.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from pomona.core.errors import ConfigError
from pomona.experiments import Bench, bench_gains
from pomona.experiments.bench_gains import GainsOrReason
from pomona.experiments.reference import AVERAGES, Average, Number, Reference, ReferenceScenario
from pomona.metrics.client_statistics import Spread, spread
from pomona.metrics.metric import ACCURACY, Metric, metric_named
from pomona.metrics.nan_safe import defined, row_means
from pomona.results.run_numbers import SEPARATE


@dataclass(frozen=True)
class Printed:
    """The reference's numbers for one scenario and method; None if it has none."""

    number: Number | None = None
    epsilon: Number | None = None
    minutes: Number | None = None
    minutes_a_round: Number | None = None
    chosen: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def lookup(cls, scenario: ReferenceScenario, row: str) -> "Printed":
        """Look up a method by its row."""
        return cls(
            scenario.numbers.get(row),
            scenario.epsilon.get(row),
            scenario.minutes.get(row),
            scenario.minutes_a_round.get(row),
            scenario.chosen.get(row, {}),
        )

    @property
    def value(self) -> float | None:
        """The number shown next to ours, in the unit of the metric's heading."""
        return self.number.value if self.number and not isinstance(self.number.value, str) else None

    @property
    def notes(self) -> list[str]:
        """Peculiarities of its numbers."""
        numbers = (self.number, self.epsilon, self.minutes, self.minutes_a_round)
        return [number.note for number in numbers if number and number.note]


@dataclass(frozen=True)
class ComparisonRow:
    """One scenario and method of a bench.

    Attributes:
        scenario, method: names in the suite.
        column, row: names in tables.
        state, reason: as in the results.
        metric: the reference's for a comparison with one; else the runs' headline metric.
        settings: of its runs, as a tree.
        chosen, tried: the chosen point, and the number of points tried.
        cells: the finished ones.
        printed: the reference's numbers.
    """

    scenario: str
    method: str
    column: str
    row: str
    state: str
    reason: str
    metric: Metric
    settings: Mapping[str, Any]
    chosen: Mapping[str, Any]
    tried: int
    cells: tuple[Mapping[str, Any], ...]
    printed: Printed

    def values(self, count: Average) -> list[float | None]:
        """Return the metric of the method's headline model, one value per seed, for one way of
        counting.
        """
        return [_value(cell["figures"], self.metric, count) for cell in self.cells]

    def clients(self) -> dict[int, list[float | None]]:
        """Return each client's metric by seed, in the best validation round, or in the last if
        there is none.
        """
        by_seed = {}
        for cell in self.cells:
            model = _headline_model(cell["figures"])
            if moment := model.get("best_validation") or model.get("last"):
                by_seed[int(cell["seed"])] = _client_values(moment, self.metric)
        return by_seed

    def tested(self) -> list[dict[str, int]]:
        """Return each seed's number of test samples by client."""
        figures = [cell["figures"] for cell in self.cells]
        return [
            dict(zip(f["clients"], last["samples"], strict=True))
            for f in figures
            if (last := _headline_model(f).get("last"))
        ]

    def curve(self) -> list[tuple[list[int], list[float | None]]]:
        """Return (rounds, mean over clients) of each seed."""
        values = "test_accuracy" if self.metric == ACCURACY else "test_value"
        curves = (cell["figures"]["curve"] for cell in self.cells)
        return [(curve["round"], curve[values]) for curve in curves]


def _headline_model(figures: Mapping[str, Any]) -> Mapping[str, Any]:
    model: Mapping[str, Any] = figures["models"].get(figures["headline"], {})
    return model


def _client_values(moment: Mapping[str, Any], metric: Metric) -> list[float | None]:
    """Return one value per client."""
    return list(moment["accuracy" if metric == ACCURACY else "value"])


def _value(figures: Mapping[str, Any], metric: Metric, count: Average) -> float | None:
    if count.unit == "samples" and not metric.pools:
        return None
    if count.moment == "best_test":
        return _best_on_test(figures["curve"], metric, count.unit)
    moment = _headline_model(figures).get(count.moment)
    if not moment:
        return None
    weights = moment["samples"] if count.unit == "samples" else 1.0
    return defined(row_means(np.array([_client_values(moment, metric)], dtype=float), weights)[0])


def _best_on_test(curve: Mapping[str, Any], metric: Metric, unit: str) -> float | None:
    """Return the best mean over clients or samples after training; before it if there is none."""
    means = "test_accuracy" if metric == ACCURACY else "test_value"
    pooled = "test_accuracy_pooled" if metric == ACCURACY else ""
    values = curve.get(means if unit == "clients" else pooled, ())
    later = [value for number, value in zip(curve["round"], values, strict=False) if number]
    best = metric.best(later)
    return metric.best(values) if best is None else best


def _metric(reference: Reference | None, result: Mapping[str, Any]) -> Metric:
    """Return the metric of a result's numbers; without any, the reference's.

    Raises ConfigError if they cannot be compared with the reference's.
    """
    recorded = next(
        (cell["figures"]["metric"] for cell in result["cells"] if cell["figures"]), None
    )
    expected = reference.metric if reference else recorded or ACCURACY.name
    if recorded and expected not in (recorded, ACCURACY.name):
        raise ConfigError(
            f"the reference numbers are {expected}, but {result['method']} in "
            f"{result['scenario']} recorded {recorded}; give numbers of the same metric"
        )
    return metric_named(expected)


@dataclass(frozen=True)
class Comparison:
    """A bench compared with reference numbers, if there are some.

    Attributes:
        bench: the results.
        reference: the numbers' file.
        entries: one per scenario and method, in the suite's order.
        count: how the reference counts; without one, the client mean in the best validation round,
            as in the terminal and ``table.md``, or in the last round without validation samples.
    """

    bench: Bench
    reference: Reference | None
    entries: tuple[ComparisonRow, ...]
    count: Average

    @cached_property
    def gained(self) -> list[GainsOrReason]:
        """The gains of each entry over Separate, or why it has none."""
        return bench_gains.gained(self.bench.folder, self.bench.results, SEPARATE)

    @property
    def scenarios(self) -> list[str]:
        """Columns, in the suite's order."""
        return list(dict.fromkeys(e.scenario for e in self.entries))

    @property
    def metrics(self) -> list[Metric]:
        """Metrics for comparing the entries."""
        finished = [e for e in self.entries if e.cells] or self.entries
        return list(dict.fromkeys(e.metric for e in finished)) or [ACCURACY]

    @property
    def headings(self) -> str:
        """Headings of the metrics."""
        return " or ".join(metric.heading for metric in self.metrics)

    @property
    def methods(self) -> list[str]:
        """Rows, in the suite's order."""
        return list(self.bench.results["methods"])

    def in_scenario(self, scenario: str) -> list[ComparisonRow]:
        """Return the entries of a column."""
        return [e for e in self.entries if e.scenario == scenario]

    def ours(self, entry: ComparisonRow) -> Spread | None:
        """Return an entry's metric over seeds, by the reference's way of counting; None without a
        result.
        """
        return spread(entry.values(self.count))

    def entry(self, scenario: str, method: str) -> ComparisonRow | None:
        """Return one entry; None if the suite has no such cell."""
        return next((e for e in self.entries if (e.scenario, e.method) == (scenario, method)), None)


def comparison(bench: Bench, reference: Reference | None = None) -> Comparison:
    """Combine a bench's results with reference numbers: the given ones, or those that its suite
    names.

    Raises:
        ConfigError: the reference's numbers are of another metric than the bench's, or the given
            ones of none of its scenarios and methods.
    """
    results, explicit = bench.results, reference is not None
    if reference is None and results["reference"]:
        reference = Reference.model_validate(results["reference"])
    entries = tuple(_entry(results, r, reference) for r in results["results"])
    if explicit:
        _require_known(entries)
    if reference:
        return Comparison(bench, reference, entries, AVERAGES[reference.average])
    validated = any(
        _headline_model(c["figures"]).get("best_validation") for e in entries for c in e.cells
    )
    count = AVERAGES["best_validation" if validated else "last"]
    return Comparison(bench, None, entries, count)


def _require_known(entries: Sequence[ComparisonRow]) -> None:
    """Refuse reference numbers of other scenarios and methods."""
    if any(entry.printed != Printed() for entry in entries):
        return
    columns, rows = (dict.fromkeys(getattr(e, key) for e in entries) for key in ("column", "row"))
    raise ConfigError(
        "none of the reference numbers belongs to this bench; its scenarios are "
        f"{'; '.join(columns)}, its methods {'; '.join(rows)}"
    )


def _entry(
    results: Mapping[str, Any], result: Mapping[str, Any], reference: Reference | None
) -> ComparisonRow:
    method = results["methods"][result["method"]]
    column = results["scenarios"][result["scenario"]]["title"] or result["scenario"]
    row = method["row"] or method.get("presentation", {}).get("title") or result["method"]
    reasons = [c["reason"] for c in (*result["cells"], *result["search"]) if c["reason"]]
    return ComparisonRow(
        scenario=result["scenario"],
        method=result["method"],
        column=column,
        row=row,
        state=result["state"],
        reason=reasons[0] if reasons else "",
        metric=_metric(reference, result),
        settings=result["settings"] or {},
        chosen=result["chosen"] or {},
        tried=len(result["search"]),
        cells=tuple(c for c in result["cells"] if c["figures"]),
        printed=Printed.lookup(reference.for_scenario(column), row) if reference else Printed(),
    )
