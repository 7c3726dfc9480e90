# Everything needed is installed into .venv from pyproject.toml, kernels compiled on the way where
# there is a C compiler; nothing else has to be started.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
KERNELS := $(wildcard src/sottovoce/kernels/core/*.py src/sottovoce/kernels/core/*.pxd)

PLAIN := tests/behaviour/test_answers.py tests/behaviour/test_simulations.py

.DEFAULT_GOAL := help
.PHONY: help install demo test test-slow test-browser check format docs vectors bench clean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): pyproject.toml setup.py $(KERNELS)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $(STAMP)

install: $(STAMP)  ## create .venv and install sottovoce with its development tools

demo: $(STAMP)  ## run the main job: a real cloud and seven agents solve the paper's problem privately
	$(BIN)/sottovoce demo --out out

test: check  ## format, lint, types, documentation and the whole test suite
	$(BIN)/python -m pytest -n 4 --dist worksteal -m "not slow and not browser"
	SOTTOVOCE_KERNELS=plain $(BIN)/python -m pytest -n 4 --dist worksteal -m "core and not slow" $(PLAIN)

test-slow: $(STAMP)  ## checks that take longer than the suite may, and properties on new random examples
	$(BIN)/python -m pytest -m slow
	$(BIN)/python -m pytest -n 2 -m "hypothesis and not slow" --hypothesis-profile=default

test-browser: $(STAMP)  ## the live page in headless Chromium, beside a real cloud; pictures in out/browser
	$(BIN)/python -m pytest -rs -m "browser and not slow"

check: $(STAMP)  ## formatting, lint, types, documentation
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --site-dir $(VENV)/site

format: $(STAMP)  ## format the code and mend what the linter can
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(STAMP)  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

vectors: $(STAMP)  ## write the schema of messages and the test vectors from the code
	$(BIN)/python tests/network/conformance_files.py

bench: $(STAMP)  ## benchmarks: ratios measured side by side in one run
	$(BIN)/python -m benchmarks

clean:  ## remove what was built
	rm -rf $(VENV) site out build src/sottovoce/kernels/_avx2 src/sottovoce/kernels/_baseline
