"""Reading the run of a stack file; part of `infra.settings`."""

from __future__ import annotations

from dataclasses import replace

from components.documents import checkpoints
from components.documents.launch import Candidate
from components.documents.pool import GPU
from infra.fallback_settings import read_fallbacks, read_pool
from infra.model import PoolEntry, Training
from infra.reading import Problems, Section
from infra.training_rules import check_ceiling, check_ends, read_environment, read_secrets
from infra.worker_settings import CUDA, DEVICES, read_size, size_of_type, within_memory
from trainyard.k8s.names import RUN_ID_MAX_LENGTH

PATH = "trainyard:training"
RUN_ID = rf"[a-z0-9]([-a-z0-9]{{0,{RUN_ID_MAX_LENGTH - 2}}}[a-z0-9])?"
# Karpenter leaves an offering out for three minutes after EC2 had none of it
# (aws/karpenter-provider-aws v1.14.1, pkg/cache/cache.go, UnavailableOfferingsTTL): before that it asks for none.
LEAST_RETRY_SECONDS = 180
# As torchrun's own max_restarts (pytorch/pytorch, torch/distributed/launcher/api.py, LaunchConfig).
MAX_RESTARTS = 3
STATIC, ELASTIC = "static", "elastic"


def read_training(problems: Problems, value: object, pools: list[PoolEntry]) -> Training | None:
    """Return the run; None where the stack has pools alone (an empty mapping is the project's default)."""
    if value is None or value == {}:
        return None
    section = Section(problems, PATH, value)
    entry = read_pool(section, pools)
    pool = entry.sized if entry else None
    run_id = section.optional_text(
        "runId",
        pattern=RUN_ID,
        wanted=f"lower case letters, digits and hyphens, at most {RUN_ID_MAX_LENGTH}",
    )
    least = section.integer("minNodes", least=1, unit="nodes")
    most = section.integer("maxNodes", least=1, unit="nodes")
    if not {"minNodes", "maxNodes"} & section.wrong and least > most:
        section.reject("minNodes", f"{least} is more than maxNodes; it must be at most {most}")
    check_ceiling(section, entry, least)
    device = section.choice("device", DEVICES, CUDA)
    if pool and device == CUDA and "device" not in section.wrong and pool.resource != GPU:
        section.reject("device", f"cuda needs GPUs and {pool.instance_type} has none; it must be cpu")
    # A device that is wrong asks nothing of the pools.
    judged = "" if "device" in section.wrong else device
    size = read_size(section, pool, judged, size_of_type(pool))
    deadline = section.integer("capacityDeadlineSeconds", 1200, least=10, unit="seconds")
    first = Candidate(pool=entry.pool, size=size, capacity_deadline_seconds=deadline) if entry else None
    minimum = None if "minNodes" in section.wrong else least
    fallbacks = read_fallbacks(section, pools, first, pool, judged, minimum)
    rest = {
        "hold_seconds": section.integer("holdSeconds", 60, least=0, unit="seconds"),
        "node_start_seconds": section.integer("nodeStartSeconds", 900, least=60, unit="seconds"),
        "attempts": section.integer("attempts", 1, least=1),
        "retry_seconds": section.integer("retrySeconds", 240, least=LEAST_RETRY_SECONDS, unit="seconds"),
        "max_restarts": section.integer("maxRestarts", MAX_RESTARTS, least=0),
    }
    shape = section.choice("shape", (STATIC, ELASTIC), STATIC)
    active = section.optional_integer("activeDeadlineSeconds", least=60, unit="seconds")
    data = section.text("data", "digits", wanted="digits, or the path of IDX files in the trainer's image")
    places = section.choice("checkpoints", checkpoints.PLACES, checkpoints.S3)
    args = section.texts("args", (), pattern=r"[^\0]*", wanted="a text (numbers in quotes)")
    env = read_environment(section)
    secrets = read_secrets(section, env)
    section.done()
    candidates = (*([first] if first else []), *fallbacks)
    if not problems.about(PATH):  # else a size may be no quantity, which is told already
        candidates = tuple(replace(each, size=within_memory(each.size)) for each in candidates)
    if run_id is not None:
        check_ends(problems, pools, candidates)
    return Training(
        candidates=candidates,
        run_id=run_id,
        min_nodes=least,
        max_nodes=most,
        device=device,
        shape=shape,
        active_deadline_seconds=active,
        data=data,
        checkpoints=places,
        args=args,
        env=env,
        secrets=secrets,
        **rest,
    )
