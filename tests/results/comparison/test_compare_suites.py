"""The suites of the papers' tables: every size resolves, and every table cell has its run."""

from pathlib import Path

import pytest

from pomona.core.toml import flat
from pomona.experiments import read_suite
from pomona.experiments.grid import plan
from pomona.experiments.suite import SIZES
from pomona.privacy.releases import check
from pomona.results.paper_tables import NAMES, data_of, printed

SUITES = sorted((Path(__file__).parents[3] / "suites").glob("*.toml"))
TABLES = {
    "apple": ["1", "2", "3"],
    "fedamp": ["1", "2", "3"],
    "fedala": ["1", "2", "3", "4"],
    "fedfomo": ["1", "2", "3", "4 and 6", "5", "6"],
    "pgfed": ["1"],
}
ABSENT = {"FedRep+ALA", "PartialFed+ALA"}  # no whole model is received there for ALA to weigh
ELSEWHERE = {("FedFomo(MA)", "4 and 6")}


def test_there_is_a_suite_for_every_table():
    have = {(s.paper, s.table) for s in map(read_suite, SUITES) if s.paper and s.table}
    assert have == {(paper, table) for paper, tables in TABLES.items() for table in tables}


@pytest.mark.parametrize("path", SUITES, ids=lambda p: p.stem)
def test_every_size_resolves(path):
    suite = read_suite(path)
    for size in SIZES:
        part = suite.sized(size)
        groups = plan(suite, size)
        assert len(groups) == len(suite.pairs(size))
        for group in groups:
            assert all(len(row) == len(part.seeds) for row in group.finals)
            assert len(group.points) <= part.points
            config = group.cells()[0].config
            assert config.clients >= 2
            if config.privacy:
                check(config.privacy, [1000], config.method.method().card.releases)


@pytest.mark.parametrize("path", SUITES, ids=lambda p: p.stem)
def test_every_accuracy_of_the_table_has_a_cell_with_its_data_set(path):
    suite = read_suite(path)
    figures = printed(suite.paper, suite.table)
    wanted = {(*key[:2], key[2].split(" :: ")[0]) for key, f in figures.items() if f.unit == "accuracy_pct"}
    cells = {
        (column.setting, column.dataset, row.row): suite.config("full", s, m, {}, 0)
        for s, column in suite.scenario.items()
        for m, row in suite.method.items()
        if m in (column.methods or suite.method)
    }
    lacking = {key for key in wanted - cells.keys() if key[2] not in ABSENT}
    assert not lacking
    for key in wanted & cells.keys():
        assert cells[key].data.name == data_of(key[1])
    assert not suite.paper or suite.paper in NAMES


def test_apple_has_the_settings_of_its_table_3_at_full_size():
    suite = read_suite(next(p for p in SUITES if p.stem == "apple-table1"))
    spoken = {"cos": "cosine", "exp": "exponential", "exp.": "exponential"}
    keys = {
        "Net lr": "lr",
        "DR lr": "method.dr_lr",
        "loss scheduler": "method.schedule",
        "mu": "method.mu",
        "L (fraction of rounds)": "method.schedule_share",
    }
    compared = 0
    for name, column in suite.scenario.items():
        own = flat(suite.config("full", name, "apple", {}, 0).tree())
        for (setting, dataset, row), figure in printed("apple", "3").items():
            if (setting, dataset) == (column.setting, column.dataset):
                assert own[keys[row.split(" :: ")[1]]] == spoken.get(figure.value, figure.value)
                compared += 1
    assert compared == 40


def test_table_2_has_mu_0_and_every_budget():
    suite = read_suite(next(p for p in SUITES if p.stem == "apple-table2"))
    for name, column in suite.scenario.items():
        for method in suite.method:
            own = suite.config("full", name, method, {}, 0).method
            assert f"M={own.budget};" in column.setting
            assert getattr(own, "mu", 0.0) == 0.0
