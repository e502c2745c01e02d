# d7yfs: `make demo` and `make test` do all the set-up. `make help` lists the rest.

.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
ARGS ?=
STORES ?=
# Whole runs use up to four processors. A run with ARGS is one process, so that -x, -s and --pdb
# work.
WORKERS ?= $(if $(ARGS),0,$(shell n=$$(nproc); echo $$((n < 4 ? n : 4))))

.PHONY: help setup setup-tests demo test simulate fuzz integration integration-dragonfly integration-scale integration-loaders integration-torchserve \
	integration-systemd integration-triton \
	integration-monitoring integration-container integration-install integration-pipx check format reference mutants profile trace bench install uninstall lock clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-23s %s\n", $$1, $$2}' Makefile

setup: ## make .venv with the locked dependencies and .venv/bin/d7yfs; as root, system packages too
	@scripts/setup.sh

demo: ## mount a model repository from a real S3 server, check every byte, load a model, show times
	@PYFUSE3=no scripts/setup.sh
	@XDG_CACHE_HOME=$$(mktemp -d) && export XDG_CACHE_HOME && trap 'rm -rf "$$XDG_CACHE_HOME"' EXIT && $(BIN)/python -m demo $(ARGS)

setup-tests: ## install the extra tools of `make test`: Azurite, outside the tree (needs npm), and systemd-analyze
	@scripts/setup.sh systemd:systemd-analyze
	@scripts/azurite.sh >/dev/null

test: setup-tests ## run the whole test suite with a real S3 server and real mounts; ARGS='-k name' selects tests
	@$(BIN)/python -m pytest -p tests.plugins.no_skips -p tests.plugins.contract_table -n $(WORKERS) --dist loadfile $(ARGS)

# Runs of each simulation; a run of the data path takes some 500 steps.
RUNS ?= 4000
simulate: setup ## run the deterministic simulations for millions of steps with new seeds; RUNS=20000, ARGS='-k data'
	@D7YFS_SIMULATE=$(RUNS) $(BIN)/python -m pytest -p tests.plugins.no_skips -rP \
	    -n $(or $(filter-out 0,$(WORKERS)),2) tests/simulation $(ARGS)

fuzz: setup ## as root: run random operations on real mounts under faults; ARGS='--kind network --operations 1000000 --seed 2'
	@$(BIN)/python -m tests.fuzz $(or $(ARGS),--kind network)

integration: ## run the contract suite against Ceph RGW, MinIO and fake-gcs-server; STORES=s3-minio for one, ARGS='-x'
	@scripts/integration.sh $(STORES) -- $(ARGS)

integration-dragonfly: ## test mounts through a real Dragonfly (scheduler, seed, peers), built once outside the tree; ARGS='-k hung'
	@scripts/integration-dragonfly.sh $(ARGS)

integration-scale: setup ## mount and read a directory of a million entries; takes some minutes; ARGS='-s'
	@D7YFS_TEST_SCALE=1 $(BIN)/python -m pytest -p tests.plugins.no_skips tests/scale $(ARGS)

integration-torchserve: ## test a real TorchServe on mounts of a real S3 server, installed once outside the tree; ARGS='-k token'
	@scripts/integration-torchserve.sh $(ARGS)

integration-loaders: ## test loaders of models (transformers, vLLM, llama.cpp, …) on mounts, installed once outside the tree; ARGS='-k vllm'
	@scripts/integration-loaders.sh $(ARGS)

integration-systemd: setup ## as root: test unit, fstab and automounts under a real systemd: kills, watchdog, restart, stop, idle
	@D7YFS_TEST_SYSTEMD=1 $(BIN)/python -m pytest -p tests.plugins.no_skips tests/systemd $(ARGS)

integration-triton: setup ## test a real Triton that loads from mounts of a real store, installed once outside the tree; ARGS='-k poll'
	@program=$$(scripts/triton.sh) && D7YFS_TEST_TRITON=$$program $(BIN)/python -m pytest -p tests.plugins.no_skips tests/triton $(ARGS)

