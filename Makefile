# Two commands do all the set-up on a fresh Debian 12 or 13: `make demo` and `make test`.
PY := .venv/bin/python
BIN := .venv/bin
SH_FILES := $(shell git ls-files '*.sh' 2>/dev/null) .ci/run
PYTEST_FLAGS ?=
# Tests start hundreds of Python processes: without compiled modules each of them would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-unit test-cluster test-long unit quick quick-cluster coverage figures compiled check other-checks lint format bench results results-quick docs native clean install-demo install-unit install-test install-package deb rpm dist site releases

help:  ## Show the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/:/' | column -t -s:

install-demo:
	@sh scripts/bootstrap.sh demo

install-test:
	@sh scripts/bootstrap.sh test

install-unit:
	@sh scripts/bootstrap.sh unit

install-package:
	@sh scripts/bootstrap.sh package

# Also for the daemon's user in a laboratory, who may not write into the checkout.
compiled:
	@$(PY) -m compileall -q slurm_energy research

native:  ## Build the C parts: Slurm plugins and simulated NVML
	@$(MAKE) --no-print-directory -C plugin

demo: install-demo  ## Install what is missing, run one workload twice in a laboratory cluster, print the saving
	@sh scripts/as-root.sh $(BIN)/slurm-energy lab demo $(DEMO_FLAGS)

test: test-unit test-cluster  ## All tests, the real cluster included

# One process for each core, and none of them takes another's core for torch's threads.
UNIT_PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest tests/unit -n auto --dist worksteal

test-unit: install-test compiled  ## All tests that need neither root nor a cluster, the slow ones too
	@$(UNIT_PYTEST) $(if $(COVERAGE),--cov=slurm_energy --cov-report=) $(PYTEST_FLAGS)
	@$(if $(COVERAGE),echo "unit tests run $$($(PY) -m coverage report --format=total) % of the lines of slurm_energy")

unit: install-unit compiled  ## The same without those marked slow, in at most 2 minutes on 2 cores
	@$(UNIT_PYTEST) -q -m 'not slow' $(PYTEST_FLAGS)

# Types are one process for a minute: what is compiled and waits stands beside them, what fills all cores comes after.
quick: install-test compiled  ## Before a commit: lint, types, unit, C under sanitizers, one job through a real Slurm
	@$(MAKE) --no-print-directory -j2 -Otarget lint quick-cluster
	@$(UNIT_PYTEST) -q -m 'not slow' $(PYTEST_FLAGS)

quick-cluster: native
	@$(MAKE) --no-print-directory -C plugin test
	@$(CLUSTER_PYTEST) -q $(QUICK_CLUSTER_TESTS)

coverage: install-unit compiled  ## What `make unit` runs through, line by line (build/coverage/index.html)
	@$(UNIT_PYTEST) -q -m 'not slow' --cov=slurm_energy --cov-report=term:skip-covered --cov-report=html:build/coverage

figures:  ## Print files, lines and importers of the package as a table
	@$(PY) scripts/figures.py

# Most of the time of a laboratory is waiting: four at a time fill two cores, each without more threads of torch.
# What measures time is marked `alone` and runs afterwards, with nothing beside it. What failed beside others runs once
# more with nothing beside it: a deadline that only the load of other tests broke is named and no failure.
CLUSTER_ENVIRONMENT := sh scripts/as-root.sh env OMP_NUM_THREADS=1 SLURM_ENERGY_REQUIRE_LAB=1 SLURM_ENERGY_REQUIRE_SERVERS=1
CLUSTER_PYTEST := $(CLUSTER_ENVIRONMENT) $(PY) -m pytest
CLUSTER_TESTS ?= tests/e2e tests/plugin tests/integration
CLUSTER_WORKERS ?= 4
# Nothing runs beside these: the other files are not even imported.
ALONE_TESTS = $(shell grep -rl --include='test_*.py' 'mark\.alone' $(filter tests%,$(CLUSTER_TESTS)))

QUICK_CLUSTER_TESTS := tests/e2e/test_one_job.py -k "reaches_prolog_and_epilog or exactly_the_jobs_gpus"

