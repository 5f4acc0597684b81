# Every command a developer or CI needs. `make` alone lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
LOCKS := requirements/pip.txt requirements/dev.txt
# Caches make a second start faster; a machine-wide "no bytecode" setting would undo that.
unexport PYTHONDONTWRITEBYTECODE
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup up test test-fast check format bench bench-large ci-deps lock clean

help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## make the environment in .venv from hashed requirement files

up: setup ## run the daemon with a demo agent, until Ctrl-C
	@$(BIN)/python scripts/demo.py

test: setup ## run all tests, four workers side by side
	@$(BIN)/python scripts/run_tests.py

test-fast: setup ## run the tests that start no daemon
	@$(BIN)/python scripts/run_tests.py --fast

check: setup ## formatting, lint, types, import rules, sizes, prose, names
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python scripts/check_sizes.py
	@$(BIN)/python scripts/check_prose.py
	@$(BIN)/python scripts/check_names.py

format: setup ## rewrite the sources in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: $(VENV)/.bench-ready ## measure: ratios to peers and limits in one run
	@$(BIN)/python -m bench

bench-large: $(VENV)/.bench-ready ## measure a store of 100k runs and 10M events
	@$(BIN)/python -m bench large

ci-deps: setup ## install what CI must have
	@scripts/ci-deps

lock: ## pin the newest allowed versions anew, with hashes
	@scripts/lock

clean: ## remove the environment and all caches
	@rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(STAMP): $(LOCKS) pyproject.toml scripts/preflight
	@scripts/preflight $(PYTHON)
	@echo "installing the environment into $(VENV)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --quiet --require-hashes -r requirements/pip.txt
	@$(BIN)/python -m pip install --quiet --quiet --require-hashes -r requirements/dev.txt
	@$(BIN)/python -m pip install --quiet --quiet --no-deps --no-build-isolation --editable .
	@$(BIN)/python -m compileall -q src
	@touch $@

$(VENV)/.bench-ready: $(STAMP) requirements/bench.txt
	@$(BIN)/python -m pip install --quiet --quiet --require-hashes -r requirements/bench.txt
	@touch $@
