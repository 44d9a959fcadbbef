"""A job whose attempt is not on record yet: what is left of others goes, then all of the attempt is made. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from trainyard.operator.core import backing_off, children, nodes
from trainyard.operator.core import names as n
from trainyard.operator.core.decision import UNHEARD_SECONDS, Decision, Removal, holds, removal
from trainyard.operator.core.displaced import withdrawn
from trainyard.operator.core.gang_queue import never_starts
from trainyard.operator.core.look import (
    Look,
    Refusal,
    Wait,
    acceptance_message,
    prepare,
    refused,
    standing,
    uncounted,
)
from trainyard.operator.core.lost_workspace import ended_sync_pod, is_abandoned, workspace_wait
from trainyard.operator.core.observe import AttemptJob, Worker
from trainyard.operator.core.pods import Making
from trainyard.operator.core.reading import JsonObject
from trainyard.operator.core.record import Condition

_SHOWN: Final = 3
_NOT_SENT: Final = (
    f"the workspace did not arrive within {n.SYNC_ABANDONED_SECONDS} s; kubectl torchrun submit may have been stopped. "
    "Submit the job again"
)


def start(look: Look) -> Decision:
    """The next step towards the attempt that the record names."""
    if is_abandoned(look):
        return look.end(n.PHASE_FAILED, n.REASON_WORKSPACE_NOT_SENT, _NOT_SENT, None)
    prepared = prepare(look, look.record.attempt)
    if isinstance(prepared, Making):
        prepared = never_starts(look, prepared) or prepared
    unsent = _wait_for_workspace(look, prepared) if isinstance(prepared, Making) else None
    nodes_of: nodes.Chosen | nodes.Waiting | None = unsent
    if isinstance(prepared, Making) and prepared.settings.queue.pool:
        nodes_of = nodes.choose(look, prepared, _leaving(look), unsent)
        if isinstance(nodes_of, nodes.Chosen):
            prepared = prepare(look, look.record.attempt, nodes_of.nodes)
        elif nodes_of.recount:
            return Decision(recount=True)
    wanted = children.jobs(prepared) if isinstance(prepared, Making) else []
    usable = [each for each in look.seen.of(look.record.attempt) if _fits(each, wanted)]
    rest = [each for each in look.seen.jobs if each not in usable]
    kept = backing_off.kept(look, rest)
    groups = _unfit_groups(look, prepared)
    gone = leftovers(each for each in rest if each not in kept)
    removals = (*gone, *_old_groups(look), *groups, *ended_sync_pod(look)[0])
    decision = _towards(look, prepared, rest, groups, nodes_of)
    if nodes_of is None:  # nothing is to be held, or not any more
        return replace(decision, removals=(*removals, *withdrawn(look)))
    if isinstance(nodes_of, nodes.Chosen):
        return replace(decision, removals=removals)
    return replace(
        decision,
        removals=(*removals, *nodes_of.removals),
        makes=(*decision.makes, *nodes_of.makes),
        again=min((each for each in (nodes_of.again, decision.again) if each is not None), default=None),
    )


def _wait_for_workspace(look: Look, making: Making) -> nodes.Waiting | None:
    """Return the wait for the workspace, without placeholders; None if the workspace is there."""
    wait = workspace_wait(look, making)
    if wait is None:
        return None
    message, again = wait
    return nodes.Waiting(
        reason=n.REASON_WAITING_FOR_WORKSPACE, message=message, removals=withdrawn(look), again=again
    )


def _leaving(look: Look) -> int:
    """How many workers of earlier attempts have a node still, or may get one."""
    return sum(
        not each.over
        for each in (*look.seen.strays, *look.seen.workers)
        if each.attempt != look.record.attempt or each in look.seen.strays
    )


def leftovers(jobs: Iterable[AttemptJob]) -> tuple[Removal, ...]:
    """Removes these Jobs, with their pods before them, only as they were seen.

    One of the attempt that is not on record may be on record meanwhile, and run; one that was to be stopped may have
    succeeded.
    """
    return tuple(removal(each.item, foreground=True, as_read=True) for each in jobs if not each.deleting)


def _old_groups(look: Look) -> list[Removal]:
    name = n.attempt_name(look.meta.name, look.record.attempt)
    return [
        removal(item)
        for (kind, each), item in look.seen.objects.items()
        if kind == "PodGroup" and each != name and "deletionTimestamp" not in item["metadata"]
    ]


def _unfit_groups(look: Look, prepared: Making | Wait | Refusal) -> list[Removal]:
    """The gang of the attempt where it was made of another spec: of another size, or for another queue of KAI."""
    if not isinstance(prepared, Making) or not prepared.settings.gang:
        return []
    wanted = children.pod_group(prepared)
    mine = look.seen.objects.get(key_of(wanted))
    let_go = any(not each.suspended for each in look.seen.of(look.record.attempt))
    if mine is None or "deletionTimestamp" in mine["metadata"] or let_go:
        return []
    alike = holds(mine["metadata"].get("annotations"), wanted["metadata"]["annotations"])
    return [] if alike else [removal(mine, as_read=True)]


def _fits(job: AttemptJob, wanted: list[JsonObject]) -> bool:
    """Whether a Job from before a crash is as it would be made now, so that all of the attempt are of one kind.

    One that is let go is on record by now, and this look began before that: what its queue became says nothing.
    """
    if job.deleting or job.failed:
        return False
    alike = next((each for each in wanted if each["metadata"]["name"] == job.name), None)
    if alike is None or job.item["spec"].get("completions") != alike["spec"]["completions"]:
        return False
    asks = {**alike["metadata"]["annotations"]}
    if not job.suspended:
        del asks[n.ANNOTATION_MADE_OF]
    return holds(job.item["metadata"].get("annotations"), asks)


def asked(look: Look) -> tuple[str, str]:
    """The size and the workspace that the job asks for now, as its Jobs carry them."""
    return look.spec.size_key, look.spec.workspace.digest if look.spec.workspace is not None else ""


def _towards(
    look: Look,
    prepared: Making | Wait | Refusal,
    rest: list[AttemptJob],
    groups: list[Removal],
    nodes_of: nodes.Chosen | nodes.Waiting | None,
) -> Decision:
    phase = n.PHASE_RESTARTING if look.record.phase == n.PHASE_RESTARTING else n.PHASE_PENDING
    idle = (
        Condition(type=n.SUSPENDED, so=False, reason="NotAsked"),
        Condition(type=n.WORKERS_READY, so=False, reason=n.REASON_STARTING),
    )
    if isinstance(prepared, Refusal):
        if not look.has_started:
            return look.end(n.PHASE_FAILED, n.REASON_INVALID_SPEC, prepared.message, None)
        # Its queue was changed meanwhile, and may be changed back: what was trained is not given up.
        told = (*refused(prepared), *idle)
        return look.write(
            phase, n.REASON_INVALID_SPEC, prepared.message, told=told, workers=look.workers(), capacity=None
        )
    if isinstance(prepared, Wait):
        told = (*prepared.told, *idle)
        return look.write(
            phase,
            prepared.reason,
            prepared.message,
            told=told,
            again=prepared.again,
            workers=look.workers(),
            capacity=None,
        )
    told = (*standing(prepared.settings, acceptance_message(look, prepared)), *idle)
    pause, left = backing_off.pause(look)
    if left > 0:
        return look.write(
            phase, n.REASON_BACKING_OFF, pause, told=told, again=left, workers=look.workers(), capacity=None
        )
    wanted = [*surroundings(prepared), *children.jobs(prepared)]
    taken = _taken(look, wanted)
    stuck = _in_the_way(look, rest, groups)
    if stuck and not (taken and not rest):  # the wait for nodes begins when they are gone
        return look.write(phase, n.REASON_STOPPING, stuck, told=told, workers=look.workers(), capacity=None)
    if isinstance(nodes_of, nodes.Waiting):
        return _gathers(look, prepared, phase, told, nodes_of)
    if taken:
        return look.write(
            phase, n.REASON_NAME_TAKEN, taken, told=told, again=UNHEARD_SECONDS, workers=look.workers()
        )
    size = prepared.size
    if nodes_of is None:
        told = (*told, *uncounted(look.record, "NoPool"))
    else:
        so = Condition(type=n.CAPACITY_AVAILABLE, so=True, reason=n.REASON_COUNTED, message=nodes_of.message)
        told = (*told, so)
    decision = look.write(
        n.PHASE_PROVISIONING,
        n.REASON_STARTING,
        f"attempt {look.record.attempt} starts; nodes: {size.nodes}, GPUs on each: {size.gpus}",
        told=told,
        again=0.0,
        nodes=size.nodes,
        gpusPerNode=size.gpus,
        gpus=size.all_gpus,
        workers=look.workers(),
        workspaceDigest=look.spec.workspace.digest if look.spec.workspace is not None else None,
        capacity=None,
        logs={"url": prepared.logs, "image": look.cluster.tools_image} if prepared.logs else None,
    )
    return replace(decision, makes=missing(look, wanted))


def _gathers(
    look: Look, making: Making, phase: str, told: tuple[Condition, ...], waiting: nodes.Waiting
) -> Decision:
    """Wait for the workspace or for nodes. Create the objects that need no node, such as the sync pod."""
    wanted = [children.service(making), *([children.sync_pod(making)] if making.sync else [])]
    taken = _taken(look, wanted)
    reason, message = (n.REASON_NAME_TAKEN, taken) if taken else (waiting.reason, waiting.message)
    if making.settings.queue.pool:
        so = Condition(type=n.CAPACITY_AVAILABLE, so=False, reason=waiting.reason, message=waiting.message)
        told = (*told, so)
    noted = waiting.gathering.written() if waiting.gathering is not None else None
    decision = look.write(phase, reason, message, told=told, workers=look.workers(), capacity=noted)
    return replace(decision, makes=() if taken else missing(look, wanted))


def surroundings(making: Making) -> list[JsonObject]:
    """All that an attempt needs but its Jobs, in the order in which it is made."""
    gang = [children.pod_group(making)] if making.settings.gang else []
    sync = [children.sync_pod(making)] if making.sync else []
    claims = [children.claim(making, each) for each in making.storage.claims]
    return [children.service(making), *claims, *sync, *gang]


def key_of(item: JsonObject) -> tuple[str, str]:
    """An object's kind and name."""
    return item["kind"], item["metadata"]["name"]


