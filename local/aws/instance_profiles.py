"""ListInstanceProfiles by path: moto returns all of them.

Karpenter finds the instance profiles of a node class by their path. With all profiles of the account, one cluster's
Karpenter tries to delete those of another, and never finishes with its own.
"""

from __future__ import annotations

from typing import Any

from moto.core.responses import ActionResult
from moto.iam.responses import IamResponse


def install() -> None:
    """Return only the profiles under `PathPrefix`.

    https://docs.aws.amazon.com/IAM/latest/APIReference/API_ListInstanceProfiles.html
    """

    def list_instance_profiles(self: Any) -> ActionResult:
        prefix = self._get_param("PathPrefix") or "/"
        profiles = [each for each in self.backend.get_instance_profiles() if each.path.startswith(prefix)]
        return ActionResult({"InstanceProfiles": profiles})

    IamResponse.list_instance_profiles = list_instance_profiles
