"""What the papers state of their experiments, held against the suites that repeat them."""

from pathlib import Path

import pytest
import torch

from pomona.experiments.grid import plan
from pomona.experiments.suite import SIZES, read_suite
from pomona.methods.fedamp import FedAMP, slope, step
from problems import a_round

FOLDER = Path(__file__).parents[2] / "suites"
SUITES = sorted(FOLDER.glob("**/*.toml"))


def cells(name, size):
    return [cell for group in plan(read_suite(FOLDER / f"{name}.toml"), size) for cell in group.cells()]


@pytest.mark.parametrize("file", SUITES, ids=lambda p: p.stem)
def test_fedamps_cloud_models_are_convex_combinations_in_every_run(file):
    """Section 4: u_i is a convex combination; sum_j alpha A' <= alpha (N - 1) A'(0), which must not exceed 1."""
    for size in SIZES:
        for config in {c.folder: c.config for c in cells(file.stem, size)}.values():
            if isinstance(config.method, FedAMP):
                amp, N = config.method, config.clients
                steepest = amp.factor * float(slope(amp, torch.zeros(1, dtype=torch.float64)))
                assert step(amp, a_round(1, total=config.rounds), N) * (N - 1) * steepest <= 1


@pytest.mark.parametrize("table", [1, 2, 3])
@pytest.mark.parametrize("size", ["cpu", "full"])
def test_fedamps_scale_is_searched_and_every_search_is_as_long(table, size):
    groups = plan(read_suite(FOLDER / f"fedamp-table{table}.toml"), size)
    tried = {g.method: {p.get("method.sigma") for p in g.points} for g in groups if g.method == "fedamp"}
    assert tried == {"fedamp": {10.0, 25.0, 100.0}}
    assert {len(g.points) for g in groups} == {1, 3}
