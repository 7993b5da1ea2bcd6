PYTHON ?= python3
PYTEST_ARGS ?=
# Public traces that are not part of the repository (see CONTRIBUTING.md).
CORPUS ?= ../shared/traces
GPU_RUN ?= build/gpu

BIN := .venv/bin
.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-all check texts docs pictures accuracy truth changed-ops trials noise gpu gpu-tables bench bench-scale clean
.DELETE_ON_ERROR:

help:  ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-11s  %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: .venv/torch  ## record a sample training on whatever device is there, and say what to fix
	$(BIN)/diagnose profile sample_traces/trainings/image_classifier/train.py

test: .venv/browser  ## run the tests but slow ones, on all cores; PYTEST_ARGS goes to pytest
	$(BIN)/pytest --numprocesses=auto --dist=worksteal -m "not slow" $(PYTEST_ARGS)

test-slow: .venv/browser  ## run those that take seconds: they record trainings, drive a browser, judge recordings
	$(BIN)/pytest --numprocesses=auto --dist=worksteal -m "slow and not exhaustive" $(PYTEST_ARGS)

test-all: test  ## run all tests, and property tests with 100 examples each
	$(BIN)/pytest --numprocesses=auto --dist=worksteal -m slow --hypothesis-profile=thorough $(PYTEST_ARGS)

check: .venv/full  ## lint, format, types, import contracts, dead code and generated texts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/python -m diagnose.docs --check
	$(BIN)/python -m benchmarks.texts --check
	$(BIN)/python -m benchmarks.sentences
	@for some in "diagnose rules" tests "benchmarks sample_traces"; do \
	  echo "lines of Python in $$some: $$(find $$some -name '*.py' -exec cat {} + | wc -l)"; done

texts: .venv/full  ## write all generated texts: the schema, pages of rules, help, tables, reports
	$(BIN)/python -m diagnose.docs
	$(BIN)/python -m benchmarks.texts --write $(if $(wildcard $(CORPUS)),--corpus $(CORPUS))

docs: .venv/full  ## build the documentation into site/, without a network; a dead link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pictures: .venv/browser  ## take the pictures of the report again; CORPUS=DIR has the public trace that they show
	$(BIN)/python -m benchmarks.pictures $(CORPUS)

accuracy: .venv/full  ## measure how often diagnoses of planted cases and of simulated jobs are right, and publish it
	$(BIN)/python -m benchmarks.accuracy --write
	$(BIN)/python -m benchmarks.simulated_jobs --write
	$(BIN)/python -m benchmarks.jobs --write
	$(if $(wildcard $(CORPUS)),$(BIN)/python -m benchmarks.gpu_traces $(CORPUS) --write)
	$(if $(wildcard $(CORPUS)),$(BIN)/python -m benchmarks.multi_rank_traces $(CORPUS) --write)
	$(if $(wildcard $(CORPUS)/h100),$(BIN)/python -m benchmarks.h100 --from $(CORPUS)/h100 --write)
	$(if $(wildcard $(CORPUS)/h100),$(BIN)/python -m benchmarks.known_costs --corpus $(CORPUS) --write)
	$(BIN)/python -m benchmarks.texts --write

truth: .venv/full  ## measure planted cases that need no GPU and record all their levels, as far as that is missing; takes an hour
	$(BIN)/python -m benchmarks.ground_truth --missing --all-levels
	$(BIN)/python -m benchmarks.jobs --measure --record --missing

changed-ops: .venv/full  ## measure how right savings are that rest on measured ops, as far as that is missing, and publish it; takes ten minutes
	$(BIN)/python -m benchmarks.changed_ops --write
	$(BIN)/python -m benchmarks.texts --write

trials: .venv/full  ## measure whether `diagnose try` finds what fixes gain, and publish it; takes at most 40 minutes
	$(BIN)/python -m benchmarks.trials --seconds 2400 --write
	$(BIN)/python -m benchmarks.texts --write

noise: .venv/full  ## record healthy trainings again and again, and publish how often `diagnose compare` errs; takes 20 minutes
	$(BIN)/python -m benchmarks.noise --write
	$(BIN)/python -m benchmarks.texts --write

gpu:  ## measure what only a GPU can tell, into GPU_RUN, for 9 minutes; run it again to go on. PYTHON is to have torch and this package
	$(PYTHON) -m benchmarks.gpu $(GPU_RUN)

gpu-tables: .venv/full  ## publish what `make gpu` has left in GPU_RUN
	$(BIN)/python -m benchmarks.h100 --from $(GPU_RUN) --write
	$(BIN)/python -m benchmarks.texts --write

bench: .venv/full  ## measure loading beside HTA and plain SQL, publish it, and measure what recording costs
	$(BIN)/python -m benchmarks.load --write
	$(BIN)/python -m benchmarks.texts --write
	$(BIN)/python -m benchmarks.recording

bench-scale: .venv/full  ## measure what very many ranks take, and publish it
	$(BIN)/python -m benchmarks.scale --write
	$(BIN)/python -m benchmarks.texts --write

clean:  ## remove the virtual environment, caches and build output
	rm -rf .venv build dist site *.egg-info .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: pip runs again only when what it read has changed.
.venv/core: setup.cfg pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check --editable .
	@touch $@

.venv/torch: .venv/core constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[torch]'
	@touch $@

.venv/full: .venv/core constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all,dev]'
	@touch $@

# Tests in a browser drive the system's Chromium. Where it cannot be installed, they are skipped.
.venv/browser: .venv/full
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null \
	  || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends \
	  chromium fonts-dejavu-core >/dev/null; } \
	  || echo "Tests in a browser will be skipped: install Chromium to run them."
	@touch $@
