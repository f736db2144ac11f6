# The two commands of the README are `make generate` and `make test`; `make help` lists the rest.
# Everything lands in .venv and in the user's model cache (MINIFER_CACHE overrides).

PYTHON ?= python3
VENV ?= .venv
PROMPT ?= What is the capital of France?
PY = $(VENV)/bin/python
# A path, not an import hook: else a folder called minifer in the current directory hides the package.
PIP = $(PY) -m pip install --quiet --disable-pip-version-check --config-settings editable_mode=compat
# One BLAS thread while testing: idle threads that spin make a busy machine five times as slow.
PYTEST = OPENBLAS_NUM_THREADS=1 $(PY) -X warn_default_encoding -m pytest -q

.DEFAULT_GOAL := help
.PHONY: help generate test test-slow test-reference test-all setup lint format bench memory clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

generate: $(VENV)/.core  ## environment with the core, default model, one answer
	$(PY) -m minifer generate "$(PROMPT)"

test: $(VENV)/.dev  ## the tests; under 5 minutes on 2 cores
	$(PY) -m minifer fetch >/dev/null
	$(PYTEST) -m "not slow and not gpu"

test-slow: $(VENV)/.dev  ## the longer proofs alone
	$(PY) -m minifer fetch >/dev/null
	$(PYTEST) -m slow

test-reference: $(VENV)/.reference  ## diff against transformers itself (installs torch)
	$(PYTEST) tests/test_diff_reference.py

test-all: test test-slow test-reference  ## the tests and the longer proofs

setup: $(VENV)/.dev  ## everything for development on a CPU

lint: $(VENV)/.dev  ## ruff: rules and format
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(VENV)/.dev  ## ruff: write the format
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(VENV)/.dev  ## decode against this machine's read bandwidth; what watching costs
	$(PY) tests/benchmarks/decode_bandwidth.py
	$(PY) tests/benchmarks/perturbation.py

memory: $(VENV)/.core  ## memory of one and of two processes (Linux)
	$(PY) tests/benchmarks/memory.py

clean:  ## remove the environment and what tools left behind
	rm -rf $(VENV) build *.egg-info .pytest_cache .hypothesis .ruff_cache

# A stamp file per environment: made anew when pyproject.toml changes.
$(VENV)/.core: pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "minifer needs Python 3.11 or newer: $(PYTHON) is not installed; PYTHON=/path/to/python3 names another"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else f"minifer needs Python 3.11 or newer, found {v[0]}.{v[1]}; PYTHON=/path/to/python3 names another")'
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "this Python has no venv or pip: install them (Debian: apt-get install python3-venv)"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV) (needs the Python package index; half a minute)"
	@$(PIP) -e . || { echo "the packages could not be installed: is the Python package index reachable?"; exit 1; }
	@touch $@

$(VENV)/.dev: $(VENV)/.core
	@$(PIP) -e ".[dev]"
	@touch $@

$(VENV)/.reference: $(VENV)/.dev
	@$(PIP) torch "transformers>=4.56"
	@touch $@
