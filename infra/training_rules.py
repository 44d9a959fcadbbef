"""What a run asks of its pool and of its workers' environment; part of `infra.settings`.

The launcher refuses the same (`launcher.request`), once everything is made and paid for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from components.documents.launch import Candidate
from components.documents.pool import CAPACITY_BLOCK
from infra.model import PoolEntry
from infra.reading import Problems, Section
from trainyard.k8s.names import ENV_REGION, SHUTDOWN_MAX_SECONDS, SHUTDOWN_VARIABLE

NAME: Final = r"[A-Za-z_][A-Za-z0-9_]*"
OWN: Final = "TRAINYARD_"
# https://kubernetes.io/docs/concepts/configuration/secret/#restriction-names-data
_NAME_OF_ONE: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_REFERENCE: Final = rf"(?P<name>{NAME})(=(?P<secret>{_NAME_OF_ONE})(/(?P<key>[-._A-Za-z0-9]+))?)?"
_WANTED: Final = "NAME or NAME=SECRET/KEY, such as HF_TOKEN or HF_TOKEN=hub/token"
# What the training operator, torchrun and its workers tell each other
# (https://docs.pytorch.org/docs/stable/elastic/run.html; kubeflow/training-operator@v1.9.4, pkg/controller.v1/pytorch).
RENDEZVOUS: Final = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT"),
)
RENDEZVOUS_BEGIN: Final = ("PET_", "TORCHELASTIC_")
# The SDKs look for these before the service account's role, or take that role from them
# (https://docs.aws.amazon.com/sdkref/latest/guide/standardized-credentials.html).
CREDENTIALS: Final = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"),
    *("AWS_ROLE_ARN", "AWS_ROLE_SESSION_NAME", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_PROFILE"),
    *("AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
)


def read_environment(section: Section) -> dict[str, str]:
    """Further environment variables of the workers, none of which others set for them."""
    env = section.text_map(
        "env",
        keys=NAME,
        keys_wanted="letters, digits and underscores, no digit first",
        pattern=r"[^\0]*",
        wanted="a text without a null character",
    )
    for name in env:
        if problem := _reserved(name):
            section.reject(f"env.{name}", problem)
    stops = env.get(SHUTDOWN_VARIABLE, "1")
    if not (stops.isascii() and stops.isdecimal() and 1 <= int(stops) <= SHUTDOWN_MAX_SECONDS):
        section.reject(
            f"env.{SHUTDOWN_VARIABLE}",
            f"is {stops!r}; it must be a whole number of seconds from 1 to {SHUTDOWN_MAX_SECONDS}",
        )
    return env


def read_secrets(section: Section, env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the workers from Secrets, each as `<Secret>/<key>`.

    NAME alone is the key NAME of the Secret with that name, as in `kubectl torchrun submit --secret`.
    """
    found: dict[str, str] = {}
    for index, entry in enumerate(section.texts("secrets", (), pattern=_REFERENCE, wanted=_WANTED)):
        match = re.fullmatch(_REFERENCE, entry)
        if match is None:  # reported by `texts`
            continue
        name, secret, key = (
            match["name"],
            match["secret"] or match["name"].lower().replace("_", "-"),
            match["key"],
        )
        place = f"secrets[{index}]"
        if problem := _reserved(name):
            section.reject(place, f"{name} {problem}")
        elif name in env:
            section.reject(place, f"{name} is also in env; it must be in one of them")
        elif name in found:
            section.reject(place, f"{name} is listed twice; each variable must be unique")
        elif not re.fullmatch(_NAME_OF_ONE, secret):
            section.reject(place, f"{entry} is not the name of a Secret; it must be {_WANTED}")
        found[name] = f"{secret}/{key or name}"
    return found


def _reserved(name: str) -> str | None:
    if name == ENV_REGION or name.startswith(OWN):
        return "is set by the stack itself; it must be another name"
    if name in RENDEZVOUS or name.startswith(RENDEZVOUS_BEGIN):
        return "is set for each worker, so that they find each other; it must be left out"
    if name in CREDENTIALS:
        return (
            "is for credentials, and workers have those of their service account's role; it must be left out"
        )
    return None


def check_ceiling(section: Section, entry: PoolEntry | None, least: int) -> None:
    """The minimum must be within the pool's ceiling; the maximum may be above, which the launcher bounds."""
    most = entry.max_nodes if entry else None
    if entry and most is not None and "minNodes" not in section.wrong and least > most:
        section.reject(
            "minNodes",
            f"{least} is more than the pool '{entry.pool.name}' may have; it must be at most {most}, its maxNodes",
        )


def check_ends(problems: Problems, pools: list[PoolEntry], candidates: tuple[Candidate, ...]) -> None:
    """A run that `up` starts must know when a capacity block ends, which nobody but the stack file tells its launcher.

    `pools` are those of the stack file, in its order. Who deploys nothing starts no run.
    """
    if problems.takes_ended:
        return
    for index, entry in enumerate(pools):
        pool = entry.pool
        if not entry.has("purchase", "capacityReservationIds", "reservationType", "reservationEnds"):
            continue
        used = any(candidate.pool is pool for candidate in candidates)
        if used and pool.reservation_type == CAPACITY_BLOCK and pool.reservation_ends is None:
            ids = " ".join(pool.capacity_reservation_ids)
            problems.add(
                f"trainyard:pools[{index}].reservationEnds",
                "is missing, and training.runId starts a run, which has to know when its capacity block ends; it must"
                " be the end (of several: the first one), in quotes, which this prints: aws ec2"
                f" describe-capacity-reservations --capacity-reservation-ids {ids}"
                " --query 'CapacityReservations[].EndDate'",
            )
