# Every target installs what it needs; you do not have to activate an environment.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

# Tests start Python hundreds of times, and each start would compile the same modules again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help train test test-all ops fast check site dist docs jobs deaths releases newest matrix parity programs gpu-wheels gpu-check gpu-jobs gpu-speed gpu-rehearsal clean

help:
	@echo "make train     set up, then train a small language model with ZeRO-3 and CPU offload"
	@echo "make test      set up, then run the tests (make fast: only the fast ones; make test-all: all of them)"
	@echo "make check     set up, then run the linters and the type checker"
	@echo "make site      set up, then build the site of the documentation (make dist: the packages of a release)"
	@echo "make docs      regenerate the pages that are written from tables, such as docs/errors.md"
	@echo "make jobs      plan the jobs of docs/jobs.md again"
	@echo "make deaths    run all failure tests, and regenerate docs/deaths.md"
	@echo "make releases  record which keys each DeepSpeed release reads; needs the network"
	@echo "make newest    list what of the newest releases is not in the tables yet; needs the network"
	@echo "make matrix    run jobs with the oldest to the newest packages, regenerate docs/versions.md, and reproduce known defects"
	@echo "make parity    check all configurations against plain torch, and regenerate the table in docs/parity.md"
	@echo "make programs  run programs of other projects, and regenerate docs/programs.md"
	@echo "make program-memory  compare their estimated memory with real ranks"
	@echo "make program-parity  check that they train the same as plain torch"
	@echo "make gpu-wheels     download wheels for a GPU machine without network: docs/gpu.md"
	@echo "make gpu-check      on the GPU machine: compare predicted with measured memory"
	@echo "make gpu-jobs       on the GPU machine: run real jobs through zlaunch"
	@echo "make gpu-speed      on the GPU machine: compare predicted with measured step times"
	@echo "make gpu-rehearsal  run all three on the CPU of this machine"
	@echo "make clean     remove the environment, and files of tests and runs"

train: .venv/installed
	$(BIN)/zlaunch train --stage 3 --offload cpu

# Python compiles a module when it first imports it, and tests import a part of what arrives.
test test-all check site fast ops deaths: PIP += --no-compile

test: .venv/installed-for-tests ops
	$(BIN)/python -m tools.run_tests

test-all: .venv/installed-for-tests ops
	$(BIN)/python -m tools.run_tests --all

# The native ops of DeepSpeed that tests need. With `make --jobs`, they compile while the packages of tests arrive.
ops: .venv/installed system-packages
	$(BIN)/python -m tools.build_ops

fast: .venv/installed-for-tests
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not job and not hosts and not packages and not program"

# The pages of docs/ as a site, in build/site. A broken link or anchor is an error.
site: .venv/installed-for-tests
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

dist: .venv/installed-for-tests
	$(BIN)/python -m hatchling build --directory dist

check: .venv/installed-for-tests site
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	if command -v actionlint > /dev/null; then actionlint; fi
	@mkdir -p build && $(BIN)/python -m tools.report > build/report.txt
	@if [ -n "$$CI" ]; then cat build/report.txt; fi
	@echo "all checks passed; how plain the code is: build/report.txt"

# Plans usual jobs on GPUs that are not here, which takes half an hour.
jobs: .venv/installed
	$(BIN)/python -m tools.write_jobs

docs: .venv/installed
	$(BIN)/python -m tools.write_errors
	$(BIN)/python -m tools.write_defects
	$(BIN)/python -m tools.write_endings
	$(BIN)/python -m tools.write_speed
	$(BIN)/python -m tools.write_accuracy
	$(BIN)/python -m tools.write_models
	$(BIN)/python -m tools.write_options
	$(BIN)/python -m tools.write_systems
	$(BIN)/python -m tools.draw_learn

deaths: .venv/installed-for-tests ops
	ZLAUNCH_TESTS_EXEC=1 ZLAUNCH_EVERY_LAUNCHER=1 ZLAUNCH_RECORD=docs/deaths.md $(BIN)/python -m pytest tests/deaths tests/jobs/test_training.py tests/jobs/test_recipes.py -q
	ZLAUNCH_TESTS_EXEC=1 ZLAUNCH_EVERY_LAUNCHER=1 $(BIN)/python -m pytest tests/cluster/test_losses.py tests/cluster/test_programs.py tests/cluster/test_again.py -q
	ZLAUNCH_TESTS_EXEC=1 $(BIN)/python -m pytest -n 2 --dist loadfile -q tests/program tests/job

# Checks on a GPU machine without network: docs/gpu.md. The machine has torch and transformers; the wheels
# provide the other packages, and are installed into their own folder.
PYTHON_VERSION ?= 3.12
WHEELS ?= gpu-wheels
OUT ?= bench/results
DEVICE ?= cuda
BUDGET ?= 510
SITE := .gpu/site-packages
ON_GPU = PYTHONPATH=$(abspath $(SITE)):$(CURDIR) HF_HUB_OFFLINE=1 $(PYTHON) -m
OPTIONS = $(OUT) --device $(DEVICE) --seconds $(BUDGET) $(if $(FIRST),--first $(FIRST))

