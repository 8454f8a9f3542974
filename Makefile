# `make train` and `make test` do all the set-up they need; nothing has to be activated.

PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help train test fast check docs deaths releases gpu-wheels gpu-check gpu-jobs gpu-rehearsal clean

help:
	@echo "make train     set up, and train a small language model with ZeRO-3 and CPU offload"
	@echo "make test      set up, and run all tests (make fast: only those that take seconds)"
	@echo "make check     set up, and run the linters and the type checker"
	@echo "make docs      write docs/errors.md, docs/endings.md and docs/speed.md anew"
	@echo "make deaths    let runs die in every way, and write docs/deaths.md anew"
	@echo "make releases  record anew which keys each DeepSpeed release reads; needs the network"
	@echo "make gpu-wheels     gather what a machine with a GPU and no network lacks: docs/gpu.md"
	@echo "make gpu-check      there: compare predicted GPU memory with one CUDA device"
	@echo "make gpu-jobs       there: train, fail and recover on it through zlaunch"
	@echo "make gpu-rehearsal  run both here, on the CPU"
	@echo "make clean     remove the environment and what tests and runs left behind"

train: .venv/installed
	$(BIN)/zlaunch train --stage 3 --offload cpu

test: .venv/installed-for-tests system-packages
	$(BIN)/python -m tools.build_ops
	$(BIN)/python -m tools.run_tests

fast: .venv/installed-for-tests
	$(BIN)/python -m pytest -n 2 -m "not job and not hosts"

check: .venv/installed-for-tests
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/hadolint Dockerfile

docs: .venv/installed
	$(BIN)/python -m tools.write_errors
	$(BIN)/python -m tools.write_endings
	$(BIN)/python -m tools.write_speed

deaths: .venv/installed-for-tests system-packages
	$(BIN)/python -m tools.build_ops
	ZLAUNCH_RECORD=docs/deaths.md $(BIN)/python -m pytest tests/deaths -q

# What a machine with a GPU runs, without a network: docs/gpu.md. It has torch and transformers; the wheels
# hold what else is imported, and go into a folder of their own.
PYTHON_VERSION ?= 3.12
WHEELS ?= gpu-wheels
OUT ?= bench/results
DEVICE ?= cuda
BUDGET ?= 510
SITE := .gpu/site-packages
ON_GPU = PYTHONPATH=$(abspath $(SITE)):$(CURDIR) HF_HUB_OFFLINE=1 $(PYTHON) -m
OPTIONS = $(OUT) --device $(DEVICE) --seconds $(BUDGET) $(if $(FIRST),--first $(FIRST))

gpu-wheels: .venv/installed
	$(BIN)/python -m tools.gather_wheels $(WHEELS) $(PYTHON_VERSION)

$(SITE): $(wildcard $(WHEELS)/*.whl)
	rm -rf $@
	$(PYTHON) -m pip install --quiet --no-index --no-deps --no-cache-dir --target $@ $(WHEELS)/*.whl
	@touch $@

gpu-check: $(SITE)
	$(ON_GPU) bench.gpu_check $(OPTIONS)

gpu-jobs: $(SITE)
	$(ON_GPU) bench.gpu_jobs $(OPTIONS)

# Both, here: in another Python, which only sees torch and transformers, and where root can, without a network.
REHEARSAL := build/gpu-rehearsal
ALONE = $(shell unshare --net ip link set lo up 2>/dev/null && echo tools/alone)

gpu-rehearsal: .venv/installed
	rm -rf $(REHEARSAL)
	$(BIN)/python -m tools.gather_wheels $(REHEARSAL)/wheels \
	    $$($(BIN)/python -c 'import platform; print(platform.python_version())')
	$(BIN)/python -m tools.bare_python $(REHEARSAL)/python
	TORCH_EXTENSIONS_DIR=$(CURDIR)/build/torch_extensions $(ALONE) \
	    $(MAKE) gpu-check gpu-jobs DEVICE=cpu FIRST=3 BUDGET=2400 OUT=$(REHEARSAL)/out \
	    SITE=$(REHEARSAL)/site-packages WHEELS=$(REHEARSAL)/wheels PYTHON=$(CURDIR)/$(REHEARSAL)/python/bin/python

# The last patch of each release. A new one goes to RELEASES in zlaunch/dsconfig/releases.py too.
DEEPSPEED_RELEASES := 0.14.5 0.15.4 0.16.9 0.17.6 0.18.9 0.19.8

releases: .venv/installed
	$(BIN)/python tools/record_releases.py $(DEEPSPEED_RELEASES)

# torch is named first, exactly: then pip takes a CPU build of it where one lies ready.
.venv/installed: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) "$$(grep ^torch== constraints.txt)"
	$(PIP) --editable .
	$(BIN)/python -m compileall -q zlaunch
	@touch $@

.venv/installed-for-tests: .venv/installed
	$(PIP) --editable '.[test,check]'
	@touch $@

# What tests on several hosts and on NVMe need besides Python. Only root can install it.
APT_PACKAGES := libaio-dev pdsh openssh-client openssh-server iproute2 procps

.PHONY: system-packages
system-packages:
	@missing=""; \
	for package in $(APT_PACKAGES); do \
	    dpkg-query -W -f '$${Status}' $$package 2>/dev/null | grep -q "ok installed" || missing="$$missing $$package"; \
	done; \
	if [ -z "$$missing" ]; then exit 0; fi; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "installing$$missing"; \
	    apt-get update -qq && apt-get install -y -qq --no-install-recommends $$missing >/dev/null; \
	else \
	    echo "missing:$$missing"; \
	    echo "without libaio-dev the tests of NVMe offload are skipped, without the others those on several hosts"; \
	fi

clean:
	rm -rf .venv .gpu gpu-wheels build runs trainer_output .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