def missing(look: Look, wanted: list[JsonObject]) -> tuple[JsonObject, ...]:
    """Those that are not there."""
    there = {*look.seen.objects, *(("Job", each.name) for each in look.seen.jobs), *look.seen.others}
    return tuple(each for each in wanted if key_of(each) not in there)


def drifted(look: Look, wanted: list[JsonObject]) -> tuple[JsonObject, ...]:
    """The Service where it is not as it should be; the spec of the others can't be changed, or is nobody else's."""
    return tuple(
        {**each, "metadata": {**each["metadata"], "uid": live["metadata"]["uid"]}}
        for each in wanted
        if each["kind"] == "Service"
        and (live := look.seen.objects.get(key_of(each))) is not None
        and not holds(live, each)
    )


def _in_the_way(look: Look, rest: list[AttemptJob], groups: list[Removal]) -> str:
    """What has to be gone first: two attempts never run at once."""
    pods = [
        *(each for each in look.seen.strays if not each.over),
        *(each for each in look.seen.workers if each.attempt != look.record.attempt),
    ]
    if not (rest or pods or groups):
        return ""
    told = [
        *(f"Job {each.name}" for each in rest),
        *(f"pod {each.name} on {each.node or 'no node'}" for each in pods),
        *(f"PodGroup {each.name}" for each in groups),
    ]
    more = f" and {len(told) - 3} more" if len(told) > 3 else ""
    lost = "; if a node does not answer, delete it" if any(each.deleting for each in pods) else ""
    return f"waits until the workers before are gone: {', '.join(told[:3])}{more}{lost}{ownerless(pods)}"


