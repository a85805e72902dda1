# `make` prints what there is. Every target sets up what it needs.
# Options: PYTHON=python3.12 (interpreter of .venv), WORKERS=8 (test processes), POSTGRES=15, ARGS="-k claim" (for pytest and run)

# Tests wait as much as they work: of two cores four processes left a sixth idle, three a quarter.
WORKERS ?= 5
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help setup run check fix test golden console-test test-fast faults mutations simulation scale-test bench bench-console bench-images bench-memory corpus fuzz-api house walk record newcomer audit pin vendor clean \
	check-format check-lint check-types check-imports check-house check-migrations check-spelling check-containers check-terraform check-kubernetes \
	check-infra check-observability promtool observe-test drill apply-test image image-test localstack localstack-up localstack-down

help: ## Print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) ## Build .venv from uv.lock (any other target does it when needed)

# A named interpreter is looked at every time; otherwise the stamp decides.
ifdef PYTHON
.PHONY: $(READY)
export PYTHON
endif
$(READY): pyproject.toml uv.lock .ci/setup .ci/uv.txt
	@.ci/setup
	@touch $@

run: $(READY) ## The whole stack on this machine, with a demo of 8 images (or ARGS="--demo 20 --exit")
	@$(BIN)/imagefleet up $(or $(ARGS),--demo 8)

check: check-format check-lint check-types check-imports check-house check-migrations check-containers check-terraform check-kubernetes check-observability check-spelling ## Format, lint, types, import contracts, the house's figures, migrations, containers, Terraform's format, manifests, alerts, spelling (-k: do not stop at the first)
	@echo "check: all passed"

check-format: $(READY)
	@echo "check: format (ruff format)"
	@out=$$($(BIN)/ruff format --check . 2>&1) || { echo "$$out"; echo "'make fix' repairs this."; exit 1; }

check-lint: $(READY)
	@echo "check: lint (ruff check)"
	@$(BIN)/ruff check --quiet --output-format=concise . || { echo "'make fix' repairs what needs no thought."; exit 1; }

check-types: $(READY)
	@echo "check: types (mypy --strict)"
	@$(BIN)/mypy --no-error-summary

check-imports: $(READY)
	@echo "check: import contracts (lint-imports)"
	@out=$$($(BIN)/lint-imports --no-logo 2>&1) || { echo "$$out"; exit 1; }

check-house: $(READY)
	@echo "check: the figures of the house (.ci/house.py)"
	@out=$$($(BIN)/python .ci/house.py --check) || { echo "$$out"; echo "ARGS=--names of 'make house' says what was counted."; exit 1; }

# Every file runs in one transaction of its own, on Postgres 15 at the oldest. Off are:
# prefer-bigint-over-int: counters, sizes and pixels are small on purpose; what grows without end is bigint.
# require-statement-timeout: lock_timeout bounds how long others wait; the work itself takes what it takes.
SQUAWK_OFF := prefer-bigint-over-int,require-statement-timeout

check-migrations: $(READY)
	@echo "check: migrations (squawk)"
	@$(BIN)/squawk --assume-in-transaction --pg-version=15.0 --exclude=$(SQUAWK_OFF) 'migrations/*.sql'

check-containers: $(READY)
	@echo "check: containers (hadolint, docker compose config)"
	@$(BIN)/hadolint services/Dockerfile
	@.ci/compose -f compose.localstack.yml config --quiet

# Another program than `terraform` of the PATH: TERRAFORM=tofu
export TERRAFORM

check-terraform: $(READY)
	@$(BIN)/python -m tests.infra.aws.check --quick

check-kubernetes: $(READY)
	@echo "check: manifests of Kubernetes (kustomize build, tests.infra.kubernetes)"
	@$(BIN)/python -m tests.infra.kubernetes production

check-observability: $(READY)
	@$(BIN)/python -m tests.infra.observability.check

check-spelling: $(READY)
	@echo "check: spelling (codespell)"
	@$(BIN)/codespell

check-infra: $(READY) ## Infrastructure as code: Terraform's own tests on a pretended AWS, checkov, every overlay of Kubernetes against schemas and code; what is not installed is left out by name
	@$(BIN)/python -m tests.infra.aws.check
	@$(BIN)/python -m tests.infra.kubernetes
	@$(BIN)/pytest -q -n 0 tests/infra/aws tests/infra/kubernetes

