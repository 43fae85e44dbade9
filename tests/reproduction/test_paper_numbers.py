"""The papers' numbers have a suite, and every number of a table its run."""

import pytest
from paper_suites import FOLDER, SIZES, SUITES, planned, suite

from pomona.core.toml import flat
from pomona.experiments.reference import AVERAGES, read_reference
from pomona.privacy.settings import release_problems
from pomona.results.comparison import Printed
from pomona.results.tables.comparison_tables import as_printed
from suites_listed import assert_runs, listed

NUMBERS = sorted((FOLDER / "numbers").glob("*.toml"))
TABLES = {"apple": 3, "fedamp": 3, "fedala": 4, "fedfomo": 6, "pgfed": 1}
ABSENT = {"FedRep+ALA", "PartialFed+ALA"}  # no whole model is received there for ALA to weigh
ELSEWHERE = {"apple-published": "apple-table1", "fedfomo-ablations": "fedfomo-figures"}
NO_PAPER = {
    *("apple-draws", "apple-local", "low-rank", "low-rank-vit", "newer-methods", "real-sites")
}
LIBRARIES = {
    "flamby-heart": "benchmark",
    "flamby-tcga": "benchmark",
    "niid-bench": "Flower",
    "pfllib-fashion": "PFLlib",
}  # whose tables these are

POOLED = {"niid-bench", "pfllib-fashion"}
OF_LAST_ROUND = ("fedfomo", "flamby")


def test_there_is_a_suite_for_every_table():
    stems = {path.stem for path in SUITES}
    assert {
        f"{paper}-table{n}" for paper, last in TABLES.items() for n in range(1, last + 1)
    } <= stems
    assert {path.stem for path in NUMBERS} == stems - ELSEWHERE.keys() - NO_PAPER


@pytest.mark.parametrize("path", SUITES, ids=lambda p: p.stem)
def test_a_suite_names_its_papers_numbers_and_methods(path):
    table = suite(path.stem)
    if path.stem not in NO_PAPER:
        expected = read_reference(
            FOLDER / "numbers" / f"{ELSEWHERE.get(path.stem, path.stem)}.toml"
        )
        assert table.reference == expected
        one_method = path.stem == "fedfomo-ablations"  # the paper's alone
        assert bool(table.own) == (not one_method and path.stem not in LIBRARIES)
        assert expected.source
        assert expected.label == LIBRARIES.get(path.stem, "paper")


@pytest.mark.long
@pytest.mark.long
def test_every_suite_is_listed_with_its_runs():
    rows = listed((FOLDER / "README.md").read_text(encoding="utf-8"))
    assert rows.keys() == {path.stem for path in SUITES}
    for name, row in rows.items():
        assert_runs(row, suite(name), lambda size, name=name: planned(name, size))


@pytest.mark.long
@pytest.mark.parametrize("path", SUITES, ids=lambda p: p.stem)
def test_every_size_resolves(path):
    table = suite(path.stem)
    for size in SIZES:
        sized = table.sized(size)
        groups = planned(path.stem, size)
        assert len(groups) == len(table.pairs(size))
        for group in groups:
            assert all(len(row) == len(sized.seeds) for row in group.finals)
            assert len(group.points) <= sized.points
            config = group.cells()[0].config
            assert config.clients >= 2
            if config.privacy:
                releases = config.method.method().card.privacy.releases
                assert not [*release_problems(config.privacy, [1000], releases)]


@pytest.mark.parametrize(
    "path", [p for p in SUITES if p.stem not in {*ELSEWHERE, *NO_PAPER}], ids=lambda p: p.stem
)
def test_every_number_of_the_table_has_a_cell_with_its_data_set(path):
    table = suite(path.stem)
    printed = {(s, m) for s, entry in table.reference.scenario.items() for m in entry.numbers}
    cells = {
        (column.title or s, row.row): table.config("full", s, m, {}, 0)
        for s, column in table.scenario.items()
        for m, row in table.method.items()
        if m in (column.methods or table.method)
    }
    assert {key for key in printed - cells.keys() if key[1] not in ABSENT} == set()
    for scenario, row in printed & cells.keys():
        assert cells[scenario, row].data.name == table.reference.stated(scenario)["data.name"]


@pytest.mark.parametrize("path", NUMBERS, ids=lambda p: p.stem)
def test_every_number_can_be_shown(path):
    reference = read_reference(path)
    for scenario in reference.scenario.values():
        for row in {*scenario.numbers, *scenario.epsilon, *scenario.minutes}:
            printed = Printed.lookup(scenario, row)
            assert all(map(as_printed, (printed.number, printed.epsilon, printed.minutes)))


def test_numbers_are_as_printed():
    table = suite("apple-table1").reference
    assert Printed.lookup(table.for_scenario("MNIST, pathological"), "Separate").value == 97.34
    slides = table.for_scenario("PathMNIST, practical").numbers["APFL"]
    assert (slides.value, slides.note) == (86.35, "the slides' value; the paper prints 78.7")
    private = "CIFAR-10, DP-SGD sigma=0, delta=1e-5, 15 clients, 5 latent distributions"
    for name in ("fedfomo-table4", "fedfomo-table6"):
        assert (
            as_printed(suite(name).reference.for_scenario(private).epsilon["FedFomo"]) == "infinite"
        )


def test_what_a_table_averages_and_when():
    """FedALA: serverALA.py, evaluate, of its published code; PFLlib: serverbase.py; niid_bench: the
    whole test set.
    """
    averages = {path.stem: AVERAGES[read_reference(path).average] for path in NUMBERS}
    for name, average in averages.items():
        assert average.unit == (
            "samples" if name.startswith("fedala") or name in POOLED else "clients"
        )
        assert average.moment == ("last" if name.startswith(OF_LAST_ROUND) else "best_test")


def test_what_a_scenario_states_goes_before_what_the_paper_states():
    table = suite("fedala-table4").reference
    fifty = "Cifar100, Dir(0.1), 50 clients"
    assert table.stated(fifty) == {**table.settings, "clients": 50, "data.name": "cifar100"}
    stated = suite("fedfomo-table1").reference.stated(
        "MNIST, pathological 2 classes, 100 clients, 10% participation, 100 rounds"
    )
    assert (stated["clients"], stated["rounds"], stated["local_epochs"]) == (100, 100, 5)


def test_apple_has_the_settings_of_its_table_3_at_full_size():
    table, chosen = suite("apple-table1"), suite("apple-table3").reference
    compared = 0
    for name, column in table.scenario.items():
        settings = flat(table.config("full", name, "apple", {}, 0).tree())
        for key, value in chosen.for_scenario(column.title).chosen["APPLE mu!=0"].items():
            assert settings[key] == value
            compared += 1
    assert compared == 40


def test_table_2_has_mu_0_and_every_budget():
    table = suite("apple-table2")
    for name, column in table.scenario.items():
        for method in table.method:
            method_settings = table.config("full", name, method, {}, 0).method
            assert f"M={method_settings.budget};" in column.title
            assert getattr(method_settings, "mu", 0.0) == 0.0
