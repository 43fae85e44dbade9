"""Benches: grids of scenarios, methods and seeds, each method tuned with the same budget, run anywhere, resumable.

import pomona.bench
bench = pomona.bench.run(Path("suites/digits.toml"), Path("bench/digits"))
bench.rows[0]["accuracy_last_mean"]
"""

from pomona.bench.engine import run
from pomona.bench.results import Bench, load
from pomona.bench.suite import Suite, read_suite

__all__ = ["Bench", "Suite", "load", "read_suite", "run"]