promtool: $(READY) ## Fetch Prometheus and promtool, Debian's, and unpack them below .bench, where neither is installed
	@$(BIN)/python -m tests.infra.observability.check --fetch

observe-test: $(READY) ## A real Prometheus scrapes the embedded stack under load, and every panel of every dashboard is asked for; one minute
	@$(BIN)/pytest -q -n 0 tests/infra/observability $(ARGS)

drill: $(READY) ## Faults brought into a stack, each alert seen to fire, its runbook's command given, the alert seen gone, some eight minutes (ARGS="--only flood --json")
	@$(BIN)/python -m tests.infra.observability.drill $(ARGS)

fix: $(READY) ## Repair what needs no thought: format, lint, spelling, docs/settings.md, dashboards
	$(BIN)/ruff check --quiet --fix . || true
	$(BIN)/ruff format --quiet .
	$(BIN)/imagefleet settings >docs/settings.md
	$(BIN)/python -m infra.observability.write
	$(BIN)/codespell --write-changes

test: $(READY) ## Every test (real Postgres and AWS stand-ins, started as needed; POSTGRES=15 is Debian's instead of the wheel's)
	@TEST_POSTGRES=$(POSTGRES) $(BIN)/pytest -n $(WORKERS) --dist worksteal $(ARGS)

golden: $(READY) ## Write anew what is seen from outside, where a change of it is meant
	@$(BIN)/pytest -q -n 0 tests/project/test_golden.py tests/cli/test_golden_answers.py tests/cli/test_terminals.py tests/imaging/test_golden.py tests/infra/identity/test_rights.py --write-golden

console-test: $(READY) ## The console: sessions, guards, and each page in Chromium, some two minutes (ARGS="-k strangers"; --write-golden keeps its pictures)
	@$(BIN)/pytest -n $(WORKERS) --dist worksteal tests/console $(ARGS)
	@$(BIN)/pytest -q -n 0 -s --show-capture=no tests/console/test_drills.py | grep 'clicks until'

# The folders whose tests need neither Postgres nor an emulator.
FAST := $(wildcard tests/test_*.py $(addprefix tests/,project jobs imaging errors settings telemetry))

test-fast: $(READY) ## Only the tests that need no server
	@$(BIN)/pytest $(FAST) $(ARGS)

faults: $(READY) ## Kills, failures of every kind, and the time of recovery, judged, in some twelve minutes (ARGS="--only recovery --seed 1")
	@$(BIN)/python -m tests.faults $(ARGS)

mutations: $(READY) ## Break the store's protections one by one; a named test must notice each, in some five minutes (ARGS="--only rescue")
	@$(BIN)/python -m tests.mutations $(ARGS)

simulation: $(READY) ## The doorbell against a queue that loses, doubles, delays and refuses, some six minutes (ARGS="--only purge --seed 1")
	@$(BIN)/python -m tests.simulation $(ARGS)

scale-test: $(READY) ## KEDA played by the rendered manifests: a burst of 3,000 jobs, zero to N to zero, some three minutes (ARGS="--lane fast --threshold 3000")
	@$(BIN)/python -m tests.scaling $(ARGS)

bench: $(READY) ## How fast it is beside others, as ratios of one run, twenty minutes on an idle machine (ARGS="--only post --rounds 7", ARGS=--help)
	@$(BIN)/python -m tests.bench $(ARGS)

bench-console: $(READY) ## Every page of the console where five million jobs are: time to the whole page, and what its statements read; fifteen minutes, most to fill Postgres (ARGS="--jobs 20000")
	@$(BIN)/python -m tests.bench.console $(ARGS)

bench-images: $(READY) ## CPU of a photo through the whole product beside Pillow, pyvips and sharp, ten minutes (ARGS="--jobs 4 --no-peers")
	@$(BIN)/python -m tests.bench --only images $(ARGS)

bench-memory: $(READY) ## What pictures of 12 to 108 megapixels take, in the children that make them, and a crowd of them, five minutes (ARGS="--only webp")
	@$(BIN)/python -m tests.bench.memory $(ARGS)

corpus: $(READY) ## Real files of package indexes through the decode path, beside what Chromium shows, half an hour (ARGS="--only webp --most 100", ARGS=--smoke)
	@$(BIN)/python -m tests.corpus $(ARGS)

fuzz-api: $(READY) ## 100,000 requests that nobody thought of, made from the API's documents, half an hour (ARGS="--requests 5000 --seed 7")
	@$(BIN)/python -m tests.fuzzing $(ARGS)

