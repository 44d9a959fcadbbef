"""What both kinds' statuses have: conditions, and the generation that they were seen of."""

from __future__ import annotations

from collections.abc import Sequence

from trainyard.operator.api.fields import Field, choice, group, listing, moment, text, whole_number


def observed_generation() -> Field:
    """The generation of the spec that a status or a condition is about."""
    return whole_number("The metadata.generation of the spec that this is about.", wide=True)


def conditions(types: Sequence[str]) -> Field:
    """Conditions as Kubernetes has them (k8s.io/apimachinery v0.35.4, meta/v1/types.go: Condition)."""
    entry = group(
        "One thing that is so, is not so, or is not known.",
        {
            "type": text("What it is about.", least=1, most=316),
            "status": choice("Whether it is so.", ("True", "False", "Unknown")),
            "observedGeneration": observed_generation(),
            "lastTransitionTime": moment("When `status` last changed."),
            "reason": text("Why, as one word for programs.", least=1, most=1024),
            "message": text("Why, for people.", most=32768),
        },
        required=("type", "status", "lastTransitionTime", "reason", "message"),
    )
    return listing(f"What is so: {', '.join(types)}.", entry, most=16, key=("type",))