gpu-wheels: .venv/installed-for-tests
	$(BIN)/python -m tools.gather_wheels $(WHEELS) $(PYTHON_VERSION)

$(SITE): $(wildcard $(WHEELS)/*.whl)
	rm -rf $@
	$(PYTHON) -m pip install --quiet --no-index --no-deps --no-cache-dir --target $@ $(WHEELS)/*.whl
	@touch $@

gpu-check: $(SITE)
	$(ON_GPU) bench.gpu_check $(OPTIONS)

gpu-jobs: $(SITE)
	$(ON_GPU) bench.gpu_jobs $(OPTIONS)

gpu-speed: $(SITE)
	$(ON_GPU) bench.gpu_speed $(OPTIONS)

# All three checks on this machine: in a Python that sees only torch and transformers, and for root without network.
REHEARSAL := build/gpu-rehearsal
ALONE = $(shell unshare --net ip link set lo up 2>/dev/null && echo tools/alone)

gpu-rehearsal: .venv/installed-for-tests
	rm -rf $(REHEARSAL)
	$(BIN)/python -m tools.gather_wheels $(REHEARSAL)/wheels \
	    $$($(BIN)/python -c 'import platform; print(platform.python_version())')
	$(BIN)/python -m tools.bare_python $(REHEARSAL)/python
	TORCH_EXTENSIONS_DIR=$(CURDIR)/build/torch_extensions $(ALONE) \
	    $(MAKE) gpu-check gpu-jobs gpu-speed DEVICE=cpu FIRST=3 BUDGET=2400 OUT=$(REHEARSAL)/out \
	    SITE=$(REHEARSAL)/site-packages WHEELS=$(REHEARSAL)/wheels PYTHON=$(CURDIR)/$(REHEARSAL)/python/bin/python

# The last patch of each release. Add a new release to RELEASES in zlaunch/dsconfig/releases.py too.
DEEPSPEED_RELEASES := 0.14.5 0.15.4 0.16.9 0.17.6 0.18.9 0.19.8

releases: .venv/installed
	$(BIN)/python tools/record_releases.py $(DEEPSPEED_RELEASES)

newest: .venv/installed
	$(BIN)/python -m tools.newest

matrix: .venv/installed
	$(BIN)/python -m tools.matrix
	$(BIN)/python -m tools.known_defects

parity: .venv/installed
	$(BIN)/python -m tools.write_parity

# Sources come from GitHub; with MIRRORS=DIR, from copies in DIR.
programs: .venv/installed
	$(BIN)/python -m tools.programs build/programs

.PHONY: program-memory program-parity
program-memory: .venv/installed
	$(BIN)/python -m tools.programs.memory build/programs

program-parity: .venv/installed
	$(BIN)/python -m tools.programs.parity build/programs

# torch comes first, with its exact version: pip then prefers a CPU build that is already available.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) "$$(grep ^torch== constraints.txt)"
	$(PIP) --editable .
	$(BIN)/python -m compileall -q zlaunch
	@touch $@

.venv/installed-for-tests: .venv/installed tests/startup.py
	$(PIP) --editable '.[test,check]'
	$(BIN)/python -m cpuinfo --json > .venv/cpu.new && mv .venv/cpu.new .venv/cpu.json
	packages="$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" && \
	    cp tests/startup.py "$$packages/zlaunch_tests.py" && echo import zlaunch_tests > "$$packages/zlaunch_tests.pth"
	@touch $@

# System packages for tests on several hosts and on NVMe. Only root can install them.
APT_PACKAGES := libaio-dev pdsh openssh-client openssh-server iproute2 procps
# Only for tests of clusters.
CLUSTER_PACKAGES := slurm-wlm munge openmpi-bin fish tcsh zsh iputils-ping
# Only for tests of pages. Ubuntu has no package of this name; any Chromium or Chrome on the PATH will do.
BROWSER := chromium

.PHONY: browser
browser:
	@for program in chromium chromium-browser google-chrome; do command -v $$program >/dev/null && exit 0; done; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing $(BROWSER)"; \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends $(BROWSER) >/dev/null && exit 0; \
	fi; \
	echo "missing: $(BROWSER); without it, tests of pages in a browser are skipped"

.PHONY: system-packages
system-packages: browser
	@missing=""; \
	for package in $(APT_PACKAGES) $(CLUSTER_PACKAGES); do \
	    dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q "ok installed" || missing="$$missing $$package"; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing$$missing"; \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else \
	    echo "missing:$$missing"; \
	    echo "without libaio-dev, tests of NVMe offload are skipped; without the others, tests on several hosts"; \
	fi

clean:
	rm -rf .venv .gpu gpu-wheels build runs *_output .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
