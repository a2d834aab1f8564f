# PivotRL from a fresh clone: `make demo` or `make test`. `make help` lists everything.
#
# torch goes in first and alone, so that its build is yours to choose; everything else is then
# pinned by constraints.txt and leaves it untouched.

PYTHON      ?= python3
TORCH       ?= torch==2.13.0
JOBS        ?= 2
PYTEST_ARGS ?=
DEMO_ARGS   ?=

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install -q --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install dev demo test check docs clean

help:
	@echo 'make demo     the whole pipeline on a tiny model, on this CPU (DEMO_ARGS="...")'
	@echo 'make test     the tests (JOBS=2 processes; PYTEST_ARGS="tests/test_x.py -k y")'
	@echo 'make check    ruff, mypy and the layers rule'
	@echo 'make docs     the site, into build/docs/html; warnings and broken links are errors'
	@echo 'make install  only what running pivotrl needs, into $(VENV)'
	@echo 'make dev      that and the development tools'
	@echo 'make clean    removes $(VENV), builds and caches'
	@echo 'Settings: PYTHON=python3.12 TORCH="torch==2.13.0 --index-url URL" (make clean first for another build)'

demo: install
	@$(BIN)/pivotrl demo $(DEMO_ARGS)

# One thread for each process: as many processes as cores, and sums in a fixed order.
test: dev
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(PYTEST_ARGS)

check: dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

docs: $(VENV)/.docs
	@$(BIN)/python docs/build.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests benchmarks recipes -type d -name __pycache__ -prune -exec rm -rf {} +

install: $(VENV)/.runtime
dev: $(VENV)/.dev

# A TORCH given by hand that is not what the environment holds starts the installation again.
ifneq ($(origin TORCH),file)
ifneq ($(strip $(shell cat $(VENV)/.torch 2>/dev/null)),$(strip $(TORCH)))
.PHONY: $(VENV)/.torch
endif
endif

$(VENV)/.torch:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "PivotRL needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo 'making $(VENV)'
	@$(PYTHON) -m venv $(VENV)
	@echo 'installing torch (about 1 minute; longer where its build for GPUs is downloaded)'
	@$(PIP) $(TORCH)
	@echo '$(TORCH)' > $@

$(VENV)/.runtime: $(VENV)/.torch pyproject.toml constraints.txt
	@echo 'installing pivotrl and what it needs (about 1 minute)'
	@$(PIP) -e . -c constraints.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime
	@echo 'installing the development tools (about 1 minute)'
	@$(PIP) -e '.[dev]' -c constraints.txt
	@touch $@

$(VENV)/.docs: $(VENV)/.runtime
	@echo 'installing Sphinx (a few seconds)'
	@$(PIP) -e '.[docs]' -c constraints.txt
	@touch $@
