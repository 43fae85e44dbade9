"""Ways of counting a number, and files of reference numbers."""

import pytest

from pomona.core.errors import ConfigError
from pomona.experiments.reference import AVERAGES, read_reference
from pomona.experiments.suite import read_suite
from pomona.metrics.metric import METRICS
from pomona.results.comparison import ComparisonRow, Printed

HEAD = 'title = "t"\naverage = "last"\n'


def test_a_suite_names_its_file_of_numbers(tmp_path):
    (tmp_path / "numbers").mkdir()
    (tmp_path / "numbers" / "a.toml").write_text(
        HEAD + 'settings.data.name = "mnist"\n[scenario.s]\nnumbers.fedavg = 1\n'
        'numbers.apple = { value = 2.5, std = 0.5, note = "n" }\nchosen.apple."method.mu" = 0.1\n'
    )
    (tmp_path / "suite.toml").write_text(
        'title = "t"\nreference = "numbers/a.toml"\n[scenario.s]\n[method.fedavg]\n'
    )
    reference = read_suite(tmp_path / "suite.toml").reference
    assert reference == read_reference(tmp_path / "numbers" / "a.toml")
    assert reference.stated("s") == {"data.name": "mnist"}
    assert str(reference.for_scenario("s").numbers["apple"]) == "2.5 ± 0.5"
    assert Printed.lookup(reference.for_scenario("s"), "apple").chosen == {"method.mu": 0.1}
    assert Printed.lookup(reference.for_scenario("other"), "apple") == Printed()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = 1", "title = 1"),
        (HEAD + "label = ''", "label = ''"),
        ("title = 't'\naverage = 'best'", "average = 'best'"),
        (HEAD + "metric = 'acuracy'", "metric = 'acuracy': known: accuracy"),
        (HEAD + "scenario.s.numbers.fedavg = 'high'", "scenario s, fedavg: 'high' is not a number"),
        (HEAD + "scenario.s.numbers.fedavg = inf", "scenario.s.numbers.fedavg"),
        (
            HEAD + "scenario.s.numbers.fedavg = { std = 1 }",
            "scenario.s.numbers.fedavg.value must be set",
        ),
        (HEAD + "scenario.s.number.fedavg = 1", "unknown key 'scenario.s.number'"),
    ],
)
def test_a_mistake_in_a_file_of_numbers_is_named(text, message, tmp_path):
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(ConfigError) as fault:
        read_reference(tmp_path / "a.toml")
    assert str(fault.value).startswith(f"{tmp_path / 'a.toml'}: ")
    assert message in str(fault.value)


def test_an_average_is_over_clients_or_over_samples():
    """Three clients of 10, 10 and 80 samples: the mean of two rounds' accuracies, by hand."""
    rounds = {1: (0.9, 0.9, 0.3), 2: (0.2, 0.2, 0.6)}
    samples = (10, 10, 80)
    clients = [sum(a) / 3 for a in rounds.values()]  # 0.7, 0.333: round 1 is best
    # 0.42, 0.52
    pooled = [
        sum(a * s for a, s in zip(row, samples, strict=True)) / 100 for row in rounds.values()
    ]
    evaluations = {"last": {"accuracy": list(rounds[2]), "samples": list(samples)}}
    figures = {
        "headline": "personal, trained",
        "models": {"personal, trained": evaluations},
        "curve": {"round": [1, 2], "test_accuracy": clients, "test_accuracy_pooled": pooled},
    }
    cells = ({"seed": 0, "figures": figures},)
    entry = ComparisonRow(
        "", "", "", "", "finished", "", METRICS["accuracy"], {}, {}, 0, cells, Printed()
    )
    expected = {"best_test": 0.7, "best_test_pooled": 0.52, "last": 1 / 3, "last_pooled": 0.52}
    assert {name: entry.values(AVERAGES[name])[0] for name in expected} == pytest.approx(expected)
    description = "all test samples together, each counting once, in the best round on test"
    assert str(AVERAGES["best_test_pooled"]) == description
