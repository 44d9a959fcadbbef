"""Where a queue's pods may run, in Kubernetes' own terms."""

from __future__ import annotations

from typing import Final

from trainyard.operator import names as n
from trainyard.operator.api import words
from trainyard.operator.api.fields import Field, Rule, choice, foreign, group, listing, text, whole_number

# k8s.io/api v0.35.4, core/v1/types.go: TolerationOperator and TaintEffect.
OPERATORS: Final = ("Exists", "Equal")
EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")


def scheduling() -> Field:
    """`scheduling` of a queue."""
    return group(
        "Where and in which order the workers' pods are placed.",
        {
            "scheduler": words.object_name(
                f"The scheduler of the pods; with {n.KAI_SCHEDULER} all workers of a job start together or none.",
                "scheduling.scheduler",
                absent="the cluster's default scheduler",
            ),
            "priorityClassName": words.object_name(
                "PriorityClass of the pods.", "scheduling.priorityClassName", absent="the cluster's default"
            ),
            "nodeSelector": words.labels("Labels that a node must have.", absent="none"),
            "affinity": _affinity(),
            "tolerations": listing(
                "Taints that the pods bear.",
                _toleration(),
                most=32,
                absent="none",
            ),
            "pool": words.object_name(
                "A NodePool of Karpenter: its machines are asked for and counted before the workers start.",
                "scheduling.pool",
                most=63,
                absent="the pods wait for whatever nodes there are",
            ),
        },
        absent="none of it",
    )


def _affinity() -> Field:
    return group(
        "Affinity of the pods (https://kubernetes.io/docs/concepts/scheduling-eviction/assign-pod-node/).",
        {
            "nodeAffinity": foreign("Nodes that the pods are drawn to.", absent="none"),
            "podAffinity": foreign("Pods that the pods are drawn to.", absent="none"),
            "podAntiAffinity": foreign("Pods that the pods keep away from.", absent="none"),
        },
        absent="none",
    )


def _toleration() -> Field:
    """The rules are those of ValidateTolerations in kubernetes 1.35.4, pkg/apis/core/validation/validation.go: of a pod
    they would be told only when a job starts."""
    return group(
        "A taint that the pods bear (https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/).",
        {
            "key": text("Key of the taint.", most=317, absent="every key"),
            "operator": choice("Whether the taint's value counts.", OPERATORS, absent="Equal"),
            "value": text("Value of the taint, with operator Equal.", most=63, absent="the empty one"),
            "effect": choice("Effect of the taint.", EFFECTS, absent="every effect"),
            "tolerationSeconds": whole_number(
                "How long a pod stays on a node with this taint of effect NoExecute; negative values count as 0.",
                least=-(2**31),
                unit="seconds",
                wide=True,
                absent="for ever",
            ),
        },
        rules=(
            Rule(
                check="has(self.key) && self.key != '' || has(self.operator) && self.operator == 'Exists'",
                message="scheduling.tolerations: operator must be Exists where no key is given",
                path=".operator",
            ),
            Rule(
                check="!(has(self.operator) && self.operator == 'Exists' && has(self.value) && self.value != '')",
                message="scheduling.tolerations: operator Exists takes no value",
                path=".value",
            ),
            Rule(
                check="!has(self.tolerationSeconds) || has(self.effect) && self.effect == 'NoExecute'",
                message="scheduling.tolerations: tolerationSeconds needs effect NoExecute",
                path=".tolerationSeconds",
            ),
        ),
    )