integration-monitoring: ## test alert rules, dashboard and a live scrape with a real Prometheus, and the status page in Chromium
	@scripts/integration-monitoring.sh $(ARGS)

integration-container: ## as root: build and run the image, read its mount outside and in a second container, check the manifests
	@scripts/integration-container.sh $(ARGS)

integration-install: ## as root: install the wheel with Python 3.11 to 3.14 on bare Debian systems, mount and read with each
	@scripts/integration-install.sh $(ARGS)

integration-pipx: ## install d7yfs from this tree with pipx and all clouds, and try it
	@scripts/integration-pipx.sh

check: setup ## check with ruff and mypy --strict: layer contracts, docstrings, references of the docs, fit of the mutants
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/check_docstrings.py d7yfs tests bench demo scripts
	$(BIN)/python scripts/check_docs.py
	$(BIN)/python scripts/mutants.py --check

format: setup ## rewrite the tree with ruff
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

mutants: setup ## break thirty important lines, one at a time: a test must fail; takes some five minutes; ARGS='-k cache'
	@$(BIN)/python scripts/mutants.py $(ARGS)

profile: setup ## profile cold reads without a mount (cProfile): 256 MiB in order, then 1,000 small files; ARGS='--top 50'
	@$(BIN)/python -m scripts.profile $(ARGS)

trace: setup ## as root: print the modules that a cold lookup and a cold read pass, with their calls
	@$(BIN)/python scripts/trace.py $(ARGS)

reference: setup ## write the tables of docs/status.md, docs/status.schema.json and the pages in man/ from the code
	$(BIN)/python scripts/status_reference.py
	$(BIN)/python scripts/man_pages.py

bench: ## compare d7yfs with s3fs, rclone mount and curl; ARGS='--quick', ARGS='--rounds 5 --output bench.json'
	@scripts/setup.sh s3fs curl
	@$(BIN)/python -m bench $(ARGS)

install: ## as root: install d7yfs in /usr/local, the helper of mount -t d7yfs in /sbin, the manual, and the systemd unit; PYFUSE3=yes
	@scripts/install.sh

uninstall: ## as root: remove what make install has installed; settings and the cache stay
	@scripts/install.sh --remove

# Only this target needs uv; the lock itself installs with plain pip. npm's lock names hosts in
# three fields, which npm ci does not need.
UV ?= uv
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --upgrade
NPM_LOCK = requirements/azurite/package-lock.json
NAMELESS = 'const nameless = (name, value) => ["resolved", "funding", "license"].includes(name) ? undefined : value, file = process.argv[1]; \
	fs.writeFileSync(file, JSON.stringify(JSON.parse(fs.readFileSync(file)), nameless, 2) + "\n")'
lock: ## renew requirements/*.txt from pyproject.toml (needs uv), and npm's lock from requirements/azurite/package.json (needs npm)
	$(COMPILE) --extra all --output-file requirements/runtime.txt pyproject.toml
	sed -n 's/^pyfuse3 = \["\([^"]*\)"\].*/\1/p' pyproject.toml | \
	    $(COMPILE) --no-deps --output-file requirements/pyfuse3.txt --constraint requirements/runtime.txt -
	$(COMPILE) --output-file requirements/build.txt --constraint requirements/runtime.txt --group build
	$(COMPILE) --extra all --output-file requirements/dev.txt --constraint requirements/runtime.txt \
	    --constraint requirements/build.txt pyproject.toml --group test --group check --group demo --group bench
	rm -f $(NPM_LOCK)
	npm install --prefix $(dir $(NPM_LOCK)) --package-lock-only --ignore-scripts --no-audit --no-fund --omit-lockfile-registry-resolved
	node -e $(NAMELESS) $(NPM_LOCK)

clean: ## remove .venv and the tools' caches
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
