# Everything a contributor types. `make test` is what CI runs; nothing here needs more than a
# Debian 12 machine with python3 (3.11 or newer), make and git.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
# A Python that was built without optimisation takes a tenth to a third longer (a server says so when it
# starts): then the distribution's is taken, if it can make environments and compile modules.
PYTHON ?= $(shell if ! python3 -I quire/python_build.py && /usr/bin/python3 -I quire/python_build.py \
  && /usr/bin/python3 -c "$(CAN_MAKE_ENVIRONMENTS)"; then echo /usr/bin/python3; else echo python3; fi 2>/dev/null)
CAN_MAKE_ENVIRONMENTS := import ensurepip, os, sys, sysconfig; sys.exit(sys.version_info < (3, 11) \
  or not os.path.exists(sysconfig.get_path('include') + '/Python.h'))
PACKAGES := wire runtime metadata bookie ledger joined broker quire quire_locks pyspark_quire spark_jobs sim checks
UV_VERSION := 0.13.8
# Turns of the loop are measured in a process of their own, with nothing beside it: thousands of other
# tests leave it slower.
TURNS := tests/broker/test_loop_turns.py tests/broker/handlers/test_fetch_turns.py \
  tests/broker/transactions/test_coordinator_turns.py \
  tests/bookie/test_long_turns.py tests/joined/test_ledger_gc.py tests/broker/security/tls \
  tests/broker/security/sasl tests/broker/test_regex.py
# Rooms that use a module in C where it was built: their tests run once more without.
PURE := tests/wire/test_compiled.py tests/wire/test_checksum.py tests/bookie/journal \
  tests/wire/kafka/records tests/wire/kafka/test_plain_produce.py \
  $(wildcard tests/broker/handlers/test_produce*.py) tests/broker/log/append \
  $(wildcard tests/broker/log/compact/test_compaction*.py) tests/broker/log/compact/test_cleaning.py
# Arguments of `make run`, `make bench`, `make soak`, `make sim`, `make unit` and others.
ARGS ?=
# How long `make soak` and `make chaos` go on, and how long `make test` tries fresh seeds of the simulation.
MINUTES ?= 240
SIM_MINUTES ?= 5

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

.PHONY: help setup run lint check format settings unit test test-long librdkafka-share librdkafka-cluster \
  sim mutations peers bench soak chaos lock clean

help: ## List the targets.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "%-16s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# Stamps inside the virtual environment: a second run does nothing, and removing the environment
# removes them as well.
$(VENV)/venv.stamp:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "quire needs Python 3.11 or newer; set PYTHON=..." >&2; exit 1; }
	@if ! $(PYTHON) -c 'import ensurepip' 2>/dev/null; then \
	  [ "$$(id -u)" = 0 ] || { echo "missing: apt-get install python3-venv" >&2; exit 1; }; \
	  apt-get update && apt-get install -y --no-install-recommends python3-venv; \
	fi
	[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	touch $@

# The walk over records, what takes an ordinary Produce apart, and checksums of parts are compiled
# where there is a compiler; without one Python does it.
$(VENV)/compiler.stamp: $(VENV)/venv.stamp
	@headers=$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_paths()["include"])'); \
	if ! { command -v gcc && [ -e "$$headers/Python.h" ]; } >/dev/null; then \
	  { [ "$$(id -u)" = 0 ] && apt-get update \
	    && apt-get install -y --no-install-recommends gcc libc6-dev python3-dev; } \
	    || echo "no compiler: records are walked in Python; see docs/benchmarks.md" >&2; \
	fi
	touch $@

$(VENV)/run.stamp: $(VENV)/compiler.stamp requirements/run.txt pyproject.toml \
  wire/kafka/records/_walk.c wire/kafka/_produce.c wire/_checksum.c
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/run.txt
	$(BIN)/python -m pip install --quiet --no-build-isolation --no-deps -e .
	$(BIN)/python -m compileall -q $(PACKAGES)  # else the first start does: a third of its imports' time
	touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements/dev.txt
	$(BIN)/python -m pip install --quiet --require-hashes -r requirements/dev.txt
	touch $@

setup: $(VENV)/dev.stamp ## Make the virtual environment with all that tests need.

run: $(VENV)/run.stamp ## Run a server: make run ARGS="--listen 127.0.0.1:9092".
	@exec $(BIN)/quire standalone $(ARGS)

lint: setup ## Formatting, lint, types, layers.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy $(addprefix -p ,$(PACKAGES))
	$(BIN)/lint-imports

check: lint ## What `lint` says, and the fast unit tests.
	$(BIN)/python -m pytest tests -m "not slow" --hypothesis-profile=fast

format: setup ## Rewrite the code as `check` wants it.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

