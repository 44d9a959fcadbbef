"""What a preview and the state after its update say together: every rule decided, none violated."""

from __future__ import annotations

from trainyard.policies import waivers
from trainyard.policies.judge import judge
from trainyard.policies.model import Stack


def unsettled(previewed: Stack, made: Stack) -> list[str]:
    """A line per violation in what was made, and per rule that neither the preview nor the state decided.

    `previewed` is the same stack file's first preview (`tests.integration.policy.previews`), `made` its state after
    `up` (`tests.integration.policy.previews.made`).
    """
    given = waivers.load()
    before, after = judge(previewed, given), judge(made, given)
    undecided = [each for each in before.undecided if each.key not in after.ran]
    return [
        *(f"violated: {each}" for each in after.violations),
        *(f"never decided: {each}" for each in {each.key: each for each in undecided}.values()),
        *(f"undecided after the update: {each}" for each in after.undecided),
    ]
