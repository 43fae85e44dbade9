"""Benches: grids of scenarios, methods and seeds, each method tuned with the same budget; parallel
and resumable.

import pomona.experiments
bench = pomona.experiments.run("mine.toml", Path("bench/digits"))
bench.rows[0]["test_accuracy_at_last_mean"]
"""

from pomona.experiments.bench_results import Bench, load
from pomona.experiments.runner import run
from pomona.experiments.suite import Suite, read_suite

__all__ = ["Bench", "Suite", "load", "read_suite", "run"]
