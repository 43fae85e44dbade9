# Each target sets up what it needs in .venv. PYTHON: any Python from 3.11 to 3.13.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS = 1
# With a constraint on torch, pip takes the pinned version instead of the newest with its several GB of CUDA packages.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

BENCHMARKS := fedavg_round apple_step apple_round methods growth workers rate memory startup stacked

.PHONY: demo test test-slow fuzz check same cost bench results clean

demo: .venv/demo
	$(BIN)/pomona demo

test: .venv/dev
	$(BIN)/pytest -n auto

test-slow: .venv/dev
	$(BIN)/pytest -m slow

# New inputs to all that reads what others have made, for MINUTES (60); says how many, keeps what breaks in .hypothesis/found
fuzz: .venv/dev
	$(BIN)/pytest -m fuzz tests/fuzz

check: .venv/dev
	$(BIN)/pip check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Small runs with the tree of a git revision and with this one write the same numbers, to the bit: make same BASE=main.
# BASE may be a file of hashes (ARGS="--hashes FILE" writes one); ARGS="--only NAME ..." for some of the runs
same: .venv/dev
	$(BIN)/python tools/same_results.py $(BASE) $(ARGS)

cost: .venv/demo
	$(BIN)/python benchmarks/apple_round.py

# ARGS=--quick for a look in a minute
bench: .venv/demo
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py $(ARGS) || exit 1; done

results: .venv/demo
	PATH=$(CURDIR)/$(BIN):$$PATH configs/apple-table1/run.sh

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/pip pyproject.toml constraints.txt
	$(INSTALL) -e .
	@touch $@

.venv/dev: .venv/bin/pip pyproject.toml constraints.txt
	$(INSTALL) -e '.[dev]'
	@touch $@ .venv/demo

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
