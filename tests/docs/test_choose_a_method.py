"""The table of the guide to methods: its cells, recomputed by hand from a bench."""

import importlib.util
import re
import tomllib
from pathlib import Path
from types import SimpleNamespace

from pomona.methods import METHODS

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "choose_a_method.py"
GUIDE = ROOT / "docs" / "guides" / "choose-a-method.md"
SUITE = ROOT / "src" / "pomona" / "experiments" / "suites" / "choose-a-method.toml"


def loaded():
    spec = importlib.util.spec_from_file_location("choose_a_method", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_a_row_of_each_method_that_the_bench_measures():
    table = GUIDE.read_text().partition("FedBN is FedAvg for this network")[0]
    rows = re.findall(r"^\| ([a-z-]+) \| \d", table, flags=re.MULTILINE)
    assert set(rows) == set(tomllib.loads(SUITE.read_text())["method"]) <= set(METHODS)


def result(scenario, method, *runs):
    cells = [
        {
            "seed": seed,
            "figures": {"headline": "m", "models": {"m": {"last": {"accuracy": list(accuracies)}}}},
        }
        for seed, accuracies in enumerate(runs)
    ]
    return {
        "scenario": scenario,
        "method": method,
        "cells": cells or [{"seed": 0, "figures": None}],
    }


def test_a_cell_has_mean_sample_deviation_and_the_share_of_clients_that_lose():
    """Means 50 and 70 % over clients: mean 60, deviation 20 / sqrt(2); two of five clients lose,
    one has no test rows.
    """
    bench = SimpleNamespace(
        results={
            "scenarios": {"hidden-groups": {}},
            "methods": {"separate": {}, "fedavg": {}, "apple": {}},
            "results": [
                result("hidden-groups", "separate", (0.5, 0.5, None), (0.8, 0.8, 0.8)),
                result("hidden-groups", "fedavg", (0.4, 0.6, None), (0.8, 0.9, 0.4)),
                result("hidden-groups", "apple"),
            ],
        }
    )
    assert list(loaded().table(bench)) == [
        "| method | hidden groups |",
        "| --- | --- |",
        "| separate | 65.0 +- 21.2 (0 %) |",
        "| fedavg | 60.0 +- 14.1 (40 %) |",
        "| apple | failed |",
    ]