def ownerless(pods: Iterable[Worker]) -> str:
    """Tells how to end workers whose Job went without them (`--cascade=orphan`): nobody else does; "" for none."""
    kept = [each.name for each in pods if not each.job and not each.deleting]
    return f"; no Job owns {kept[0]} any more: kubectl delete pod {' '.join(kept[:3])}" if kept else ""


def _taken(look: Look, wanted: list[JsonObject]) -> str:
    keys = [key_of(each) for each in wanted]
    others = [(key, look.seen.others[key]["metadata"]) for key in keys if key in look.seen.others]
    if others:
        told = ", ".join(f"{kind} {name}" for (kind, name), _ in others[:_SHOWN])
        more = f" and {len(others) - _SHOWN} more" if len(others) > _SHOWN else ""
        one = len(others) == 1
        verb, they = ("belongs", "it is") if one else ("belong", "they are")
        words = " ".join(f"{kind.lower()}/{name}" for (kind, name), _ in others)
        # Of an earlier job of the name, which was deleted without them.
        ours = all(_left_behind(meta) for _, meta in others)
        end = f": kubectl delete {words}, which an earlier job of the name left" if ours else ""
        return f"{told}{more} {verb} to something else; the job begins when {they} gone{end}"
    for kind, name in keys:
        mine = look.seen.objects.get((kind, name))
        if mine is not None and "deletionTimestamp" in mine["metadata"]:
            return f"{kind} {name} is being deleted; the job begins when it is gone"
    return ""


def _left_behind(meta: JsonObject) -> bool:
    labels = meta.get("labels") or {}
    return labels.get(n.LABEL_MANAGED_BY) == n.MANAGED_BY and not meta.get("ownerReferences")
