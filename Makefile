# Needs python3 (with venv) and make, nothing else. PY=… names another Python.
#   make up       a master in the background, one sample task run to its end
#   make down     stops the master; running tasks go on
#   make check    the quick gate: style, types, arrows, unit tests
#   make test     everything that proves it
#   make bench    every figure of benchmarks/README.md
.DELETE_ON_ERROR:
.PHONY: up install down clean lint check test test-tools bench moved

PY ?= python3
BIN := .venv/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# Scripts of a virtual environment name their own place: one that was moved or copied is made anew.
MADE_AT := $(shell cat .venv/.made-at 2>/dev/null)
ifneq ($(MADE_AT),)
ifneq ($(MADE_AT),$(CURDIR))
.venv/.made-at: moved
endif
endif

up: .venv/.installed
	@$(BIN)/python scripts/up.py

install: .venv/.installed
	@echo "the commands are in .venv/bin"

.venv/.made-at:
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "cannot install: $(PY) is missing or older than 3.10; name another one: make up PY=python3.11" >&2; exit 1; }
	@$(PY) -c 'import venv, ensurepip' 2>/dev/null || { \
	  echo "cannot make .venv: this Python has no venv; install the package python3-venv" >&2; exit 1; }
	@$(PY) -m venv $(if $(MADE_AT),--clear) .venv
	@pwd -P > $@

.venv/.installed: .venv/.made-at pyproject.toml
	@echo "installing into .venv (once)" >&2
	@$(BIN)/python -m pip install --quiet --editable .
	@touch $@

.venv/.tests-installed: .venv/.installed
	@$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

down:
	@[ ! -x $(BIN)/lab-gpu ] || { $(BIN)/lab-gpu server stop && echo "running tasks go on; the next master finds them"; } \
	  || [ $$? -eq 3 ]

clean: down
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build dist
	find src tests benchmarks scripts -name __pycache__ -type d -prune -exec rm -rf {} +

lint: .venv/.tests-installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

check: lint
	$(BIN)/python -m pytest -m "not slow" tests/unit tests/house

test: lint test-tools
	$(BIN)/python -m pytest

# What single tests need beside Python. Without it those tests say so and are skipped.
test-tools:
	@for need in gcc:gcc,libc6-dev tmux:tmux git:git; do \
	  command -v "$${need%%:*}" >/dev/null && continue; \
	  packages=$$(echo "$${need#*:}" | tr , ' '); \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $$packages; } >/dev/null \
	      || echo "cannot install $$packages: tests that need it are skipped" >&2; \
	  else echo "tests that need $${need%%:*} are skipped; to run them: sudo apt-get install $$packages" >&2; fi; \
	done

bench: .venv/.installed
	$(BIN)/python benchmarks/run.py
