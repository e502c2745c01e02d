# d7yfs: `make demo` and `make test` do all the set-up themselves. `make help` lists the rest.

.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
ARGS ?=
STORES ?=
# Whole runs use up to four processors; a run of some tests (ARGS) is one process, so that -x, -s and --pdb work.
WORKERS ?= $(if $(ARGS),0,$(shell n=$$(nproc); echo $$((n < 4 ? n : 4))))

.PHONY: help setup setup-tests demo test simulate fuzz integration integration-dragonfly integration-scale integration-torchserve \
	integration-triton \
	integration-monitoring integration-container integration-pipx check format bench install lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-23s %s\n", $$1, $$2}' Makefile

setup: ## .venv with the locked dependencies and .venv/bin/d7yfs; system packages too when root runs it
	@scripts/setup.sh

demo: setup ## mount a model repository from a real S3 server, check every byte, load a model, show times
	@XDG_CACHE_HOME=$$(mktemp -d) && export XDG_CACHE_HOME && trap 'rm -rf "$$XDG_CACHE_HOME"' EXIT && $(BIN)/python -m demo $(ARGS)

setup-tests: ## what `make test` needs besides: Azurite, once, outside the tree (needs npm), and systemd-analyze
	@scripts/setup.sh systemd:systemd-analyze
	@scripts/azurite.sh >/dev/null

test: setup-tests ## the whole test suite with a real S3 server and real mounts; ARGS='-k name' picks some
	@$(BIN)/python -m pytest -p tests.plugins.no_skips -p tests.plugins.contract_table -n $(WORKERS) --dist loadfile $(ARGS)

# Runs of each simulation; a run of the data path takes some 500 steps.
RUNS ?= 4000
simulate: setup ## millions of steps of the deterministic simulations, with seeds of their own; RUNS=20000, ARGS='-k data'
	@D7YFS_SIMULATE=$(RUNS) $(BIN)/python -m pytest -p tests.plugins.no_skips -rP \
	    -n $(or $(filter-out 0,$(WORKERS)),2) tests/simulation $(ARGS)

fuzz: setup ## random operations on real mounts under faults, as root; ARGS='--kind network --operations 1000000 --seed 2'
	@$(BIN)/python -m tests.fuzz $(or $(ARGS),--kind network)

integration: ## contract suite against Ceph RGW, MinIO and fake-gcs-server; STORES=s3-minio for one, ARGS='-x'
	@scripts/integration.sh $(STORES) -- $(ARGS)

integration-dragonfly: ## mounts through a real Dragonfly (scheduler, seed, peers), built once outside the tree; ARGS='-k hung'
	@scripts/integration-dragonfly.sh $(ARGS)

integration-scale: setup ## a directory of a million entries, mounted and read; takes some minutes; ARGS='-s'
	@D7YFS_TEST_SCALE=1 $(BIN)/python -m pytest -p tests.plugins.no_skips tests/scale $(ARGS)

integration-torchserve: ## a real TorchServe on mounts of a real S3 server, installed once outside the tree; ARGS='-k token'
	@scripts/integration-torchserve.sh $(ARGS)

integration-triton: setup ## a real Triton that loads from mounts of a real store; installed once, outside the tree; ARGS='-k poll'
	@program=$$(scripts/triton.sh) && D7YFS_TEST_TRITON=$$program $(BIN)/python -m pytest -p tests.plugins.no_skips tests/triton $(ARGS)

integration-monitoring: ## alert rules, dashboard and a live scrape by a real Prometheus
	@scripts/integration-monitoring.sh $(ARGS)

integration-container: ## the image built and run as root, its mount seen outside and by a second container; manifests checked
	@scripts/integration-container.sh $(ARGS)

integration-pipx: ## d7yfs installed from this tree by pipx, with all clouds, and tried
	@scripts/integration-pipx.sh

check: setup ## ruff, mypy --strict, layer contracts
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## let ruff rewrite the tree
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: ## side by side with s3fs, rclone mount and curl; ARGS='--quick', ARGS='--rounds 5 --output bench.json'
	@scripts/setup.sh s3fs curl
	@$(BIN)/python -m bench $(ARGS)

install: setup ## as root: d7yfs in /usr/local, the helper of mount -t d7yfs in /sbin, the systemd unit
	@scripts/install.sh

# uv is needed here only; the lock itself installs with plain pip. npm's lock names hosts in three fields, none of which npm ci needs.
UV ?= uv
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade
NPM_LOCK = requirements/azurite/package-lock.json
NAMELESS = 'const nameless = (name, value) => ["resolved", "funding", "license"].includes(name) ? undefined : value, file = process.argv[1]; \
	fs.writeFileSync(file, JSON.stringify(JSON.parse(fs.readFileSync(file)), nameless, 2) + "\n")'
lock: ## renew requirements/*.txt from pyproject.toml (needs uv), and npm's lock from requirements/azurite/package.json (needs npm)
	$(COMPILE) --all-extras --output-file requirements/runtime.txt pyproject.toml
	$(COMPILE) --output-file requirements/build.txt --constraint requirements/runtime.txt --group build
	$(COMPILE) --all-extras --output-file requirements/dev.txt --constraint requirements/runtime.txt \
	    --constraint requirements/build.txt pyproject.toml --group test --group check --group demo --group bench
	rm -f $(NPM_LOCK)
	npm install --prefix $(dir $(NPM_LOCK)) --package-lock-only --ignore-scripts --no-audit --no-fund --omit-lockfile-registry-resolved
	node -e $(NAMELESS) $(NPM_LOCK)

clean: ## remove .venv and what the tools left
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