test-cluster: install-test native compiled  ## Tests of processes, databases, hooks and a real Slurm; as root
	@$(CLUSTER_PYTEST) -n $(CLUSTER_WORKERS) --dist loadfile --no-loadscope-reorder -m 'not alone' $(CLUSTER_TESTS) $(PYTEST_FLAGS) \
		|| { [ $$? = 1 ] && echo "the failed ones once more, with nothing beside them:" \
		&& $(CLUSTER_PYTEST) -x -ra -v --last-failed --last-failed-no-failures none -m 'not alone' $(CLUSTER_TESTS); }
	@$(if $(ALONE_TESTS),$(CLUSTER_PYTEST) -m alone $(ALONE_TESTS) $(PYTEST_FLAGS))

# Where a release cannot be had, this fails, unless ALLOW_MISSING_RELEASES=1.
RELEASES ?= host trixie forky
RELEASE_TESTS ?= $(addprefix tests/e2e/test_,releases.py one_job.py people.py partitions.py slurm_update.py failover.py \
	waiting_jobs.py lua_route.py snapshots.py)

releases: install-test native compiled  ## The end-to-end suite's quick form on each Slurm: this machine's, 24.11, 26.05
	@failed=; for release in $(RELEASES); do echo "release $$release"; \
		SLURM_ENERGY_RELEASE=$$release $(CLUSTER_PYTEST) -q -n $(CLUSTER_WORKERS) --dist loadfile $(RELEASE_TESTS) $(PYTEST_FLAGS) \
		|| failed="$$failed $$release"; done; [ -z "$$failed" ] || { echo "failed on:$$failed" >&2; exit 1; }

# Which ones: LONG_FORMS="systemd fault-cells"; `scripts/long_tests.py --list` names them.
test-long: install-test native compiled  ## The long forms of tests, one after the other, with a summary; as root
	@$(CLUSTER_ENVIRONMENT) $(PY) scripts/long_tests.py $(LONG_FORMS)

lint: install-test  ## Formats, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

check: install-test  ## Formats, lint, types, import rows, shell and C warnings
	@$(MAKE) --no-print-directory -j2 -Otarget lint other-checks

other-checks:
	$(PY) -m pytest -q -p no:cacheprovider tests/unit/test_import_rows.py
	shellcheck $(SH_FILES)
	$(MAKE) --no-print-directory -C plugin check
	gcc -std=c11 -Wall -Wextra -Werror -fsyntax-only slurm_energy/lab/simgpu/native/*.c

format:  ## Format, and fix what can be fixed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: install-test native  ## Measure submission, decision, hooks and simulation; write docs/reference/benchmarks*.md
	@sh scripts/as-root.sh $(PY) -m research.benchmarks.product --write docs/reference/benchmarks.md
	@$(PY) -m research.benchmarks.simulation --write docs/reference/benchmarks-twin.md
	@$(BIN)/slurm-energy bench decision --markdown docs/reference/benchmarks-decision.md
	@$(BIN)/slurm-energy bench decision --checkpoint random --markdown docs/reference/benchmarks-decision-options.md
	@$(PY) -m research.benchmarks.sampling --write docs/reference/benchmarks-sampling.md

results: install-test  ## Train the agents, run all comparisons (two to three hours on 2 free cores); write docs/reference/results.md
	@$(PY) -m research.agents --folder build/agents --write docs/reference/results.md $(RESULTS_FLAGS)

results-quick: install-test  ## The same in about a minute, short runs and two seeds; write build/results.md
	@mkdir -p build
	@$(PY) -m research.results --quick --write build/results.md $(RESULTS_FLAGS)

deb: install-package  ## Build the Debian packages for this host's Slurm and Python (dist/*.deb)
	@$(PY) packaging/deb.py --output dist

rpm: install-package  ## Build the RPM packages for this host's Slurm and Python (dist/*.rpm); needs rpmbuild
	@$(PY) packaging/rpm.py --output dist

dist: install-package  ## Build wheel and sdist, and the checksums of all that is in dist
	@$(PY) packaging/dist.py --output dist

site: install-package  ## Build the pages of docs/ as a site (build/site); a broken link fails
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo build/site/index.html

docs: install-test  ## Write the generated reference pages
	$(PY) -m slurm_energy.cli.reference --write

clean:  ## Remove what was built (not the virtual environment)
	rm -rf build dist plugin/build .mypy_cache .ruff_cache .pytest_cache .hypothesis
