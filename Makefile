# Every target makes its own .venv when there is none: `make demo` or `make test` alone is enough.
PYTHON ?= python3
VENV := .venv
STAMP := $(VENV)/.installed
BIN := $(VENV)/bin

.PHONY: setup demo verify rates test test-slow test-gpu check format bench docs package clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

demo: $(STAMP)
	$(BIN)/o2nc demo

verify: $(STAMP)
	$(BIN)/o2nc verify

rates: $(STAMP)
	$(BIN)/o2nc rates

# a process per core, each with one thread: most tests are too small for more
test: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m "not slow" -n auto --maxprocesses 4 --dist loadfile

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow

# the fused step on this machine's GPU, by the Python that has its torch and pytest; without a GPU it is interpreted
test-gpu:
	PYTHONPATH=src $(PYTHON) -m pytest tests/test_fused*.py tests/test_compile.py 'tests/test_docs.py::test_page_runs[docs/performance.md]'

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(STAMP)
	$(BIN)/o2nc bench
	$(BIN)/python benchmarks/certify.py --quick
	$(BIN)/python benchmarks/cifar10.py

# the wheel and the sdist, each installed where nothing else is and used; some minutes
package: $(STAMP)
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt twine
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/installed.py dist/*

# the site: build/docs/index.html is its front page
docs: $(STAMP)
	$(BIN)/sphinx-build -W --keep-going -q -b html docs build/docs

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
