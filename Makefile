# `make demo` and `make test` do all set-up themselves: they need Python >= 3.11, and nothing is installed outside .venv.

VENV := .venv
BIN := $(VENV)/bin
READY_DEMO := $(VENV)/ready-demo
READY_TEST := $(VENV)/ready-test
READY_DOCS := $(VENV)/ready-docs
# The package `speculators`, whose reading of our heads the long tests check, wants other versions: it has an environment of its own.
SPECULATORS := $(VENV)/speculators

# The first interpreter that is new enough and can make an environment. Candidates are run, not looked up:
# a version manager's shim may be on the path with nothing behind it.
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))
PYTHON ?= $(shell for one in python3.11 python3.12 python3.13 python3 python; do \
	$$one -c '$(USABLE)' >/dev/null 2>&1 && { echo $$one; break; }; done)

# An index that serves CPU builds of torch. Empty: the usual index, which on some systems gives the large CUDA build.
TORCH_INDEX ?=
TORCH_WANTED = import tomllib; \
	print(*[d for d in tomllib.load(open("pyproject.toml", "rb"))["project"]["dependencies"] if d.startswith("torch")])

# Tests run side by side on up to two cores.
JOBS ?= $(shell cores=$$(nproc 2>/dev/null || echo 1); test $$cores -lt 2 && echo 0 || echo 2)
# A process takes the second half of the tests, and what the other one has left: a file's fixtures are mostly made once.
PYTEST_ARGS ?= -n $(JOBS) --dist worksteal
# Tests start dozens of processes, each of which would compile what it imports.
export PYTHONDONTWRITEBYTECODE :=

# Pip's own warnings (a place of its configuration that is not there) are none of ours: a second --quiet; errors are still shown.
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-long test-all docs lint format clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'
	@echo
	@echo "PYTHON=python3.12        the interpreter for .venv (default: the first >= 3.11 that is found)"
	@echo "TORCH_INDEX=URL          take torch, and only torch, from this index (say, one with CPU builds)"
	@echo "PYTEST_ARGS='-k rule'    other arguments for pytest (default: -n $(JOBS) --dist worksteal, two processes where there are two cores)"

demo: $(READY_DEMO)  ## the embedded pair answers on the bundled clips
	$(BIN)/eventspec demo

test: $(READY_TEST)  ## every check but the long ones: behaviour, layers, lint, types
	$(BIN)/python -m pytest -m "not long" $(PYTEST_ARGS)

# Rooms with a change since BASE, and the checks of the layers: files of src/eventspec/ROOM are tested in tests/ROOM.
BASE ?= HEAD
test-fast: $(READY_TEST)  ## the tests of the rooms that were changed since BASE (default: the last commit), in a minute or two
	$(BIN)/python -m pytest -m "not long" $(PYTEST_ARGS) tests/house/test_layers.py tests/house/test_circles.py $$( \
		{ git diff --name-only $(BASE); git ls-files --others --exclude-standard; } | \
		sed -nE 's,^(src/eventspec|tests)/([a-z_]+)/.*,tests/\2,p' | sort -u | grep -v -e /support -e /house | \
		while read -r room; do test ! -d $$room || echo $$room; done)

test-long: $(READY_TEST)  ## the long tests alone
	$(BIN)/python -m pytest -m long $(PYTEST_ARGS)

test-all: $(READY_TEST) $(SPECULATORS)/ready  ## the long tests too, and those against the package speculators (some GB)
	EVENTSPEC_SPECULATORS_PYTHON=$(abspath $(SPECULATORS)/bin/python) $(BIN)/python -m pytest $(PYTEST_ARGS)

docs: $(READY_DOCS)  ## build the documentation into site/: a broken link or a warning is an error
	@NO_MKDOCS_2_WARNING=true $(BIN)/python -m mkdocs build --clean
	@echo "the documentation is in site/index.html"

lint: $(READY_TEST)  ## ruff, mypy and the layers alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY_TEST)  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:  ## remove caches and build output; .venv stays
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# pip is the last thing that venv writes, so an interrupted set-up is started again.
$(BIN)/pip:
	@python="$(PYTHON)"; test -n "$$python" || \
		{ echo "make: no Python >= 3.11 with venv found; install one, or name it: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	"$$python" -c '$(USABLE)' || \
		{ echo "make: $$python is no Python >= 3.11 with venv; name another: make PYTHON=/path/to/python3.11" >&2; exit 1; }; \
	echo "$$python -m venv $(VENV)"; "$$python" -m venv $(VENV)

$(READY_DEMO): pyproject.toml | $(BIN)/pip
	@echo "installing eventspec into $(VENV); the first time takes some minutes"
	$(if $(TORCH_INDEX),$(PIP) --index-url "$(TORCH_INDEX)" "$$($(BIN)/python -c '$(TORCH_WANTED)')")
	$(PIP) --editable '.[scenes]'
	@touch $@

$(READY_TEST): pyproject.toml | $(BIN)/pip
	@echo "installing eventspec and its checks into $(VENV); the first time takes some minutes"
	$(if $(TORCH_INDEX),$(PIP) --index-url "$(TORCH_INDEX)" "$$($(BIN)/python -c '$(TORCH_WANTED)')")
	$(PIP) --editable '.[dev]'
	@touch $(READY_DEMO) $@

$(READY_DOCS): pyproject.toml | $(BIN)/pip
	@echo "installing eventspec and its documentation's tools into $(VENV); the first time takes some minutes"
	$(if $(TORCH_INDEX),$(PIP) --index-url "$(TORCH_INDEX)" "$$($(BIN)/python -c '$(TORCH_WANTED)')")
	$(PIP) --editable '.[docs]'
	@touch $@

$(SPECULATORS)/ready: | $(BIN)/pip
	@echo "installing speculators into $(SPECULATORS); the first time takes some minutes"
	$(BIN)/python -m venv $(SPECULATORS)
	$(if $(TORCH_INDEX),$(SPECULATORS)/bin/python -m pip install --quiet --index-url "$(TORCH_INDEX)" torch torchvision torchaudio)
	$(SPECULATORS)/bin/python -m pip install --disable-pip-version-check --quiet speculators==0.9.0
	@touch $@
