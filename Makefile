# Bare `make` lists the targets. Each one sets up what it needs: a virtual environment in .venv.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-gpu lint type fmt bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(READY)  ## make the virtual environment and install metadr with its development tools

$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "metadr needs Python 3.11 or later; set PYTHON=..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev,fonts]'
	@touch $(READY)

demo: $(READY)  ## see forgetting and its cure, in minutes on a CPU
	$(BIN)/metadr demo

# A process for every core, up to eight, and one thread in each.
test: $(READY)  ## run every fast test
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses auto --maxprocesses 8

test-gpu: $(READY)  ## run the tests that need a GPU
	$(BIN)/python -m pytest -m gpu

lint: $(READY)  ## check style
	$(BIN)/ruff check
	$(BIN)/ruff format --check

type: $(READY)  ## check types
	$(BIN)/mypy

fmt: $(READY)  ## format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: $(READY)  ## measure speed against what users could pick instead
	$(BIN)/metadr bench transforms

clean:  ## remove the virtual environment and caches, never runs or results
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache dist build
