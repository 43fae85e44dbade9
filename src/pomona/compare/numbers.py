"""A bench's results beside the paper's: one record a scenario and method, with everything the tables are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

from pomona.bench import Bench
from pomona.compare.paper import COUNTED, Count, Printed, printed
from pomona.report.style import label_of


@dataclass(frozen=True)
class Spread:
    """Mean over seeds, standard deviation (ddof = 1; None for one), how many seeds."""

    mean: float
    std: float | None
    n: int


def spread(values: Sequence[float | None]) -> Spread | None:
    """Mean and standard deviation of what is known; None if nothing is."""
    known = [v for v in values if v is not None]
    return Spread(fmean(known), stdev(known) if len(known) > 1 else None, len(known)) if known else None


@dataclass(frozen=True)
class Entry:
    """One scenario and method of a bench.

    Attributes:
        scenario, method: names in the suite; ``row``, ``setting``, ``dataset``: the paper's, or the suite's.
        table: the paper's table that the column belongs to.
        state, reason: as in the results.
        settings: of its runs, as a tree.
        chosen, tried: the point chosen, and how many were tried.
        cells: the finished ones.
        printed: the paper's accuracies and other figures, by what follows the row's name ("" for the accuracy).
    """

    scenario: str
    method: str
    row: str
    setting: str
    dataset: str
    table: str
    state: str
    reason: str
    settings: Mapping[str, Any]
    chosen: Mapping[str, Any]
    tried: int
    cells: tuple[Mapping[str, Any], ...]
    printed: Mapping[str, Printed]

    @property
    def column(self) -> str:
        """The scenario in the paper's words."""
        return f"{self.dataset}, {self.setting}" if self.dataset and self.setting else self.scenario

    def accuracy(self, count: Count) -> list[float | None]:
        """The accuracy of the model that the method is judged by, one a seed, counted in one way."""
        return [_accuracy(cell["figures"], count) for cell in self.cells]

    def clients(self) -> dict[int, list[float | None]]:
        """Accuracy of each client by seed, in the round best on validation, or in the last where there is none."""
        found = {}
        for cell in self.cells:
            own = _judged(cell["figures"])
            if moment := own.get("best_validation") or own.get("last"):
                found[int(cell["seed"])] = list(moment["accuracy"])
        return found


def _judged(figures: Mapping[str, Any]) -> Mapping[str, Any]:
    own: Mapping[str, Any] = figures["models"].get(figures["headline"], {})
    return own


def _accuracy(figures: Mapping[str, Any], count: Count) -> float | None:
    if count.moment == "best_test":
        # A bench of an earlier version holds no pooled curve: its cells have no such figure.
        curve = figures["curve"].get({"clients": "test_accuracy", "samples": "test_pooled"}[count.average], ())
        return max((a for a in curve if a is not None), default=None)
    own = _judged(figures).get(count.moment)
    return own["summary"][{"clients": "mean", "samples": "pooled"}[count.average]] if own else None


@dataclass(frozen=True)
class Comparison:
    """A bench beside its paper.

    Attributes:
        bench: the results as they are.
        entries: one a scenario and method, in the suite's order.
        count: how the paper counts; the client mean in the last round where there is no paper.
    """

    bench: Bench
    entries: tuple[Entry, ...]
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
    def methods(self) -> list[str]:
        """Rows, in the suite's order."""
        return list(self.bench.results["methods"])

    def of(self, scenario: str) -> list[Entry]:
        """The entries of a column."""
        return [e for e in self.entries if e.scenario == scenario]

    def at(self, scenario: str, method: str) -> Entry | None:
        """One entry; None where the suite has no such cell."""
        return next((e for e in self.entries if (e.scenario, e.method) == (scenario, method)), None)


def comparison(bench: Bench) -> Comparison:
    """Put a bench's results beside its paper's figures."""
    results = bench.results
    count = COUNTED.get(results["paper"], Count("last", "clients"))
    return Comparison(bench, tuple(_entry(results, r) for r in results["results"]), count)


def _entry(results: Mapping[str, Any], result: Mapping[str, Any]) -> Entry:
    column = results["scenarios"][result["scenario"]]
    row = results["methods"][result["method"]]["row"] or label_of(result["method"])
    reasons = [c["reason"] for c in (*result["cells"], *result["search"]) if c["reason"]]
    figures = {
        key[2].removeprefix(row).removeprefix(" :: "): figure
        for key, figure in printed(results["paper"], column["table"]).items()
        if key[:2] == (column["setting"], column["dataset"]) and key[2].split(" :: ")[0] == row
    }
    return Entry(
        scenario=result["scenario"],
        method=result["method"],
        row=row,
        setting=column["setting"],
        dataset=column["dataset"],
        table=column["table"],
        state=result["state"],
        reason=reasons[0] if reasons else "",
        settings=result["settings"] or {},
        chosen=result["chosen"] or {},
        tried=len(result["search"]),
        cells=tuple(c for c in result["cells"] if c["figures"]),
        printed=figures,
    )
