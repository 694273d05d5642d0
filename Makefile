# `make demo` and `make test` need Python 3.11 or newer, with venv, and nothing else: they build .venv
# first.

# The first of these that is new enough; or say `make PYTHON=/path/to/python3.12 test`.
CANDIDATES = python3 python3.13 python3.12 python3.11 python
PYTHON ?= $(shell for p in $(CANDIDATES); do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Debian ships the module venv without what it needs; this is the package that has the rest.
VENV_PACKAGE = $(PYTHON) -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])'

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CODE := adasplit_flwr zerofl_flwr strategies simulations tests

export FLWR_TELEMETRY_ENABLED := 0

.DEFAULT_GOAL := help
.PHONY: help which-python venv-package install demo compare-small test lint check bench format format-check ruff types clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

which-python:
	@echo "$(PYTHON)"

venv-package:
	@$(VENV_PACKAGE)

install: $(INSTALLED) ## Create .venv with the tested versions of everything

$(INSTALLED): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "lean-flwr needs Python 3.11 or newer; '$(or $(PYTHON),$(CANDIDATES))' is not." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3.12 $(MAKECMDGOALS)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || { \
		new=$$(test -e $(VENV) || echo yes); \
		$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null && $(PYTHON) -m venv $(VENV) || { \
			test -z "$$new" || rm -rf $(VENV); \
			echo "$(PYTHON) cannot make a virtual environment with pip:" \
				"install its venv module (on Debian and Ubuntu $$($(VENV_PACKAGE)))." >&2; exit 1; }; }
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,audio,tensorboard]'
	@touch $@

demo: install ## Train ZeroFL on the embedded digits with 100 virtual clients on Ray
	$(BIN)/lean-flwr run --config simulations/conf/zerofl-digits.toml --out runs/demo --overwrite

compare-small: install ## Compare both methods with what they have to beat, on the embedded digits
	$(BIN)/lean-flwr compare simulations/conf/compare-small-grid.toml --jobs 2 --out runs/compare-small

test: install ## Run the tests
	$(BIN)/python -m pytest

lint: format-check ruff types ## Check format, lint and types

check: lint test ## Everything that CI checks

bench: ## List the benchmarks
	@for file in simulations/bench/[a-z]*.py; do \
		test -f "$$file" || { echo "There are no benchmarks in simulations/bench yet."; break; }; \
		module=$$(echo "$${file%.py}" | tr / .); \
		printf '  %-44s %s\n' "python -m $$module" \
			"$$(sed -n '1s/^r\{0,1\}"""\([^"]*\).*/\1/p' "$$file")"; \
	done

format: install ## Apply format and the safe lint fixes
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

format-check: install
	$(BIN)/ruff format --check $(CODE)

ruff: install
	$(BIN)/ruff check $(CODE)

types: install
	$(BIN)/mypy --strict

clean: ## Remove .venv and caches; runs/ stays
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist
