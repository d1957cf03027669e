# Every target bootstraps itself: git, make, and Python 3.11 or later with venv and pip are enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: help run test clustertest simulate lint format bench mutants docs pictures lock clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 11

# A folder without pip is one that could not be finished: it is made again.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "botpool needs Python 3.11 or later; set PYTHON=/path/to/python3.11"; exit 2; }
	@$(PYTHON) -m venv --clear $(VENV) || { rm -rf $(VENV); \
	  echo "botpool needs Python's venv and pip: on Debian and Ubuntu, install python3-venv"; exit 2; }

# The package itself is installed in place, by the build backend that the lock pins.
$(VENV)/run.stamp: requirements/run.txt pyproject.toml | $(BIN)/pip
	@echo "installing botpool into $(VENV) …"
	$(INSTALL) --require-hashes -r requirements/run.txt
	$(INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/dev.stamp: requirements/dev.txt $(VENV)/run.stamp
	@echo "installing what the tests need into $(VENV) …"
	$(INSTALL) --require-hashes -r requirements/dev.txt
	@touch $@

run: $(VENV)/run.stamp ## run botpool on its embedded default
	@$(BIN)/botpool serve

test: $(VENV)/dev.stamp lint ## check and test everything
	$(BIN)/pytest -n 4 --dist loadfile --no-loadscope-reorder

# Built once a machine (some minutes, and kept outside the checkout), with packages of Debian's that the script
# names if they are missing.
clustertest: $(VENV)/dev.stamp ## build a real Kubernetes, and test on it
	tests/helm/install
	testbed/kubernetes/build >/dev/null
	$(BIN)/pytest -n 3 --dist loadfile -m cluster tests/acceptance tests/deploy tests/engines

lint: $(VENV)/dev.stamp ## format, style, types, import rules
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

format: $(VENV)/dev.stamp ## put the code into its format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/dev.stamp ## measure, and write bench/README.md
	$(BIN)/python -m bench

# A hundred seeds that nobody has run before follow from the commit. Those that once failed are run again.
SEED := $(shell printf '%d' 0x$$(git rev-parse --short=6 HEAD 2>/dev/null || echo 1))
simulate: $(VENV)/dev.stamp ## run a hundred new seeds of the simulation, and those that once failed
	$(BIN)/python -m botpool.simulation --seeds $(SEED)-$$(($(SEED) + 99)) --hours 0.25 --jobs 2
	$(BIN)/python -m botpool.simulation --seeds 90003,90006,90028,90052,90056,90059 --hours 6 --jobs 2

mutants: $(VENV)/dev.stamp ## take out each guard, and see a test fail for it
	$(BIN)/python -m tests.mutants

docs: $(VENV)/dev.stamp ## write the pages of docs/ that come from the code, and the site into site/
	$(BIN)/python -m docs
	$(BIN)/python -m sphinx -q -W --keep-going -E -j auto -c docs . site

pictures: $(VENV)/dev.stamp ## take the pictures of the dashboard anew, from a demo; needs chromium
	$(BIN)/python -m docs.dashboard_pictures

lock: $(VENV)/dev.stamp ## pin the newest releases that pyproject.toml allows
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url pyproject.toml requirements/build.in -o requirements/run.txt
	$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --upgrade --generate-hashes \
	  --no-header --no-annotate --no-emit-index-url --extra dev -c requirements/run.txt \
	  pyproject.toml -o requirements/dev.txt

clean: ## remove what was built
	rm -rf $(VENV) site .mypy_cache .pytest_cache .ruff_cache .hypothesis
