# Needs python3 (3.11 or newer) and make:
#   make demo     create the environment, run `directgp compare` on three problems
#   make test     create the environment, run every check; `make test-paper` those of paper/
#   make docs     create the environment, install Sphinx, build the pages
#   make build    write the sdists and the wheels to dist/; `make smoke` tries the wheels

PYTHON ?= python3
WORKERS ?= 2
# Folder with the data sets, for bench-optimum, bench-training, bench-defaults and bench-latents.
DATA ?=

# Compiled modules are kept: without them each program that a test starts takes seconds longer.
unexport PYTHONDONTWRITEBYTECODE

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DOCS := $(VENV)/.installed-docs
INSTALLED_BROWSER := $(VENV)/.installed-browser
# Environments of the other libraries in the benchmarks: gpflow needs numpy < 2.
VENV_PEERS := .venv-peers
VENV_GPJAX := .venv-gpjax
VENV_DEFAULTS := .venv-defaults
VENV_AUDIT := .venv-audit
VENV_RELEASE := .venv-release
VENV_OLDEST := .venv-oldest
VENV_NEWEST := .venv-newest
# Environment of atheris, which needs clang where there is no wheel of it.
VENV_FUZZ := .venv-fuzz
INSTALLED_RELEASE := $(VENV_RELEASE)/.installed
INSTALLED_PEERS := $(VENV_PEERS)/.installed
INSTALLED_GPJAX := $(VENV_GPJAX)/.installed
INSTALLED_DEFAULTS := $(VENV_DEFAULTS)/.installed
INSTALLED_FUZZ := $(VENV_FUZZ)/.installed
PAGES := docs/_build/html
DEMO := build/demo
# Without the other objectives, and without the full search of directgp fit.
DEMO_METHODS := --methods elbo,log-joint,log-fixed,mean,linear,boosting
# One thread per test worker: more threads would compete for the same cores. The tests of one
# file share fixtures, so they run in one worker.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --durations=20 --durations-min=2
# Tests for other versions of the libraries: those of parts that call them most, in some minutes.
VERSION_TESTS := tests/unit/estimators tests/unit/likelihoods tests/unit/persistence \
  tests/unit/posteriors tests/unit/datasets tests/unit/reports tests/unit/interop/test_gpytorch_adapted.py tests/unit/test_io.py tests/unit/test_files.py \
  tests/unit/test_plots.py tests/unit/training/test_train.py tests/unit/training/test_train_stream.py \
  tests/estimators/test_fits.py tests/estimators/test_saving.py tests/estimators/test_plot_methods.py \
  tests/estimators/test_export.py \
  tests/frozen/test_files.py tests/cli/test_fit.py tests/cli/test_predict.py
VERSION_EXTRAS := cli,excel,export
# Tools of the tests, in the versions of constraints.txt whatever the versions of the libraries.
TEST_TOOLS := beartype|hypothesis|markdown-it-py|mpmath|pytest|pytest-timeout|pytest-xdist
# Torch of `make test-newest` if not the newest, such as TORCH=torch==2.13.0.
TORCH ?= torch

.PHONY: demo examples test pytest test-paper test-slow test-browser test-oldest test-newest build smoke \
  lint types style format bench bench-optimum bench-scale bench-rules bench-accuracy bench-training bench-defaults \
  bench-latents bench-all bench-cost bench-export \
  campaign campaign-fuzz audit docs linkcheck clean

