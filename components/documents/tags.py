"""Tags of everything that a stack makes."""

from __future__ import annotations


def stack_tags(project: str, stack: str) -> dict[str, str]:
    """The tags that mark a resource as this stack's; a sweep after `destroy` matches exactly these."""
    return {"trainyard:project": project, "trainyard:stack": stack}


def named(tags: dict[str, str], name: str, **more: str) -> dict[str, str]:
    """`tags` with the name that AWS consoles show."""
    return {**tags, "Name": name, **more}
