# Everything runs in .venv, which is created again when pyproject.toml changes.

PYTHON ?= python3
ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed
LEAN := .venv/.trains
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable
# Many tests start processes: they import Loopwright faster if its bytecode is kept.
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help install train test test-all test-thorough test-kernels check compat format docs bench bench-peers bench-distribution faults release

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## */  make \1\t/' | expand -t 26

install: $(STAMP)  ## install Loopwright and its tools into .venv

$(STAMP): $(LEAN)
	$(INSTALL) '.[dev]'
	@touch $@

$(LEAN): pyproject.toml
	$(PYTHON) -m venv .venv
	$(INSTALL) '.[examples]'
	@touch $@

train: $(LEAN)  ## train the task digits: checkpoints, TensorBoard, report, export
	$(BIN)/loopwright train digits export=saved_model $(ARGS)

test: $(STAMP)  ## run the tests to pass before a push: one path through every promise
	$(PYTEST) --numprocesses auto --dist loadfile -m "not thorough" --hypothesis-profile quick $(ARGS)

test-all: $(STAMP)  ## run every test, docstring example and documentation fence, with both kinds of kernels
	$(PYTEST) --numprocesses auto --dist loadfile $(ARGS)
	$(MAKE) test-kernels

test-thorough: $(STAMP)  ## run the tests that `make test` leaves out
	$(PYTEST) --numprocesses auto --dist loadfile -m thorough $(ARGS)

# TensorFlow switches oneDNN on by itself only with AVX-512; pytest exits with 5 if ARGS select nothing.
test-kernels: $(STAMP)  ## run the tests that depend on kernels, with oneDNN on and off
	for onednn in 0 1; do \
	  TF_ENABLE_ONEDNN_OPTS=$$onednn $(PYTEST) --numprocesses auto --dist loadfile -m kernels $(ARGS) \
	    || [ $$? -eq 5 ] || exit 1; \
	done

check: $(STAMP)  ## check format, lint, types and layers
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo
	$(BIN)/lint-imports --no-logo --config fence.toml

compat: $(STAMP)  ## list the internals of Keras and TensorFlow in use, and whether they are there
	$(BIN)/python -m loopwright.compat

format: $(STAMP)  ## format, and fix what lint can fix
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)  ## build the documentation into site/
	$(BIN)/python -m docs $(ARGS)

release: $(STAMP)  ## build, check, install and train on every Python, tag; uploads nothing
	$(BIN)/python -m release $(ARGS)

bench: $(STAMP)  ## measure speed against Keras, PyTorch and JAX, start-up, scaling, memory
	$(BIN)/python -m benchmarks $(ARGS)

bench-peers: .venv-torch/.installed .venv-jax/.installed  ## install PyTorch and JAX for `make bench`, apart (6 GB)

# PyTorch's wheel brings the libraries of CUDA, and does not start without them.
.venv-%/.installed: benchmarks/peers/%.txt
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check --requirement $<
	@touch $@

bench-distribution: $(STAMP)  ## measure one and two workers and their communication
	$(BIN)/python -m benchmarks distribution $(ARGS)

faults: $(STAMP)  ## kill, corrupt and starve real runs, in full (about an hour)
	@command -v strace >/dev/null || apt-get install --yes --quiet strace
	@rm -f .faults.jsonl
	LOOPWRIGHT_ALL_FAULTS=1 LOOPWRIGHT_FAULTS_REPORT=$(CURDIR)/.faults.jsonl \
	  $(PYTEST) tests/resume tests/checkpoints/test_store.py \
	  tests/config/test_config_fuzz.py tests/distribute tests/programs $(ARGS)
	$(BIN)/python -m tests.resume.faults .faults.jsonl
