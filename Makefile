# Everything sets itself up: its own virtual environment under .venv, with the versions of constraints.txt.
PYTHON ?= $(shell tools/python)
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
SOURCES := core proto daemons controller agent client sim tests benchmarks examples tools

# Tests and demonstrations start hundreds of processes: without it each of them compiles the project's own files anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv demo demo-cluster test computes bench lint format protos boards clean
help:
	@echo "make demo          three users' training jobs share one emulated 4-GPU host (under 4 minutes)"
	@echo "make demo-cluster  three GPU generations in three servers: trades and migration, live (under 6 minutes)"
	@echo "make test          lint, types and every test"
	@echo "make lint          ruff, import contracts, mypy, generated files"
	@echo "make format        mend what ruff can mend by itself"
	@echo "make protos        the generated files again, after a change to a .proto file"
	@echo "make boards        Grafana's boards again, after a change to tools/boards.py"
	@echo "make bench         measure, and keep the figures under benchmarks/results"
	@echo "make clean         remove .venv, caches and what the demos have left"

# Most of what is installed is never imported, so it is compiled when it is; what every training process imports, before many do at the same time.
venv: $(READY)
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; $(PYTHON) is $$($(PYTHON) --version). Try: make PYTHON=python3.12 …" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --requirement tools/requirements-dev.txt
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[controller,agent,sim,demo]'
	$(BIN)/python -c 'import torch._dynamo, torch.distributed.run, torch.utils.data'
	@touch $@

demo: $(READY)
	$(BIN)/python -m examples.figure4.demo

demo-cluster: $(READY)
	$(BIN)/python -m examples.cluster.demo

# What mostly waits for processes runs four files at a time, the longest first (tests/conftest.py). Lint and what only computes take the time of the cores that it leaves, and are shown
# at their end. What is held to milliseconds has the machine to itself.
TIMED    := tests/agent/test_hosts.py
WAITS    := tests/e2e tests/job tests/client tests/controller tests/packaging tests/agent
COMPUTES := $(filter-out $(WAITS) tests/lean tests/__pycache__,$(patsubst %/,%,$(wildcard tests/*/)))
BESIDE   := build/beside.log
SELF     := $(MAKE)# by another name, or `make -n test` would run it

test: $(READY)
	@mkdir -p $(dir $(BESIDE)); \
	nice -n 10 $(SELF) --keep-going --no-print-directory lint computes >$(BESIDE) 2>&1 & beside=$$!; \
	trap 'kill $$beside; exit 130' INT TERM; status=0; \
	$(BIN)/python -m pytest --numprocesses 4 --dist loadfile --no-loadscope-reorder $(WAITS) --ignore $(TIMED) || status=1; \
	wait $$beside || status=1; cat $(BESIDE); \
	$(BIN)/python -m pytest --numprocesses 2 --dist load $(TIMED) || status=1; \
	exit $$status

computes: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --dist worksteal $(COMPUTES)

bench: $(READY)
	$(BIN)/python benchmarks/run.py

lint: $(READY)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/lint-imports --no-cache
	$(BIN)/mypy
	$(BIN)/python tools/protos.py --check
	$(BIN)/python tools/boards.py --check

format: $(READY)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

protos: $(READY)
	$(BIN)/python tools/protos.py

boards: $(READY)
	$(BIN)/python tools/boards.py

clean:
	rm -rf $(VENV) build dist demo-out demo-cluster-out .mypy_cache .pytest_cache .ruff_cache .hypothesis
