# Tidings. `make` lists the targets. Everything lives in .venv, which is set up by itself.

VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SHARED := build/spark-classes.jsa
JOBS   ?= 2
PYTEST := $(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder

# Tests start some hundred Pythons: where nothing compiled may be kept, each of them compiles all modules again.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup run console shots test quick check lint format types arrows walk bench chaos soak lock doctor clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## set up .venv from the lock file; every target below does this first

run: $(READY) ## run the London example on embedded Spark; ends by itself
	@$(BIN)/tidings doctor --no-spark 2>/dev/null | grep '^FAIL' >&2 || true
	@$(BIN)/python examples/london/main.py

console: $(READY) ## a network of three organisations with made-up traffic, shown in a browser; Ctrl-C ends all
	@$(BIN)/tidings console --demo $(ARGS)

shots: $(READY) ## screenshots of every screen of the console, under out/console (needs Chromium)
	@$(BIN)/python -m tests.live.console_pages $(ARGS)

test: $(READY) $(SHARED) ## all tests, those on Spark too (needs Java 17+)
	$(PYTEST) $(ARGS)

quick: $(READY) ## the tests that need neither Spark nor patience
	$(PYTEST) --hypothesis-profile=quick -m "not spark and not slow and not live" $(ARGS)

check: lint types arrows test ## format, lint, types, import arrows, then all tests: what .ci/run runs

lint: $(READY) ## format and lint, without changing anything
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

format: $(READY) ## format, and fix what the linter can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(READY) ## mypy --strict
	$(BIN)/mypy --strict src tests

arrows: $(READY) ## packages import only lower layers, and the core does no I/O
	$(BIN)/lint-imports

walk: $(READY) $(SHARED) ## traces the path of one event and of one batch through the modules
	@$(BIN)/python -m tests.walk $(ARGS)

bench: $(READY) ## the benchmarks; results in benchmarks/results
	@$(BIN)/python -m benchmarks $(ARGS)

chaos: $(READY) ## 12 brokers, 100,000 events, everything that can happen to them; MINUTES (10), SEED (a new one)
	@$(BIN)/python -m tests.live.chaos --minutes $(or $(MINUTES),10) $(if $(SEED),--seed $(SEED)) \
	    --postgres-if-there ccs $(ARGS)

soak: $(READY) ## new seeds: simulated worlds, chaos on live ones, attacks, killed streaming jobs, for MINUTES (10)
	@$(BIN)/python -m tests.soak --minutes $(or $(MINUTES),10)

lock: $(READY) ## pin the newest allowed versions, with hashes, in requirements.lock
	$(BIN)/pip-compile --upgrade --generate-hashes --allow-unsafe --strip-extras --no-annotate --no-header \
	    --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
	    --extra dev --extra bench --extra connect --extra delta --extra iceberg --extra kafka --extra otel --extra postgres \
	    --output-file requirements.lock pyproject.toml

doctor: $(READY) ## is this machine ready, and if not, what fixes it
	@$(BIN)/tidings doctor

clean: ## remove .venv and everything that was built
	rm -rf $(VENV) build dist out spark-warehouse metastore_db derby.log
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

# The lock is made with Python 3.11, so that one is taken first. Choose another with PYTHON=….
PYTHON ?= $(shell for python in python3.11 python3.12 python3.13 python3; do \
    $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

$(READY): pyproject.toml requirements.lock
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer with venv found. On Debian or Ubuntu:" >&2; \
	    echo "  sudo apt-get install -y python3 python3-venv" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Setting up $(VENV) from requirements.lock; the first time takes some minutes." >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@echo "Compiling the matching kernels, once: a minute." >&2
	@$(BIN)/python -c "from tidings.matching import load_kernels; load_kernels()"
	@touch $@

# With it each of the twenty Javas that tests start has half the work. They start without it, too.
$(SHARED): $(READY)
	@echo "Laying out Spark's classes, once: half a minute." >&2
	@$(BIN)/python -m tests.java_classes >/dev/null 2>&1 || echo "Not done; tests take a minute longer." >&2
