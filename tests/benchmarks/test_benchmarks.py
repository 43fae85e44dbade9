"""Every benchmark runs at its quick size and yields finite, positive figures; their values are not
tested.
"""

import json
import math
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.long

FOLDER = Path(__file__).parents[2] / "benchmarks"
HELPERS = {"reference", "rounds", "timing"}
# run by tests of their own: Linux only, and many processes
EXCLUDED = {
    "memory",
    "server_half",
    "deployment",
    "deployment_peers",
    "light_silos",
    "federation_builds",
}
NAMES = sorted({path.stem for path in FOLDER.glob("*.py")} - HELPERS)
MAY_BE_ANYTHING = {"DR within groups", "DR between groups", "of a loss", "of a model"}


@pytest.fixture
def load(monkeypatch):
    """Import a benchmark by name, with its folder on the path as when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.delenv("POMONA_DATA", raising=False)
    loaded = set(sys.modules)
    yield __import__
    for name in set(sys.modules) - loaded:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(FOLDER)):
            del sys.modules[name]


IN_THE_GATE = {"apple_step", "methods"}


@pytest.mark.parametrize("name", NAMES)
def test_benchmarks_are_run_alike(load, name):
    assert f"python benchmarks/{name}.py [--quick]" in load(name).__doc__
    assert "main(*chosen(QUICK, FULL))" in (FOLDER / f"{name}.py").read_text()


@pytest.mark.parametrize(
    "name",
    [  # together they take minutes
        pytest.param(name, marks=() if name in IN_THE_GATE else pytest.mark.slow)
        for name in sorted({*NAMES} - EXCLUDED)
    ],
)
def test_the_quick_size_runs(load, name):
    benchmark = load(name)
    for table in benchmark.main(benchmark.QUICK, []):
        figures = [
            v for row in table["rows"].values() for k, v in row.items() if k not in MAY_BE_ANYTHING
        ]
        numbers = [v for v in figures if isinstance(v, int | float)]
        assert table["rows"]
        assert all(math.isfinite(v) and v >= 0 for v in numbers), table
        assert any(v > 0 for v in numbers) or name == "demo_seeds", table
        assert torch.__version__.startswith(table["machine"]["torch"])  # CUDA builds add +cu130
        assert table["n"] >= 1


def test_published_tables_name_their_machine_and_are_appended_as_json(
    load, monkeypatch, tmp_path, capsys
):
    target = tmp_path / "all.jsonl"
    monkeypatch.setenv("POMONA_BENCHMARKS", str(target))
    timing = load("timing")
    for title in ("first", "second"):
        timing.publish(title, {"a": {"s": 0.123456, "target": None}}, 3, batch=7)
    records = [json.loads(line) for line in target.read_text().splitlines()]
    assert [r["title"] for r in records] == ["first", "second"]
    assert records[0]["rows"] == {"a": {"s": 0.123456, "target": None}}
    assert (records[0]["n"], records[0]["notes"]) == (3, {"batch": 7})
    assert "0.1235" in capsys.readouterr().out


def test_medians_and_costs_by_hand(load):
    times = load("timing").Times({"a": [1.0, 3.0, 2.0], "b": [4.0, 3.0, 8.0]})
    assert (times.median("a"), times.median("b"), times.turns) == (2.0, 4.0, 3)
    assert times.cost("b") == 4.0 / 2.0
    assert times.cost("a", "b") == 2.0 / 4.0
    assert times.ratios("b") == [1 / 4, 3 / 3, 2 / 8]


def test_candidates_take_turns_and_the_first_turn_does_not_count(load):
    turns = []
    works = {name: lambda name=name: turns.append(name) for name in "ab"}
    wall, cpu = load("timing").measured(works, 2)
    assert turns == ["a", "b"] * 3
    assert wall.turns == cpu.turns == 2


def test_targets_are_those_of_registered_methods(load):
    methods = load("methods")
    for comparison in (*methods.FULL, *methods.QUICK):
        for line in comparison.targets:
            assert line.removesuffix(methods.ONE_CALL) in methods.METHODS


def test_every_registered_method_has_its_cost(load):
    methods = load("methods")
    *_, table = methods.main(methods.QUICK, [])
    assert set(table["rows"]) == set(methods.METHODS)
    assert table["rows"]["fedavg"]["cost"] == 1


def test_what_clients_keep_under_a_budget_is_counted(load):
    growth = load("growth")
    *_, budgets = growth.main(growth.QUICK, ["batch_size=4"])
    # Not every core is downloaded: each of 3 clients keeps 3 copies and its core; 3 weights and
    # marks of what it fetched.
    d = 28 * 28 * 4 + 4 + 4 * 10 + 10
    assert budgets["rows"]["apple, M = 1"]["kept MB"] == round(3 * (4 * 4 * d + 3 * 4 + 3) / 1e6, 1)


def test_what_does_not_fit_into_memory_is_named_and_not_run(load, monkeypatch):
    growth = load("growth")
    monkeypatch.setattr(growth, "free", lambda: 4 * 3 * 60_000)
    # 50,890 parameters: one client's copies of three cores are 600 kB
    model = {"name": "mlp", "hidden": [64]}
    configs = {
        name: growth.resolve(
            growth.SETTINGS, {"method": method, "clients": 3, "model": model, "batch_size": 4}
        )
        for name, method in {
            "fedavg, 3": {"name": "fedavg"},
            "apple, 3": {"name": "apple", "budget": 1},
        }.items()
    }
    rows = growth.compare("toy", configs, 24, 1)["rows"]
    assert rows["apple, 3"]["median s"] == "not run"
    assert rows["fedavg, 3"]["median s"] > 0


def test_operations_are_those_of_the_layers(load):
    rate = load("rate")
    assert rate.operations(rate.product(8, "fp32")) == 2 * 8**3
    # small, of a 28 x 28 image: products forward, at the weights and, but for the first layer, at
    # the inputs
    first = 28 * 28 * 8 * 9
    layers = first + 14 * 14 * 16 * 8 * 9 + 16 * 7 * 7 * 32 + 32 * 10
    assert rate.operations(rate.step("small", 4, "fp32", [])) == 2 * 4 * (3 * layers - first)


def test_a_product_is_the_whole_of_its_rate(load):
    rate = load("rate")
    (table,) = rate.main(rate.Size((16,), (("logistic", 4),), 1, 1e-9), [])
    assert table["rows"]["product 16, fp32"]["share of the fastest product"] == 1
    assert len(table["rows"]) == 4  # a product and a step, in two precisions


def test_another_step_than_the_plain_loops_ends_the_benchmark(load, monkeypatch):
    step = load("segmentation_step")
    case = step.QUICK.cases[0]
    rows = step.compare(case, 1)["rows"]
    assert rows["a step: Pomona"]["apart"] < 1e-6
    monkeypatch.setattr(step, "LR", 2 * step.LR)  # of the plain loop alone
    with pytest.raises(SystemExit, match="weights or Dice differ"):
        step.compare(case, 1)


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
@pytest.mark.slow
def test_memory_of_a_run_is_at_least_its_models(load):
    memory = load("memory")
    (table,) = memory.main(memory.QUICK, [])
    (row,) = table["rows"].values()
    assert row["models GB"] == 3 * 4 * (28 * 28 * 10 + 10) / 1e9
    assert row["models GB"] < row["peak GB"] <= row["sum of marks GB"]


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc")
def test_a_server_receives_a_row_and_a_request_of_each_silo(load):
    server_half = load("server_half")
    (table,) = server_half.main(server_half.QUICK, [])
    (row,) = table["rows"].values()
    silos, trained = 3, (12 + 1) * 8 + (8 + 1) * 10
    assert row["frozen part GB"] == 4 * (28 * 28 + 1) * 12 / 1e9
    assert row["N d GB"] == silos * 4 * trained / 1e9
    assert row["down GB"] == silos * (4 * trained + silos) / 1e9, (
        "M = 1: a core to each, and a byte a silo: whose is there"
    )
    assert row["up GB"] == silos * (4 * trained + 8) / 1e9, "a core, and an id of 64 bits"
    assert 0.05 < row["before GB"] < row["peak GB"], "Python alone has that"


@pytest.mark.slow
def test_a_federation_of_real_processes_is_measured(load, monkeypatch):
    pytest.importorskip("flwr")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    deployment = load("deployment")
    measured, paper = deployment.main(deployment.QUICK, [])
    (row,) = measured["rows"].values()
    model = 4 * (4 * 4 * 10 + 10)
    assert row["down by formula MB"] == row["up by formula MB"] == 2 * 1 * model / 1e6
    assert row["largest difference"] == 0
    for direction in ("down", "up"):
        assert row[f"{direction} by formula MB"] <= row[f"{direction} MB"]
    assert all(row[f"{name} MB"] > 10 for name in deployment.PROCESSES), "Python alone has that"
    assert set(paper["rows"]) == set(deployment.LARGE)


def test_what_a_large_federation_needs_is_arithmetic(load):
    requirements = load("deployment").requirements
    silos, d = 4, 1000
    apple, fedavg = (
        requirements(silos, d, method)
        for method in ({"name": "apple", "budget": 2}, {"name": "fedavg"})
    )
    model = 4 * d / 1e9
    assert apple["silo down GB"] == 2 * model
    assert apple["server GB"] == pytest.approx(silos * (2 + 1) * model)
    assert apple["silo s at 100 Mbit/s"] == pytest.approx(3 * 4 * d * 8 / 100e6)
    assert fedavg["silo down GB"] == fedavg["silo up GB"] == fedavg["server state GB"] == model
    # FedAvg's state before and after, four uplinks as bytes and as tensors, and as much again for
    # their mean.
    assert fedavg["server memory GB"] == pytest.approx((2 + 2 * silos + 2 * silos) * model)
    assert fedavg["server disk GB"] == pytest.approx((2 + 2 * silos) * model)
    assert fedavg["silo disk GB"] == pytest.approx((3 + 1) * model)


def test_a_record_has_a_first_round_only_once_its_line_is_whole(load, tmp_path):
    startup, events = load("startup"), tmp_path / "events.jsonl"
    events.write_text('{"event": "start"}\n{"event": "round", "round": 1}')
    assert not startup.recorded(events)
    events.write_text('{"event": "start"}\n{"event": "round", "round": 1}\n')
    assert startup.recorded(events)


def test_whole_commands_are_those_of_the_readme_where_the_data_are(load, tmp_path, monkeypatch):
    startup = load("startup")
    for folder, argv in (("data", ["heart-disease.toml"]), ("nowhere", ["rounds=30"])):
        (tmp_path / "data/heart_disease").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"in-{folder}").mkdir()
        monkeypatch.setenv("POMONA_DATA", str(tmp_path / folder))
        commands = dict(startup.commands(tmp_path / f"in-{folder}"))
        assert [*commands.values()][1:] == [
            ["demo", "--out", "demo"],
            ["run", "apple", *argv, "--out", "run"],
            ["report", "run", "--out", "page"],
        ]
        files = [name for name in argv if name.endswith(".toml")]
        assert all((tmp_path / f"in-{folder}" / name).is_file() for name in files)


def test_the_pfl_network_has_the_published_number_of_parameters(monkeypatch):
    configs = FOLDER / "pfl-cifar10"
    monkeypatch.syspath_prepend(str(configs))
    from pomona.config import resolve
    from pomona.core.toml import read_file
    from pomona.models import build

    config = resolve(read_file(configs / "pfl-cifar10.toml"))
    module = build(config.model, (3, 32, 32), 10)
    assert sum(p.numel() for p in module.parameters()) == 1_626_442
    assert (config.clients, round(config.clients * config.participation), config.batch_size) == (
        1000,
        50,
        10,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["deployment_peers", "light_silos"])
def test_federations_of_real_processes_are_measured(load, name):
    pytest.importorskip("flwr")
    benchmark = load(name)
    (table,) = benchmark.main(benchmark.QUICK, [])
    assert all(v > 0 for row in table["rows"].values() for v in row.values() if v is not None)
