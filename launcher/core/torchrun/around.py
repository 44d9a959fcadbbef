"""What stands around an attempt on record. Its pods stay as they were made, whatever its queue says since. Pure."""

from __future__ import annotations

from launcher.core.torchrun import names as n
from launcher.core.torchrun.look import Look
from launcher.core.torchrun.pods import Making
from launcher.core.torchrun.reading import JsonObject
from launcher.core.torchrun.starting import surroundings

_CLAIM, _GANG = "PersistentVolumeClaim", "PodGroup"


def around(look: Look, making: Making) -> list[JsonObject]:
    """What the attempt needs but its Jobs; of claims and gangs those that its pods name, and no others."""
    named = {key for job in look.seen.of(look.record.attempt) for key in _named(job.item["spec"]["template"])}
    return [
        each
        for each in surroundings(making)
        if each["kind"] not in (_CLAIM, _GANG) or (each["kind"], each["metadata"]["name"]) in named
    ]


def unkept(look: Look, making: Making) -> str:
    """The claim that is to be kept, by now, and was made to go with the job; "" where there is none.

    Who owns a claim is written when it is made. The controller has no right to change that.
    """
    owned = [
        each.name
        for each in making.storage.claims
        if each.retain
        and (look.seen.objects.get((_CLAIM, each.name)) or {"metadata": {}})["metadata"].get(
            "ownerReferences"
        )
    ]
    if not owned:
        return ""
    return (
        f"claim {owned[0]} was made before it was to be kept, and goes with the job: kubectl patch pvc "
        f'{owned[0]} --type merge -p \'{{"metadata":{{"ownerReferences":null}}}}\' keeps it'
    )


def _named(template: JsonObject) -> list[tuple[str, str]]:
    claims = [
        (_CLAIM, str(each["persistentVolumeClaim"].get("claimName")))
        for each in template["spec"].get("volumes") or []
        if "persistentVolumeClaim" in each
    ]
    gang = ((template.get("metadata") or {}).get("annotations") or {}).get(n.ANNOTATION_POD_GROUP)
    return [*claims, *([(_GANG, str(gang))] if gang else [])]