demo: $(INSTALLED)
	@echo "Noise that changes, and a Gaussian likelihood that has it constant: the power of a solar"
	@echo "plant. The objective matters."
	@$(BIN)/directgp compare solar --likelihood gaussian $(DEMO_METHODS) --force \
	  --out $(DEMO)/solar
	@echo; echo "Real data: disease progression of 442 patients. The standard objective is as good."
	@$(BIN)/directgp compare diabetes $(DEMO_METHODS),elbo-basic --force --out $(DEMO)/diabetes
	@echo; echo "Counts with a variance ten times their mean. The likelihood matters."
	@$(BIN)/directgp compare visits $(DEMO_METHODS),elbo-basic --force --out $(DEMO)/visits
	@echo; echo "Three reports to open in a browser:"
	@ls -1 $(DEMO)/*/index.html

examples: $(INSTALLED)
	@for script in examples/*.py; do \
	  echo "$$script"; OMP_NUM_THREADS=1 $(BIN)/python $$script || exit 1; echo; \
	done

test: lint pytest

pytest: $(INSTALLED)
	$(PYTEST)

# The tests of directgp_paper; `make test` runs one claim of it.
test-paper: $(INSTALLED)
	$(PYTEST) paper/tests paper/src

test-slow: $(INSTALLED)
	$(PYTEST) -m slow tests src paper/tests

# Test the report in a browser: the system's own, or a newly installed one.
test-browser: $(INSTALLED_BROWSER)
	@if command -v chromium || command -v chromium-browser || command -v google-chrome \
	  || command -v google-chrome-stable || $(BIN)/playwright install chromium; \
	then $(PYTEST) -m browser tests/browser paper/tests/browser; \
	else echo "No browser was found or could be installed: the report was not tested." >&2; \
	  DIRECTGP_NO_BROWSER=1 $(PYTEST) -m browser tests/browser paper/tests/browser; \
	fi

# The oldest versions that pyproject.toml allows. Newer libraries call old ones in ways that they
# warn of, and jaxtyping's plugin for pytest was another one: warnings and shapes are not checked.
test-oldest: $(INSTALLED_RELEASE)
	$(PYTHON) -m venv --clear $(VENV_OLDEST)
	$(VENV_RELEASE)/bin/uv pip install --python $(VENV_OLDEST)/bin/python --resolution lowest-direct \
	  -e '.[$(VERSION_EXTRAS)]' 'pandas>=2.2' 'polars>=1.0' $$(grep -E '^($(TEST_TOOLS))==' constraints.txt)
	$(call test_versions,$(VENV_OLDEST))

test-newest: $(INSTALLED_RELEASE)
	$(PYTHON) -m venv --clear $(VENV_NEWEST)
	$(VENV_RELEASE)/bin/uv pip install --python $(VENV_NEWEST)/bin/python $(TORCH) \
	  -e '.[$(VERSION_EXTRAS)]' pandas polars $$(grep -E '^($(TEST_TOOLS))==' constraints.txt)
	$(call test_versions,$(VENV_NEWEST))

define test_versions
$(VENV_RELEASE)/bin/uv pip list --python $(1)/bin/python
OMP_NUM_THREADS=1 $(1)/bin/pytest -n $(WORKERS) --dist loadfile -p no:cacheprovider \
  -o addopts="--import-mode=importlib --strict-markers -m 'not slow and not browser'" \
  -W ignore::DeprecationWarning $(VERSION_TESTS)
endef

# Each wheel is built from its sdist, so this checks that the sdist is complete.
build: $(INSTALLED_RELEASE)
	rm -rf dist
	$(VENV_RELEASE)/bin/python -m build --quiet
	$(VENV_RELEASE)/bin/python -m build --quiet --outdir dist paper
	$(VENV_RELEASE)/bin/twine check --strict dist/*

# The wheels in a new environment: directgp without extras, with [cli], and with directgp-paper.
smoke: build
	$(PYTHON) tools/smoke.py dist -c $(CURDIR)/constraints.txt

# The checks of types and of style side by side.
lint: $(INSTALLED)
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target types style

types: $(INSTALLED)
	$(BIN)/mypy --num-workers $(WORKERS)

style: $(INSTALLED)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/bandit -r src paper/src -q -c pyproject.toml

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# Steps, predictions and memory compared with other libraries in separate environments; time of
# L-BFGS evaluations.
bench: $(INSTALLED) $(INSTALLED_PEERS) $(INSTALLED_GPJAX)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.peers --tables docs/tables
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.evaluations --tables docs/tables

bench-rules: $(INSTALLED)
	$(BIN)/python benchmarks/rules.py

# Worst error of each rule, against mpmath.
bench-accuracy: $(INSTALLED)
	$(BIN)/python -m benchmarks.accuracy

# Time to the optimum and choice of β, compared with other libraries.
bench-optimum: $(INSTALLED) $(INSTALLED_PEERS) $(INSTALLED_GPJAX)
	@test -n "$(DATA)" || { \
	  echo "bench-optimum needs the data sets. Name their folder: make bench-optimum DATA=..." >&2; \
	  exit 1; }
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.optimum --data "$(DATA)"

# Rows streamed from disk beside rows in memory.
bench-scale: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/streaming.py

bench-training: $(INSTALLED)
	@test -n "$(DATA)" || { \
	  echo "bench-training needs the data sets. Name their folder: make bench-training DATA=..." >&2; \
	  exit 1; }
	$(BIN)/python benchmarks/fits.py --data "$(DATA)"
	$(BIN)/python benchmarks/optimizers.py --data "$(DATA)"
	$(BIN)/python benchmarks/paths.py --data "$(DATA)"

# Default estimators compared with those of other libraries; a second call does what is missing.
bench-defaults: $(INSTALLED) $(INSTALLED_DEFAULTS)
	@test -n "$(DATA)" || { \
	  echo "bench-defaults needs the data sets. Name their folder: make bench-defaults DATA=..." >&2; \
	  exit 1; }
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.defaults --data "$(DATA)" --docs docs/tables

# Several classes, and noise that depends on x, compared with other libraries; a second call does
# what is missing.
bench-latents: $(INSTALLED)
	@test -n "$(DATA)" || { \
	  echo "bench-latents needs the data sets. Name their folder: make bench-latents DATA=..." >&2; \
	  exit 1; }
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.multiclass --data "$(DATA)"
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.heteroscedastic --data "$(DATA)"
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.softmax_step

# A short selection of all, kept in benchmarks/history and drawn on docs/benchmarks.md.
bench-all: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.all

# Time and memory of whole fits by size.
bench-cost: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.cost

# Error, size and latency of exported models.
bench-export: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.export

# Attacks on the program; a second call does what is missing. One of them, or more of it:
#   python -m campaign --help
campaign: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m campaign all --jobs $(WORKERS)

# Known vulnerabilities of the locked versions, where the database of pip-audit can be reached.
audit:
	$(PYTHON) -m venv $(VENV_AUDIT)
	$(VENV_AUDIT)/bin/python -m pip install pip-audit
	$(VENV_AUDIT)/bin/pip-audit -r requirements.lock --no-deps --disable-pip

# Coverage-guided inputs of every reader; FUZZ_INPUTS is their number for each.
campaign-fuzz: $(INSTALLED) $(INSTALLED_FUZZ)
	OMP_NUM_THREADS=1 $(BIN)/python -m campaign fuzz --jobs $(WORKERS)

docs: $(INSTALLED_DOCS)
	$(BIN)/sphinx-build -W --keep-going -b html docs $(PAGES)
	@echo "The documentation is in $(PAGES)/index.html."

# Links to other sites; those between pages are checked by `make test`.
linkcheck: $(INSTALLED_DOCS)
	$(BIN)/sphinx-build -q -D nb_execution_mode=off -D suppress_warnings=myst-nb.lexer -b linkcheck docs docs/_build/linkcheck

# Caches and build outputs; the environment stays.
clean:
	rm -rf build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src paper tests benchmarks examples -type d -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "directgp needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." >&2; \
	  echo "Name a newer one: make PYTHON=python3.12 ..." >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)

# The sum of each file is checked, but for torch, whose builds come from different places.
$(INSTALLED): pyproject.toml paper/pyproject.toml constraints.txt requirements.lock | $(BIN)/python
	$(BIN)/python -m pip install --no-deps --require-hashes -r requirements.lock
	$(BIN)/python -m pip install -c constraints.txt torch
	$(BIN)/python -m pip install --no-deps --no-build-isolation -e . -e paper
	touch $@

# Tools of a release.
$(INSTALLED_RELEASE): Makefile
	$(PYTHON) -m venv $(VENV_RELEASE)
	$(VENV_RELEASE)/bin/python -m pip install --quiet 'build>=1.2' 'twine>=6.1' 'uv>=0.9'
	touch $@

# Apart from the rest: only `make docs` needs these.
$(INSTALLED_DOCS): $(INSTALLED)
	$(BIN)/python -m pip install -c constraints.txt -e '.[docs]' -e paper
	touch $@

# Only `make test-browser` needs this.
$(INSTALLED_BROWSER): $(INSTALLED)
	$(BIN)/python -m pip install -c constraints.txt -e '.[browser]'
	touch $@

# Only the benchmarks need these. torch first, and the same as ours.
$(INSTALLED_PEERS): benchmarks/peers/requirements-peers.txt constraints.txt
	$(PYTHON) -m venv $(VENV_PEERS)
	$(VENV_PEERS)/bin/python -m pip install $$(grep '^torch==' constraints.txt) 'numpy<2'
	$(VENV_PEERS)/bin/python -m pip install -r benchmarks/peers/requirements-peers.txt
	touch $@

$(INSTALLED_GPJAX): benchmarks/peers/requirements-gpjax.txt
	$(PYTHON) -m venv $(VENV_GPJAX)
	$(VENV_GPJAX)/bin/python -m pip install -r benchmarks/peers/requirements-gpjax.txt
	touch $@

$(INSTALLED_FUZZ): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV_FUZZ)
	$(VENV_FUZZ)/bin/python -m pip install -c constraints.txt torch
	$(VENV_FUZZ)/bin/python -m pip install -c constraints.txt -e '.[cli,excel]' pandas atheris==3.0.0
	touch $@

# xgboost-distribution asks for the xgboost that includes GPU code; xgboost-cpu is the same without.
$(INSTALLED_DEFAULTS): benchmarks/defaults/requirements.txt constraints.txt
	$(PYTHON) -m venv $(VENV_DEFAULTS)
	$(VENV_DEFAULTS)/bin/python -m pip install $$(grep '^torch==' constraints.txt)
	$(VENV_DEFAULTS)/bin/python -m pip install -r benchmarks/defaults/requirements.txt
	$(VENV_DEFAULTS)/bin/python -m pip install --no-deps xgboost-distribution==0.4.0
	touch $@
