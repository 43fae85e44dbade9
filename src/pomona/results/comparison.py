"""A bench's results beside the paper's: one record per scenario and method, from which the tables are built."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pomona.core.table import NOTHING
from pomona.experiments import Bench
from pomona.metrics.client_statistics import Spread, spread
from pomona.metrics.metric import ACCURACY, Metric, metric_named
from pomona.metrics.nan_safe import defined, row_means
from pomona.results.paper_tables import COUNTED, Count, Printed, printed


def told(value: Spread | None, metric: Metric) -> str:
    """Format mean ± standard deviation of a metric (with the number of seeds); a dash for None."""
    if value is None:
        return NOTHING
    std = "" if value.std is None else f" ± {metric.number(value.std)}"
    return f"{metric.number(value.mean)}{std} ({value.n})"


@dataclass(frozen=True)
class ComparisonRow:
    """One scenario and method of a bench.

    Attributes:
        scenario, method: names in the suite; ``row``, ``setting``, ``dataset``: the paper's, or the suite's.
        table: the paper's table with this column.
        state, reason: as in the results.
        metric: accuracy for a comparison with a paper, which gives accuracies; else the runs' headline metric.
        settings: of its runs, as a tree.
        chosen, tried: the chosen point, and the number of points tried.
        cells: the finished ones.
        printed: the paper's accuracies and other figures, by the suffix of the row's name ("" for the accuracy).
    """

    scenario: str
    method: str
    row: str
    setting: str
    dataset: str
    table: str
    state: str
    reason: str
    metric: Metric
    settings: Mapping[str, Any]
    chosen: Mapping[str, Any]
    tried: int
    cells: tuple[Mapping[str, Any], ...]
    printed: Mapping[str, Printed]

    @property
    def column(self) -> str:
        """The scenario in the paper's words."""
        return f"{self.dataset}, {self.setting}" if self.dataset and self.setting else self.scenario

    def values(self, count: Count) -> list[float | None]:
        """Return the metric of the method's headline model, one value per seed, for one way of counting."""
        return [_value(cell["figures"], self.metric, count) for cell in self.cells]

    def clients(self) -> dict[int, list[float | None]]:
        """Return each client's metric by seed, in the best validation round, or in the last if there is none."""
        found = {}
        for cell in self.cells:
            own = _judged(cell["figures"])
            if moment := own.get("best_validation") or own.get("last"):
                found[int(cell["seed"])] = _of(moment, self.metric)
        return found

    def curve(self) -> list[tuple[list[int], list[float | None]]]:
        """Return (rounds, mean over clients) of each seed."""
        curves = [cell["figures"]["curve"] for cell in self.cells]
        return [(c["round"], c["test_accuracy" if self.metric == ACCURACY else "test_value"]) for c in curves]


def _judged(figures: Mapping[str, Any]) -> Mapping[str, Any]:
    own: Mapping[str, Any] = figures["models"].get(figures["headline"], {})
    return own


def _of(moment: Mapping[str, Any], metric: Metric) -> list[float | None]:
    """Return one value per client; benches of earlier versions have only accuracies."""
    return list(moment["accuracy" if metric == ACCURACY else "value"])


def _value(figures: Mapping[str, Any], metric: Metric, count: Count) -> float | None:
    if count.average == "samples" and not metric.pools:
        return None
    if count.moment == "best_test":
        means = "test_accuracy" if metric == ACCURACY else "test_value"
        pooled = "test_accuracy_pooled" if metric == ACCURACY else ""
        # A bench of an earlier version has no pooled curve.
        return metric.best(figures["curve"].get(means if count.average == "clients" else pooled, ()))
    moment = _judged(figures).get(count.moment)
    if not moment:
        return None
    weights = moment["samples"] if count.average == "samples" else 1.0
    return defined(row_means(np.array([_of(moment, metric)], dtype=float), weights)[0])


def _metric(results: Mapping[str, Any], result: Mapping[str, Any]) -> Metric:
    named = [cell["figures"].get("metric") for cell in result["cells"] if cell["figures"]]
    return ACCURACY if results["paper"] or not named or not named[0] else metric_named(named[0])


@dataclass(frozen=True)
class Comparison:
    """A bench compared with its paper.

    Attributes:
        bench: the results.
        entries: one per scenario and method, in the suite's order.
        count: the paper's way of counting; without a paper, the client mean in the best validation round, as in the
            terminal and ``table.md``, or in the last round without validation samples.
    """

    bench: Bench
    entries: tuple[ComparisonRow, ...]
    count: Count

    @property
    def paper(self) -> str:
        """The paper's key; empty if the suite has none."""
        return str(self.bench.results["paper"])

    @property
    def scenarios(self) -> list[str]:
        """Columns, in the suite's order."""
        return list(dict.fromkeys(e.scenario for e in self.entries))

    @property
    def metrics(self) -> list[Metric]:
        """Metrics for comparing the entries."""
        return list(dict.fromkeys(e.metric for e in self.entries if e.cells)) or [ACCURACY]

    @property
    def methods(self) -> list[str]:
        """Rows, in the suite's order."""
        return list(self.bench.results["methods"])

    def of(self, scenario: str) -> list[ComparisonRow]:
        """Return the entries of a column."""
        return [e for e in self.entries if e.scenario == scenario]

    def ours(self, entry: ComparisonRow) -> Spread | None:
        """Return an entry's metric over seeds, by the paper's way of counting; None without a result."""
        return spread(entry.values(self.count))

    def at(self, scenario: str, method: str) -> ComparisonRow | None:
        """Return one entry; None if the suite has no such cell."""
        return next((e for e in self.entries if (e.scenario, e.method) == (scenario, method)), None)


def comparison(bench: Bench) -> Comparison:
    """Combine a bench's results with its paper's figures."""
    results = bench.results
    entries = tuple(_entry(results, r) for r in results["results"])
    validated = any(_judged(c["figures"]).get("best_validation") for e in entries for c in e.cells)
    own = Count("best_validation" if validated else "last", "clients")
    return Comparison(bench, entries, COUNTED.get(results["paper"], own))


def _entry(results: Mapping[str, Any], result: Mapping[str, Any]) -> ComparisonRow:
    column = results["scenarios"][result["scenario"]]
    method = results["methods"][result["method"]]
    row = method["row"] or method.get("presentation", {}).get("title") or result["method"]
    reasons = [c["reason"] for c in (*result["cells"], *result["search"]) if c["reason"]]
    figures = {
        key[2].removeprefix(row).removeprefix(" :: "): figure
        for key, figure in printed(results["paper"], column["table"]).items()
        if key[:2] == (column["setting"], column["dataset"]) and key[2].split(" :: ")[0] == row
    }
    return ComparisonRow(
        scenario=result["scenario"],
        method=result["method"],
        row=row,
        setting=column["setting"],
        dataset=column["dataset"],
        table=column["table"],
        state=result["state"],
        reason=reasons[0] if reasons else "",
        metric=_metric(results, result),
        settings=result["settings"] or {},
        chosen=result["chosen"] or {},
        tried=len(result["search"]),
        cells=tuple(c for c in result["cells"] if c["figures"]),
        printed=figures,
    )
