"""Statements of the papers about their experiments, checked against the suites that repeat them."""

import pytest
import torch
from paper_suites import SIZES, SUITES, cells, planned, suite

from pomona.experiments.grid import plan
from pomona.methods.mixtures.fedamp import FedAMP, slope, step
from problems import a_round

pytestmark = pytest.mark.long


@pytest.mark.parametrize("file", SUITES, ids=lambda p: p.stem)
def test_fedamps_cloud_models_are_convex_combinations_in_every_run(file):
    """Section 4: u_i is a convex combination; sum_j alpha A' <= alpha (N - 1) A'(0), which must not
    exceed 1.
    """
    for size in SIZES:
        for config in {c.folder: c.config for c in cells(file.stem, size)}.values():
            if isinstance(config.method, FedAMP):
                amp, N = config.method, config.clients
                steepest = amp.factor * float(slope(amp, torch.zeros(1, dtype=torch.float64)))
                assert step(amp, a_round(1, total=config.rounds), N) * (N - 1) * steepest <= 1


@pytest.mark.parametrize("table", [1, 2, 3])
@pytest.mark.parametrize("size", ["cpu", "full"])
def test_fedamps_scale_is_searched_and_every_search_is_as_long(table, size):
    groups = planned(f"fedamp-table{table}", size)
    tried = {
        g.method: {p.get("method.sigma") for p in g.points} for g in groups if g.method == "fedamp"
    }
    assert tried == {"fedamp": {10.0, 25.0, 100.0}}
    assert {len(g.points) for g in groups} == {1, 3}


def test_fedfomos_figure_3_is_100_epochs_and_its_targets_are_shuffled_five_times():
    """Section 4: "over 100 training epochs", E = 5; "repeating the shuffling five times"."""
    assert {
        c.config.rounds * c.config.local_epochs for c in cells("fedfomo-ablations", "full")
    } == {100}
    assert {c.seed for c in cells("fedfomo-table3", "full")} == set(range(5))


@pytest.mark.parametrize(
    "file", [f for f in SUITES if f.stem.startswith("fedfomo")], ids=lambda p: p.stem
)
def test_fedfomos_network_is_mcmahans_and_its_candidates_are_the_last_rounds(file):
    """Section 4: "the same CNN architecture as in McMahan et al. (2016)"; section 3.1: the active
    clients' uploads.
    """
    for cell in cells(file.stem, "full"):
        assert cell.config.model.name == "mcmahan-cnn"
        assert getattr(cell.config.method, "candidates", "last-round") == "last-round"


def test_fedfomos_figure_1_has_100_clients_of_which_a_tenth_takes_part():
    tenth = [
        c.config for c in cells("fedfomo-figures", "full") if not c.scenario.startswith("weights")
    ]
    assert {(c.clients, c.participation, c.rounds, c.local_epochs) for c in tenth} == {
        (100, 0.1, 100, 5)
    }
    assert {c.partition.name for c in tenth} == {"latent"}


@pytest.mark.parametrize("table", [1, 2, 3, 4])
def test_fedala_trains_on_three_quarters_of_the_rows(table):
    """Section 5: a quarter for testing.

    FedFomo judges models on validation samples, and must have some.
    """
    for cell in cells(f"fedala-table{table}", "full"):
        data = cell.config.data
        assert (data.split, data.test_share) == ("pooled", 0.25)
        assert data.validation_share == (0.1 if cell.method == "fedfomo" else 0)


def test_fedala_without_adaptation_stands_beside_the_papers_figure():
    table = suite("fedala-table2")
    column, row = table.scenario["tiny-without-adaptation"], table.method["fedala-frozen"]
    assert table.reference.for_scenario(column.title).numbers[row.row].value == 33.81
    assert {
        c.config.method.round_epochs
        for c in cells("fedala-table2", "full")
        if c.method == "fedala-frozen"
    } == {0}


def test_fedalas_figure_3_learns_weights_for_six_epochs_in_each_round():
    """Figure 3: "at least six epochs in each iteration", on MNIST and CIFAR-10."""
    configs = [c.config for c in cells("fedala-table2", "full") if "figure3" in c.scenario]
    assert {(c.data.name, c.method.name, c.method.round_epochs) for c in configs} == {
        ("mnist", "fedala", 6),
        ("cifar10", "fedala", 6),
    }


def test_apples_appendix_b3_is_searched_for_every_row_of_table_1():
    groups = planned("apple-table1", "full")
    grid = {(lr, decay) for lr in (0.01, 0.001, 0.0001) for decay in (1.0, 0.9964, 0.9)}
    assert {(g.method, frozenset((p["lr"], p["lr_decay"]) for p in g.points)) for g in groups} == {
        (m, frozenset(grid)) for m in suite("apple-table1").method
    }
    core_inits = {
        c.config.method.core_init
        for g in groups
        if g.method == "apple-independent"
        for c in g.cells()
    }
    assert core_inits == {"independent"}
    ours, theirs = ({c.scenario: c.config.method for g in groups if g.method == m for c in g.cells()}
                    for m in ("apple", "apple-independent"))  # fmt: skip
    assert {s: m.model_copy(update={"core_init": "common"}) for s, m in theirs.items()} == ours


@pytest.mark.parametrize(("available", "device"), [(False, "cpu"), (True, "cuda")])
def test_a_suite_of_a_paper_takes_the_device_that_is_there(monkeypatch, available, device):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    for name in ("apple-table1", "fedala-table2", "fedamp-table1", "fedfomo-table1"):
        assert {c.config.device for g in plan(suite(name), "full") for c in g.cells()} == {device}
