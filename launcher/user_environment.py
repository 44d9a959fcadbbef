"""Set HOME and a user name for containers whose numeric user has no entry in the image's /etc/passwd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# A container runtime reads HOME from the image's /etc/passwd, uses `/` for an unlisted user, and never sets USER (runc,
# libcontainer/init_linux.go). Then the user can't create `~/.cache`, and `getpass.getuser()` raises an error. The cache
# of torch.compile needs both.
VARIABLES: Final = {"HOME": "/tmp", "USER": "trainer", "LOGNAME": "trainer"}  # noqa: S108 the container's own


def defaults(pod: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, str]:
    """Return HOME, USER and LOGNAME for a container with a numeric user; {} for root and for the image's own user.

    Args:
        pod: The pod's `spec`.
        container: The container in this `spec`.
    """
    security = {**(pod.get("securityContext") or {}), **(container.get("securityContext") or {})}
    return dict(VARIABLES) if security.get("runAsUser") else {}
