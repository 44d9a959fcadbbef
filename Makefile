# `make up` trains a model through the whole stack on this machine; `make test` proves it. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The Python of .venv, so that PYTHON is given once; without .venv the oldest supported one on PATH.
PYTHON ?= $(shell readlink -e .venv/bin/python || command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
STACK ?= local
CLOUD ?= $(if $(filter local,$(STACK)),local,aws)
RUN := PYTHONPATH=$(CURDIR) .venv/bin/python
# `make environment` writes it: trainyard.cli of this checkout.
TRAINYARD := .venv/bin/trainyard
# One word for the shell, whatever is in it.
quoted = '$(subst ','\'',$(1))'

.PHONY: help faults lives up down delete-data preview drift preflight verify-clean submit check-nodes check-fabric status logs check policy test format environment sweep record-states bench-local bench-launcher bench-trainer reference manifests locks plugin bench-operator

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

environment: ## the virtual environment, exactly as requirements.lock says
	@test -n "$(PYTHON)" || { echo "Python is not on PATH: install Python 3.11, 3.12 or 3.13, or set PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) local/bootstrap.py

up: environment ## deploy STACK (default: local) and follow its training run to the end (CLOUD=local: on this machine; VERBOSE=1: print every line; PREFLIGHT=no: skip the check of the account)
	@$(TRAINYARD) up --stack $(call quoted,$(STACK)) --cloud $(call quoted,$(CLOUD))

down: environment ## destroy STACK and stop the local cloud; nothing is left running (KEEP_DATA=1: keep protected data; VERBOSE=1: print every line)
	@$(TRAINYARD) down --stack $(call quoted,$(STACK)) --cloud $(call quoted,$(CLOUD)) $(if $(KEEP_DATA),--keep-data=$(call quoted,$(KEEP_DATA)))

delete-data: environment ## delete for good what an earlier down of STACK kept: make delete-data STACK=dev CONFIRM=dev
	@$(TRAINYARD) delete-data --stack $(call quoted,$(STACK)) --cloud $(call quoted,$(CLOUD)) --confirm=$(call quoted,$(CONFIRM))

preview: environment ## show the plan of up for STACK; without a state or an account: all resources of a first up
	@$(TRAINYARD) preview --stack $(call quoted,$(STACK)) --cloud $(call quoted,$(CLOUD))

drift: environment ## list what was changed or deleted outside of Pulumi in STACK; fails if there is something
	@$(TRAINYARD) drift --stack $(call quoted,$(STACK)) --cloud $(call quoted,$(CLOUD))

preflight: environment ## check what the account lacks for STACK; changes nothing
	@$(TRAINYARD) preflight --stack $(call quoted,$(STACK)) --cloud $(call quoted,$(CLOUD))

verify-clean: environment ## list what a destroyed STACK left in the account; exits non-zero if there is anything
	@$(TRAINYARD) verify-clean --stack $(call quoted,$(STACK)) --cloud $(call quoted,$(CLOUD))

submit: environment ## start another run on a stack that is up: make submit STACK=local MIN=1 MAX=2
	@[[ -n $(call quoted,$(MIN)) && -n $(call quoted,$(MAX)) ]] || { echo $(call quoted,say how many nodes: make submit STACK=$(STACK) MIN=2 MAX=4) >&2; exit 2; }
	@$(TRAINYARD) submit --stack $(call quoted,$(STACK)) --cloud $(call quoted,$(CLOUD)) --min=$(call quoted,$(MIN)) --max=$(call quoted,$(MAX))

check-nodes: environment ## check each node of a pool before a run: make check-nodes STACK=p4d POOL=p4d
	@[[ -n $(call quoted,$(POOL)) ]] || { echo $(call quoted,say which pool: make check-nodes STACK=$(STACK) POOL=small) >&2; exit 2; }
	@$(TRAINYARD) check-nodes --stack $(call quoted,$(STACK)) --cloud $(call quoted,$(CLOUD)) --pool=$(call quoted,$(POOL))

check-fabric: environment ## measure the network between nodes of a pool: make check-fabric STACK=p4d POOL=p4d NODES=2
	@[[ -n $(call quoted,$(POOL)) && -n $(call quoted,$(NODES)) ]] || { echo $(call quoted,say which pool and how many nodes: make check-fabric STACK=$(STACK) POOL=small NODES=2) >&2; exit 2; }
	@$(TRAINYARD) check-fabric --stack $(call quoted,$(STACK)) --cloud $(call quoted,$(CLOUD)) --pool=$(call quoted,$(POOL)) --nodes=$(call quoted,$(NODES))

status: environment ## what the local cloud runs
	@$(TRAINYARD) status

logs: environment ## logs of the local cloud's processes
	@$(TRAINYARD) logs

check: environment ## format, lint, types, import rules and the fast tests (a minute, offline)
	@$(RUN) -m tests.suite check

test: environment ## everything: the checks, the long tests and those on the AWS emulator, the trainer under torchrun, and the whole stack on the local cloud
	@$(RUN) -m tests.suite

faults: environment ## launcher and torchrun controller under faults of the live cluster around them (20 minutes; docs/faults.md)
	@$(RUN) -m local tools
	@$(RUN) -m tests.tools
	@$(RUN) -m tests.own_namespaces -m pytest -v -p no:randomly -m faults tests/integration/local

lives: environment ## up, up again, refresh and down of every stack file on the local cloud (an hour; STACK=<stack>: of one)
	@$(RUN) -m local tools
	@$(RUN) -m tests.integration.policy.environments
	@$(RUN) -m tests.own_namespaces -m pytest -v -p no:randomly -m lives $(if $(filter-out file,$(origin STACK)),-k $(call quoted,[$(STACK)]))

policy: environment ## check every shipped stack file by the project's rules and by checkov (STACK=<stack>: one)
	@$(RUN) -m tests.integration.policy $(if $(filter-out file,$(origin STACK)),$(call quoted,$(STACK)))

sweep: environment ## kill the launcher and the torchrun controller at each of their writes, and up and destroy of every stack at 20 random resources each (STACK=<stack>: of one stack alone); resumes after an interruption
	@$(if $(filter-out file,$(origin STACK)),:,$(RUN) -m tests.integration.sweeps.launcher)
	@$(if $(filter-out file,$(origin STACK)),:,$(RUN) -m tests.integration.sweeps.controller)
	@$(RUN) -m tests.integration.sweeps $(if $(filter-out file,$(origin STACK)),--stack $(call quoted,$(STACK)))

record-states: environment ## record what the stack files deploy now; later versions must not delete or replace it (STACK=<stack>: one)
	@$(RUN) -m tests.integration.graph $(if $(filter-out file,$(origin STACK)),$(call quoted,$(STACK)))

bench-local: environment ## measure the local cloud, make check and make test against their targets (an hour; WARM=1 leaves out the cold build)
	@$(RUN) -m tests.benchmarks.local_cloud $(if $(filter-out 0 no false off,$(WARM)),--warm)

bench-trainer: environment ## measure the trainer against its limits, beside the usual ways (every number in docs/benchmarks/trainer.json, or in RAW=<file>)
	@$(RUN) -m tests.benchmarks.trainer $(if $(RAW),--raw $(call quoted,$(RAW)))

bench-launcher: environment ## measure the launcher against its targets, beside two baselines (under 5 minutes)
	@$(RUN) -m tests.benchmarks.launcher

bench-operator: environment ## measure the operator of TorchrunJobs and the plugin against their targets, beside PyTorchJobs and TrainJobs (ten minutes; ROWS="sweep idle plugin pods": some rows)
	@$(RUN) -m local tools
	@$(RUN) -m tests.benchmarks.operator $(foreach row,$(ROWS),$(call quoted,$(row)))

# A release that was tampered with is mostly found within days. The locks of tests/integration/policy name their own commands.
COOL_DOWN ?= 7 days
COMPILE := .venv/bin/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate
IMAGES := launcher trainer

locks: environment ## resolve requirements.txt of all parts into their locks, and the Go modules' hashes; releases of the last COOL_DOWN (7 days) are not taken
	@$(COMPILE) --exclude-newer "$(COOL_DOWN)" requirements.txt $(IMAGES:=/requirements.txt) \
	  local/requirements.txt tests/requirements.txt --output-file requirements.lock
	@for image in $(IMAGES); do $(COMPILE) --exclude-newer "$(COOL_DOWN)" $$image/requirements.txt \
	  --constraint requirements.lock --output-file $$image/requirements.lock || exit 1; done
	@$(COMPILE) --exclude-newer "$(COOL_DOWN)" trainer/requirements-v100.txt --output-file trainer/requirements-v100.lock
	@$(RUN) -m local.tools.lock
	@$(RUN) -m local.tools.lock tests/modules/etcd-with-v2 go.etcd.io/etcd/server/v3

reference: environment ## write docs/settings.md, the page of all settings, the JSON schema of stack files, docs/components.md and docs/commands.md
	@$(RUN) -m infra.settings.reference
	@$(RUN) -m infra.components_reference
	@$(RUN) -m trainyard.cli.reference

manifests: environment ## write crd/ and config/ (with the controller's IMAGE=NAME@sha256:DIGEST) and docs/torchrun-fields.md
	@$(RUN) -m trainyard.operator.manifests $(if $(IMAGE),--image '$(IMAGE)')

plugin: environment ## build dist/kubectl-torchrun, kubectl's plugin as one file for this kind of machine
	@$(RUN) -m trainyard.kubectl.onefile dist

format: environment ## rewrite the code in the project's format
	@.venv/bin/ruff format --quiet . && .venv/bin/ruff check --fix --quiet .
