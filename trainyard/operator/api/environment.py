"""Environment variables of a job, as Kubernetes' EnvVar has them (k8s.io/api v0.35.4, core/v1/types.go)."""

from __future__ import annotations

from trainyard.operator.api import words
from trainyard.operator.api.fields import Field, Rule, group, listing, named, quantity, text, yes_or_no

SOURCES = ("configMapKeyRef", "secretKeyRef", "fieldRef", "resourceFieldRef")


def environment() -> Field:
    """`env` of a job."""
    variable = group(
        "One variable.",
        {
            "name": named(
                "Name of the variable.",
                r"^[A-Za-z_][-._A-Za-z0-9]*$",
                "env.name",
                "letters, digits, '_', '-' and '.', no digit first",
                most=253,
            ),
            "value": text("Its value.", most=32768, absent="empty"),
            "valueFrom": _source(),
        },
        required=("name",),
        rules=(
            Rule(
                check="!(has(self.value) && self.value != '' && has(self.valueFrom))",
                message="env: value and valueFrom exclude each other; give one of them",
                path=".valueFrom",
            ),
        ),
    )
    return listing(
        "Environment of the processes.", variable, most=256, key=("name",), absent="none but torchrun's"
    )


def _source() -> Field:
    one = " + ".join(f"(has(self.{each}) ? 1 : 0)" for each in SOURCES)
    return group(
        "Where its value comes from.",
        {
            "configMapKeyRef": _key("A key of a ConfigMap of the job's namespace."),
            "secretKeyRef": _key("A key of a Secret of the job's namespace."),
            "fieldRef": group(
                "A field of the pod.",
                {
                    "apiVersion": text("The version of the path.", most=63, absent="v1"),
                    "fieldPath": text("Its path, such as status.podIP.", least=1, most=1024),
                },
                required=("fieldPath",),
                absent="another source",
            ),
            "resourceFieldRef": group(
                "A request or limit of a container.",
                {
                    "containerName": text("The container.", most=63, absent="the workers'"),
                    "resource": text("The resource, such as limits.memory.", least=1, most=317),
                    "divisor": quantity("The unit that it is told in.", "env.divisor", "1Mi", absent="1"),
                },
                required=("resource",),
                absent="another source",
            ),
        },
        rules=(
            Rule(
                check=f"{one} == 1",
                message=f"env.valueFrom must have exactly one of {', '.join(SOURCES)}",
            ),
        ),
        absent="`value` holds it",
    )


def _key(about: str) -> Field:
    return group(
        about,
        {
            "name": words.object_name("Name of the object.", "env.valueFrom.name"),
            "key": text("The key.", least=1, most=253),
            "optional": yes_or_no("Whether the job starts without it, too.", absent="false"),
        },
        required=("name", "key"),
        absent="another source",
    )