settings: setup ## Rewrite docs/settings.md as the declarations have it.
	$(BIN)/python -m quire.settings_page > $(VENV)/settings.md
	mv $(VENV)/settings.md docs/settings.md

unit: setup ## All unit and property tests: make unit ARGS="tests/ledger -x".
	$(BIN)/python -m pytest --hypothesis-profile=thorough $(or $(ARGS),-m "not turns")
	$(if $(ARGS),,$(BIN)/python -m pytest -m turns $(TURNS))

peers: setup ## Fetch other projects' programs and jars that tests and benchmarks run.
	PYTHON=$(CURDIR)/$(BIN)/python compat_tests/peers.sh

# Most of the compatibility tests wait for other processes, so two run at a time.
test: setup peers lint ## Everything: checks, all tests, other people's clients and suites.
	$(BIN)/python -m pytest --hypothesis-profile=thorough -n 2 --dist worksteal -m "not turns"
	$(BIN)/python -m pytest -m turns $(TURNS)
	@echo "once more without the modules in C: QUIRE_PURE_PYTHON=1"
	QUIRE_PURE_PYTHON=1 $(BIN)/python -m pytest --hypothesis-profile=fast -n 2 -m "not turns" $(PURE)
	$(BIN)/python -m sim --seed code --minutes $(SIM_MINUTES) --jobs 2 --quiet
	cd compat_tests && ../$(BIN)/python -m pytest -v -n 2 --dist loadfile

# Parts of ten minutes at most, 90 in all; what has passed for the same code is left out when it is
# called again. What takes hours is not in it: mutations, sim, soak (docs/testing.md).
test-long: setup peers ## What takes too long for `test`: make test-long ARGS="--only simulation".
	$(BIN)/python -m compat_tests.long $(ARGS)

# They wait for most of their time: four at a time.
librdkafka-share: setup peers ## librdkafka's tests of share groups that take minutes each.
	cd compat_tests && QUIRE_SUITE=share ../$(BIN)/python -m pytest -v test_librdkafka.py -n 4 --maxschedchunk=1

librdkafka-cluster: setup peers ## librdkafka's tests against three brokers and three bookies.
	cd compat_tests && QUIRE_SUITE=cluster ../$(BIN)/python -m pytest -v test_librdkafka.py

mutations: setup ## Rules broken on purpose, and what finds each: make mutations ARGS="--only no-fence".
	$(BIN)/python -m sim.mutations --jobs 2 $(ARGS)

bench: setup ## Side by side with Apache Kafka; needs `make peers` once.
	$(BIN)/python -m bench.compare $(ARGS)

sim: setup ## Fresh seeds of the simulation: make sim ARGS="--minutes 15 --jobs 2".
	$(BIN)/python -m sim --minutes $(SIM_MINUTES) --jobs 2 $(ARGS)

soak: setup ## Hours of mixed load with restarts, and of fresh seeds: make soak MINUTES=240.
	$(BIN)/python -m sim --minutes $(MINUTES) --quiet & sim=$$!; \
	trap 'kill $$sim 2>/dev/null || true' EXIT; \
	$(BIN)/python -m bench.soak --minutes $(MINUTES) $(ARGS); \
	wait $$sim

# Faults in random order on real processes: bookies, cluster or transactions (docs/testing.md).
SCENARIO ?= transactions
chaos: setup peers ## Transactions while everything breaks: make chaos MINUTES=30.
	$(BIN)/python -m compat_tests.chaos $(SCENARIO) --minutes $(MINUTES) --network-if-possible $(ARGS)

# uv resolves and hashes; pip installs. --upgrade is left to the caller: make lock ARGS=--upgrade
lock: ## Pin requirements/*.txt from pyproject.toml.
	@work=$$(mktemp -d); trap 'rm -rf "$$work"' EXIT; \
	$(PYTHON) -m venv "$$work/venv"; \
	"$$work/venv/bin/python" -m pip install --quiet "uv==$(UV_VERSION)"; \
	compile() { \
	  target=requirements/$$1.txt; shift; \
	  "$$work/venv/bin/uv" pip compile --quiet --no-header --generate-hashes --no-annotate \
	    --no-emit-index-url --python-version 3.11 $(ARGS) "$$@" -o "$$target" pyproject.toml; \
	  { printf '# This file was autogenerated by uv via the following command:\n#    make lock\n'; \
	    cat "$$target"; } > "$$work/with-header"; \
	  cp "$$work/with-header" "$$target"; \
	}; \
	compile run --extra build; \
	compile dev --extra build --extra dev; \
	compile spark --extra build --extra dev --extra spark

clean: ## Remove the virtual environment, caches and built things; not data/.
	rm -rf $(VENV) build *.egg-info wire/*.so wire/kafka/*.so wire/kafka/records/*.so .mypy_cache .ruff_cache .pytest_cache .hypothesis \
	  .import_linter_cache .coverage
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
