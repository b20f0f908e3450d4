# Everything a developer or a user runs. Each target sets up what it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := PYTHONWARNINGS=ignore $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
PROTOS := $(wildcard proto/terracekv/v1/*.proto)

.DEFAULT_GOAL := help
.PHONY: help run test test-long check proto demo wheel clean format

help:  ## this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit("terracekv needs Python 3.11 or newer, this is %d.%d: run make PYTHON=python3.11 ..." % sys.version_info[:2] if sys.version_info < (3, 11) else 0)'
	@$(PYTHON) -m venv $(VENV) || { echo "terracekv needs Python's venv module: on Debian, apt-get install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.run: $(VENV)/.made pyproject.toml constraints.txt
	@$(PIP) -e '.[server,fast,embedded]' || $(PIP) -e '.[server,fast]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	@$(PIP) 'torch==$(shell sed -n "s/^torch==//p" constraints.txt)'
	@$(PIP) -e '.[server,fast,embedded,transformers,load,dev]'
	@touch $@

$(VENV)/.demo: $(VENV)/.run
	@$(PIP) 'torch==$(shell sed -n "s/^torch==//p" constraints.txt)'
	@$(PIP) -e '.[demo]'
	@touch $@

run: $(VENV)/.run  ## set up and start a node with its embedded defaults
	@exec $(BIN)/terracekv serve

test: $(VENV)/.dev  ## set up and run the tests
	@$(BIN)/python -m pytest -n 2 --dist loadfile -m 'not long and not demo' tests

test-long: $(VENV)/.dev $(VENV)/.demo  ## the tests at full size
	@$(BIN)/python -m pytest tests

check: $(VENV)/.dev .typecheck/terracekv  ## format, lint, types, import rules, protos, generated code
	@BIN=$(BIN) scripts/check

format: $(VENV)/.dev  ## format and fix what can be fixed
	@$(BIN)/ruff check --quiet --fix . ; $(BIN)/ruff format --quiet .

proto: .venv-proto/.made  ## regenerate the code made from the protos
	@.venv-proto/bin/python scripts/generate.py

.venv-proto/.made: scripts/proto-requirements.txt
	@$(PYTHON) -m venv .venv-proto
	@.venv-proto/bin/python -m pip install -qq --disable-pip-version-check -r scripts/proto-requirements.txt
	@touch $@

# mypy does not follow the package-dir map: give it a tree that looks as installed.
.typecheck/terracekv:
	@mkdir -p $@ && ln -sfn ../../tiers $@/tiers && ln -sfn ../../server $@/server && ln -sfn ../../client $@/client && ln -sfn ../../proto/terracekv/v1 $@/v1

demo: $(VENV)/.demo  ## prefix reuse on a real model: cold, L1, L2, L3
	@$(BIN)/python examples/demo.py

wheel: $(VENV)/.dev  ## build the wheel into dist/
	@$(BIN)/python -m build --quiet --wheel .

clean:  ## remove what the targets made
	@rm -rf $(VENV) .venv-proto .typecheck build dist *.egg-info
