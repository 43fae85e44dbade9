"""Lookup of the papers' figures."""

import pytest

from pomona.metrics.metric import METRICS
from pomona.results.comparison import ComparisonRow
from pomona.results.paper_tables import COUNTED, COUNTS, data_of, printed, stated
from pomona.results.tables.comparison_tables import in_paper
from pomona.results.tables.cost import converged

TABLES = {("apple", t) for t in "123"} | {("fedamp", t) for t in "123"} | {("fedala", t) for t in "1234"}
TABLES |= {("fedfomo", t) for t in "123456"} | {("pgfed", "1")}


def test_figures_are_found_as_printed():
    assert printed("apple", "1")["pathological", "MNIST", "Separate"].value == 97.34
    assert printed("nobody", "1") == {}
    assert printed("apple", "") == {}
    sigma = "DP-SGD sigma=1, delta=1e-5, 15 clients, 5 latent distributions"
    for table in ("4", "6", "4 and 6"):
        assert (sigma, "CIFAR-10", "FedFomo") in printed("fedfomo", table)


def test_an_epsilon_without_bound_is_printed_as_such():
    sigma = "DP-SGD sigma=0, delta=1e-5, 15 clients, 5 latent distributions"
    assert in_paper(printed("fedfomo", "4")[sigma, "CIFAR-10", "FedFomo :: epsilon"]) == "infinite"
    assert in_paper(printed("apple", "3")["practical", "MNIST", "APPLE mu!=0 :: loss scheduler"]) == "cos"
    assert in_paper(None) == "-"


@pytest.mark.parametrize(("paper", "table"), sorted(TABLES))
def test_every_printed_figure_can_be_shown(paper, table):
    assert all(in_paper(figure) for figure in printed(paper, table).values())


def test_where_the_slides_differ_they_are_taken_and_it_is_said():
    figure = printed("apple", "1")["practical", "PathMNIST", "APFL"]
    assert figure.value == 86.35
    assert "78.7" in figure.note


@pytest.mark.parametrize(
    ("dataset", "name"),
    [
        ("CIFAR10", "cifar10"),
        ("CIFAR-100", "cifar100"),
        ("Cifar100", "cifar100"),
        ("FMNIST", "fashion-mnist"),
        ("OrganMNIST(axial)", "organamnist"),
        ("TINY* (ResNet-18)", "tiny-imagenet"),
        ("Tiny-ImageNet (ResNet-18) Dir(0.1)", "tiny-imagenet"),
        ("AG News (fastText)", "ag-news"),
        ("any", None),
    ],
)
def test_data_sets_by_the_papers_names(dataset, name):
    assert data_of(dataset) == name


def test_what_a_column_states_goes_before_what_the_paper_states():
    assert stated("fedala", "Dir(0.1), 50 clients") == {**stated("fedala", ""), "clients": 50}
    many = stated("fedfomo", "pathological 2 classes, 100 clients, 10% participation, 100 rounds")
    assert (many["clients"], many["rounds"], many["local_epochs"]) == (100, 100, 5)


def test_convergence_is_the_first_round_with_99_percent_of_the_best():
    # 0.99 x 0.905 = 0.896: round 4.
    assert converged([2, 4, 6], [0.5, 0.9, 0.905]) == 4
    assert converged([1, 2], [None, 0.3]) == 2
    assert converged([1], [None]) is None


def test_fedala_counts_samples_and_the_others_count_clients():
    """Three clients of 10, 10 and 80 samples: the mean of two rounds' accuracies, by hand."""
    rounds = {1: (0.9, 0.9, 0.3), 2: (0.2, 0.2, 0.6)}
    samples = (10, 10, 80)
    clients = [sum(a) / 3 for a in rounds.values()]  # 0.7, 0.333: round 1 is best
    pooled = [sum(a * s for a, s in zip(own, samples, strict=True)) / 100 for own in rounds.values()]  # 0.42, 0.52
    own = {"last": {"accuracy": list(rounds[2]), "samples": list(samples)}}
    figures = {
        "headline": "personal, trained",
        "models": {"personal, trained": own},
        "curve": {"round": [1, 2], "test_accuracy": clients, "test_accuracy_pooled": pooled},
    }
    entry = ComparisonRow(
        "", "", "", "", "", "", "finished", "", METRICS["accuracy"], {}, {}, 0, ({"seed": 0, "figures": figures},), {}
    )
    assert entry.values(COUNTED["fedala"]) == [pytest.approx(0.52)]
    assert entry.values(COUNTED["apple"]) == [pytest.approx(0.7)]
    assert entry.values(COUNTED["fedfomo"]) == [pytest.approx(1 / 3)]
    assert entry.values(COUNTS["last_pooled"]) == [pytest.approx(0.52)]
    assert str(COUNTED["fedala"]) == "all test samples together, each counting once, in the best round on test"
    # A bench of an earlier version kept no such curve: no figure rather than another one.
    del figures["curve"]["test_accuracy_pooled"]
    assert entry.values(COUNTED["fedala"]) == [None]
