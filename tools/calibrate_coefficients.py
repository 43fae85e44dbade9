"""How often intervals of odds ratios, hazard ratios and differences contain the true ones.

    python tools/calibrate_coefficients.py               # the table of docs/internals/statistics.md
    python tools/calibrate_coefficients.py --repeats 100 # quickly

Each repeat draws a table from a linear model: age, a second number, a yes/no column and a category
of three. Its sites together train one model, or each its own. Models are put at the maximum of
their rows' likelihood by Newton's steps, then as far away from it as ``MAX_DISTANCE`` admits, in a
random direction, and passed to the functions behind ``pomona.coefficients``.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from math import exp
from typing import Any

import numpy as np
import pandas as pd
import torch

from pomona.config import Config
from pomona.core.rng import stream
from pomona.data import from_frame
from pomona.personal.coefficients import MAX_DISTANCE, coefficients
from pomona.personal.information import LinearModel
from pomona.record import coefficients as record
from pomona.record.result import gather
from pomona.scenario import Scenario

TRUTH = {"age": 0.04, "marker": 0.5, "sex": 0.4, "II": 0.3, "III": -0.8}
COLUMNS: dict[str, Any] = {"client_column": "site", "categories": "encode"}
SETTINGS: dict[str, dict[str, Any]] = {
    "odds ratio": {"label_column": "y"},
    "difference": {"label_column": "y", "targets": "regression"},
    "hazard ratio": {"label_columns": ["time", "event"], "targets": "survival"},
}


@dataclass(frozen=True)
class Cell:
    """Sites of ``rows`` rows each; ``centre``: the linear predictor of the mean patient."""

    measure: record.Measure
    rows: int
    sites: int
    shared: bool
    centre: float = 0.0


CELLS = (
    *(Cell("odds ratio", 200, 3, True), Cell("odds ratio", 200, 3, True, -1.8)),
    *(Cell("odds ratio", 300, 2, False), Cell("odds ratio", 150, 2, False)),
    *(Cell("difference", 60, 3, True), Cell("difference", 40, 2, False)),
    *(Cell("hazard ratio", 150, 3, True), Cell("hazard ratio", 200, 2, False)),
)


def simulate(cell: Cell, draw: np.random.Generator) -> pd.DataFrame:
    """A table of all sites."""
    n = cell.rows * cell.sites
    table = pd.DataFrame({"age": draw.normal(60, 12, n), "marker": draw.gamma(2.0, 1.0, n)})
    sites = np.repeat([f"site {k}" for k in range(cell.sites)], cell.rows)
    stage = draw.choice(["I", "II", "III"], n, p=[0.5, 0.3, 0.2])
    table = table.assign(sex=draw.integers(0, 2, n), stage=stage, site=sites)
    risk = cell.centre + TRUTH["age"] * (table.age - 60) + TRUTH["marker"] * (table.marker - 2)
    risk += TRUTH["sex"] * (table.sex - 0.5) + table.stage.map(TRUTH).fillna(0)
    if cell.measure == "difference":
        return table.assign(y=risk + draw.normal(size=n))
    if cell.measure == "odds ratio":
        return table.assign(y=np.where(draw.random(n) < 1 / (1 + np.exp(-risk)), "yes", "no"))
    time, censored = draw.exponential(np.exp(-risk)), draw.exponential(2.0, n)
    return table.assign(time=np.minimum(time, censored) + 1e-6, event=1 * (time < censored))


def scenario_of(cell: Cell, table: pd.DataFrame) -> Scenario:
    """The table as a federation's data."""
    data = from_frame(table, **COLUMNS, **SETTINGS[cell.measure])
    model = "proportional-hazards" if cell.measure == "hazard ratio" else "logistic"
    method = "fedavg" if cell.shared else "separate"
    return Scenario.prepare(Config(method=method, data=data, model={"name": model}))


def optimum(network: LinearModel, start: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """The parameters (d,) that maximise the likelihood of some rows, by damped Newton steps."""
    theta = start.double()
    for _ in range(50):
        information = network.information(theta, rows)
        if information.distance < 1e-4:
            break
        step = torch.from_numpy(information.step)
        theta = theta - step / max(1, information.distance / 5)
    return theta


def perturbed(
    network: LinearModel, theta: torch.Tensor, rows: torch.Tensor, draw: np.random.Generator
) -> torch.Tensor:
    """Parameters almost ``MAX_DISTANCE`` standard errors away, in a random direction."""
    information = network.information(theta, rows)
    vectors, values, _ = np.linalg.svd(information.inverse)
    step = torch.from_numpy(vectors * np.sqrt(values) @ draw.normal(size=len(theta))) / 1000
    return theta + step * 0.95 * MAX_DISTANCE / network.information(theta + step, rows).distance


def covered(cell: Cell, draw: np.random.Generator) -> Iterator[tuple[bool, bool]]:
    """Yield (whether the model is away from the optimum, whether the interval contains the truth)
    of each coefficient with an interval.
    """
    scenario = scenario_of(cell, simulate(cell, draw))
    network, headline = LinearModel.of(scenario), scenario.config.method.method().card.headline
    train = network.data.rows["train"]
    sources = [torch.cat(train)] if cell.shared else train
    best = [optimum(network, scenario.initial(), rows) for rows in sources]
    distant = [perturbed(network, *pair, draw) for pair in zip(best, sources, strict=True)]
    for is_distant, models in ((False, best), (True, distant)):
        rows = [{headline: model} for model in models * (cell.sites if cell.shared else 1)]
        events = [("coefficients", event) for event in coefficients(scenario, rows)]
        result = gather([("start", {"clients": scenario.names}), *events], {}, None)
        for c in record.coefficients(result):
            if c.low is not None and c.high is not None:
                truth = _truth(c) if cell.measure == "difference" else exp(_truth(c))
                yield is_distant, c.low <= truth <= c.high


def _truth(c: record.Coefficient) -> float:
    """The coefficient that a table was drawn with."""
    if c.column == "stage":
        return TRUTH.get(c.step, 0.0) - TRUTH.get(c.reference, 0.0)
    return TRUTH[c.column]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=1000)
    repeats = parser.parse_args().repeats
    torch.set_num_threads(1)
    print("| measure | sites x rows | model | with interval | coverage | away from the optimum |")
    print("| --- |" + " --- |" * 5)
    for cell in CELLS:
        draw, results = stream(0, "coefficients", cell.rows, cell.sites), []
        for _ in range(repeats):
            results += list(covered(cell, draw))
        is_distant, hits = np.array(results).T
        rates = [100 * hits[is_distant == distant].mean() for distant in (False, True)]
        total = repeats * len(TRUTH) * (1 if cell.shared else cell.sites)
        share = 100 * (~is_distant).sum() / total
        name = f"{cell.measure} | {cell.sites} x {cell.rows} | {'shared' if cell.shared else 'own'}"
        print(f"| {name} | {share:.0f} | {rates[0]:.1f} | {rates[1]:.1f} |", flush=True)


if __name__ == "__main__":
    main()
