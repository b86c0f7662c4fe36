# Every target makes its own .venv when there is none: `make demo` or `make test` alone is enough.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
LIGHT := $(VENV)/.installed-experiments
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup demo verify rates test test-slow test-gpu test-versions check format bench docs package clean

setup: $(STAMP)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "o2nc needs Python 3.11 or later: make PYTHON=python3.12, say")'
	$(PYTHON) -m venv $(VENV)

# all that the tests need
$(STAMP): pyproject.toml experiments/pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), which takes some minutes the first time"
	$(INSTALL) -e '.[dev]' -e experiments
	touch $@ $(LIGHT)

# all that the command line needs
$(LIGHT): pyproject.toml experiments/pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing into $(VENV), which takes a minute or two the first time"
	$(INSTALL) -e . -e experiments
	touch $@

demo: $(LIGHT)
	$(BIN)/o2nc demo

verify: $(LIGHT)
	$(BIN)/o2nc paper verify

rates: $(LIGHT)
	$(BIN)/o2nc paper rates

# a process per core, each with one thread: most tests are too small for more
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto --maxprocesses 4 --dist worksteal

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# all that runs kernels, on this machine's GPU, by the Python that has its torch and pytest; without a GPU interpreted
PARALLEL = $(shell $(PYTHON) -c 'from importlib.util import find_spec; print("-n 4 --dist worksteal" * bool(find_spec("xdist")))')
test-gpu:
	PYTHONPATH=$(CURDIR)/src:$(CURDIR)/experiments/src $(PYTHON) -m pytest $(PARALLEL) $$(grep -lE "fused_device|cuda" -r tests --include='test_*.py' --exclude=test_recipes.py) \
		'tests/test_recipes.py::test_code_runs[docs/performance-appendix.md]'

# the oldest torch, the newest and one between, each in an environment of several GB, which stays in build/versions
test-versions:
	$(PYTHON) tests/versions.py

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/o2nc bench

# the wheel and the sdist, each installed where nothing else is and used; some minutes
package: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build
	$(INSTALL) twine
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/installed.py dist/*

# the site: build/docs/index.html is its front page
docs: $(STAMP)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
