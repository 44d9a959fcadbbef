# `make up` trains a model through the whole stack on this machine; `make test` proves it. `make help` lists the rest.
SHELL := /bin/bash
.DEFAULT_GOAL := help

# The Python of .venv, so that PYTHON is given once; without .venv the oldest supported one on PATH.
PYTHON ?= $(shell readlink -e .venv/bin/python || command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
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

# The commands of trainyard (trainyard/cli/arguments.py), with variables for their options: STACK=dev is --stack=dev.
# A variable that is given and empty is refused, as by STACK=$$name without a name: the default would be another stack.
given = $(filter-out undefined,$(origin $(1)))
option = $(if $(given),--$(2)=$(call quoted,$($(1))))
where = $(call option,STACK,stack) $(call option,CLOUD,cloud)

up: environment ## deploy a stack, and follow its training run to the end (STACK=dev; CLOUD=local: on this machine; VERBOSE=1: print every line; PREFLIGHT=no: skip the check of the account)
	@$(TRAINYARD) $@ $(where)

down: environment ## destroy a stack, and stop the local cloud unless another stack is up on it (KEEP_DATA=1: keep protected data; VERBOSE=1: print every line)
	@$(TRAINYARD) $@ $(where) $(if $(KEEP_DATA),$(call option,KEEP_DATA,keep-data))

delete-data: environment ## delete for good the data that an earlier `down --keep-data` kept: make delete-data STACK=dev CONFIRM=dev
	@$(TRAINYARD) $@ $(where) $(call option,CONFIRM,confirm)

preview: environment ## show the plan of `up` against the stack's state; without a state or an account: all resources of a first up
	@$(TRAINYARD) $@ $(where)

drift: environment ## list what was changed or deleted outside of Pulumi; fails if there is anything
	@$(TRAINYARD) $@ $(where)

preflight: environment ## check what the account lacks for a stack: quotas, capacity, subnets, permissions
	@$(TRAINYARD) $@ $(where)

verify-clean: environment ## list what a destroyed stack left in the account; fails if there is anything
	@$(TRAINYARD) $@ $(where)

submit: environment ## start another run on a stack that is up, and follow it to the end: make submit STACK=local MIN=1 MAX=2
	@$(TRAINYARD) $@ $(where) $(call option,MIN,min) $(call option,MAX,max)

check-nodes: environment ## check each node of a pool before a run: make check-nodes STACK=p4d POOL=p4d
	@$(TRAINYARD) $@ $(where) $(call option,POOL,pool)

check-fabric: environment ## measure the network between nodes of a pool that are up: make check-fabric STACK=p4d POOL=p4d NODES=2
	@$(TRAINYARD) $@ $(where) $(call option,POOL,pool) $(call option,NODES,nodes)

status: environment ## show what the local cloud runs
	@$(TRAINYARD) $@

logs: environment ## show the logs of the local cloud's processes
	@$(TRAINYARD) $@

check: environment ## format, lint, types, import rules and the fast tests (a minute, offline)
	@$(RUN) -m tests.suite check

test: environment ## everything: the checks, the long tests and those on the AWS emulator, the trainer under torchrun, and the whole stack on the local cloud
	@$(RUN) -m tests.suite

faults: environment ## launcher and torchrun controller under faults of the live cluster around them (10 minutes; docs/faults.md)
	@$(RUN) -m local tools
	@$(RUN) -m tests.tools
	@$(RUN) -m tests.own_namespaces -m pytest -v -p no:randomly -n 3 --dist loadgroup --no-loadscope-reorder -m faults tests/integration/local

lives: environment ## up, up again, refresh and down of every stack file on the local cloud (an hour; STACK=<stack>: of one)
	@$(RUN) -m local tools
	@$(RUN) -m tests.integration.policy.environments
	@$(RUN) -m tests.own_namespaces -m pytest -v -p no:randomly -m lives $(if $(call given,STACK),-k $(call quoted,[$(STACK)]))

policy: environment ## check every shipped stack file by the project's rules and by checkov (STACK=<stack>: one)
	@$(RUN) -m tests.integration.policy $(if $(call given,STACK),$(call quoted,$(STACK)))

sweep: environment ## kill the launcher and the torchrun controller at each of their writes, and up and destroy of every stack at 20 random resources each (STACK=<stack>: of one stack alone); resumes after an interruption
	@$(if $(call given,STACK),:,$(RUN) -m tests.integration.sweeps.launcher)
	@$(if $(call given,STACK),:,$(RUN) -m tests.integration.sweeps.controller)
	@$(RUN) -m tests.integration.sweeps $(if $(call given,STACK),--stack $(call quoted,$(STACK)))

record-states: environment ## record what the stack files deploy now; later versions must not delete or replace it (STACK=<stack>: one)
	@$(RUN) -m tests.integration.graph $(if $(call given,STACK),$(call quoted,$(STACK)))

bench-local: environment ## measure the local cloud, make check and make test against their targets (an hour; ROWS="up previews check test cold": some rows)
	@$(RUN) -m tests.benchmarks.local_cloud $(foreach row,$(ROWS),$(call quoted,$(row)))

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