house: $(READY) ## Count modules, lines, readers and names, beside what there was and what there may be (ARGS="--at REVISION --names")
	@$(BIN)/python .ci/house.py $(ARGS)

walk: $(READY) ## Modules and statements that an upload, a cancel, a replay, a replacement, an explain run through, one minute (ARGS="--only upload")
	@$(BIN)/python -m tests.walk $(ARGS)

record: $(READY) ## Draw the terminal of the README: an upload, its variants, kill -9, healed; two minutes
	@$(BIN)/python -m tests.recording healed

newcomer: $(READY) ## Clone this repository, run it with empty caches on a terminal of 100 columns, and draw what it printed
	@$(BIN)/python -m tests.recording newcomer $(ARGS)

audit: $(READY) ## Ask a vulnerability database about every locked package; fails where it cannot be reached
	@$(BIN)/python .ci/audit.py $(ARGS)

pin: $(READY) ## Pin images and actions by digest, those that can be fetched; fails and says so where one cannot
	@$(BIN)/python .ci/pin.py $(ARGS)

vendor: $(READY) ## Fetch the files of others that pages load, as they are pinned (needs npm; ARGS="--package uplot --version 1.6.33" pins another)
	@$(BIN)/python .ci/vendor.py $(ARGS)

# The base may be any Debian with Python 3.11 or newer: PYTHON_IMAGE=python:3.12-slim
PYTHON_IMAGE ?= python:3.13-slim
ENGINE ?= docker
TARGETS := api worker maintenance console cli

TOLD := /usr/share/doc/imagefleet

image: ## Build the containers of all processes, and their bills of materials into dist (PYTHON_IMAGE=python:3.13-slim, ENGINE=docker)
	@mkdir -p dist
	@for target in $(TARGETS); do \
		echo "image: imagefleet-$$target"; \
		$(ENGINE) build --quiet --network=host --build-arg PYTHON_IMAGE=$(PYTHON_IMAGE) \
			--build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) \
			--file services/Dockerfile --target $$target --tag imagefleet-$$target . || exit 1; \
		made=$$($(ENGINE) create imagefleet-$$target) || exit 1; \
		$(ENGINE) cp $$made:$(TOLD)/sbom.cdx.json dist/imagefleet-$$target.cdx.json || exit 1; \
		$(ENGINE) rm $$made >/dev/null; \
		bytes=$$($(ENGINE) image inspect --format '{{.Size}}' imagefleet-$$target); \
		echo "image: imagefleet-$$target has $$((bytes / 1000000)) MB, and what is in it stands in dist/imagefleet-$$target.cdx.json"; \
	done

image-test: $(READY) ## Run the fleet from those containers: 50 images, a worker stopped, a worker killed (ARGS="--terraform --through-pgbouncer")
	@$(BIN)/python -m tests.containers --engine $(ENGINE) $(ARGS)

apply-test: $(READY) ## infra/aws applied to an emulator, the fleet on what it made, a second apply, destroy, some six minutes (needs Terraform)
	@$(BIN)/python -m tests.infra.aws.apply

localstack: $(READY) ## The same fleet without containers, LocalStack from PyPI: redrive, backlog, drain, kill (needs Python 3.13)
	@infra/localstack/setup
	@$(BIN)/python -m tests.localstack $(ARGS)

COMPOSE_FILES ?= compose.localstack.yml
COMPOSE := PYTHON_IMAGE=$(PYTHON_IMAGE) .ci/compose $(addprefix --file ,$(COMPOSE_FILES))
DEMO_KEY := run --rm --quiet-pull cli keys create --tenant demo --name me --scope submit --scope read --scope operate

localstack-up: $(READY) ## The fleet on LocalStack, in containers: build, start, wait until it is healthy, print an API key
	@$(COMPOSE) up --build --detach --wait
	@echo "api at http://127.0.0.1:8080, console at http://127.0.0.1:8081, published images at http://127.0.0.1:8082; a key:"
	@echo "export IMAGEFLEET_KEY=$$($(COMPOSE) $(DEMO_KEY))"

localstack-down: ## Stop it and forget everything
	@$(COMPOSE) --profile cli down --volumes --remove-orphans

clean: ## Remove caches, .venv and .tools
	rm -rf .bench .venv .tools .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache dist
	find services tests -name __pycache__ -type d -prune -exec rm -rf {} +
