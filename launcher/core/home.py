"""HOME and a name for a worker's user, whose number no image needs to know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# A container runtime takes HOME from the image's /etc/passwd, and `/` for a user that this file does not list (runc,
# libcontainer/init_linux.go); it never sets USER. `~/.cache` is then no directory that the user may make, and
# `getpass.getuser()`, which torch.compile's cache calls, raises an error.
ENVIRONMENT: Final = {"HOME": "/tmp", "USER": "trainer", "LOGNAME": "trainer"}  # noqa: S108 the container's own


def environment(pod: Mapping[str, Any], container: Mapping[str, Any]) -> dict[str, str]:
    """HOME, USER and LOGNAME for a container whose user is set by number; root and an image's own user have theirs.

    Args:
        pod: The pod's `spec`.
        container: The container's entry in it.
    """
    security = {**(pod.get("securityContext") or {}), **(container.get("securityContext") or {})}
    return dict(ENVIRONMENT) if security.get("runAsUser") else {}
