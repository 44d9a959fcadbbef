"""Rules that neither a preview nor the state after its update decided, and rules that the state violates."""

from __future__ import annotations

from trainyard.policies import waivers
from trainyard.policies.evaluate import evaluate
from trainyard.policies.model import Stack


def unsettled(previewed: Stack, made: Stack) -> list[str]:
    """Return a line for each violation of the state, and for each rule that neither preview nor state decided.

    `previewed` is the same stack file's first preview (`tests.integration.policy.previews`), `made` its state after
    `up` (`tests.integration.policy.previews.resources`).
    """
    accepted = waivers.load()
    before, after = evaluate(previewed, accepted), evaluate(made, accepted)
    undecided = [each for each in before.undecided if each.key not in after.decided]
    return [
        *(f"violated: {each}" for each in after.violations),
        *(f"never decided: {each}" for each in {each.key: each for each in undecided}.values()),
        *(f"undecided after the update: {each}" for each in after.undecided),
    ]
