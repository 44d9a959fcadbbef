"""What is wrong with how a run ended. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Leavings:
    """What there was of a run of up to `most` machines, and what is left when it is over.

    `at_once` is the most placeholders that were seen together, `bought` how many machines there came, `placeholders`
    those that are left, and `holder` who still holds the Lease.
    """

    most: int
    at_once: int
    bought: int
    placeholders: tuple[str, ...] = ()
    holder: str = ""

    @property
    def wrongs(self) -> list[str]:
        """Empty where there was never too much, and nothing is left."""
        found = []
        if self.at_once > self.most:
            found.append(f"{self.at_once} placeholders for {self.most} machines")
        if self.bought > self.most:
            found.append(f"{self.bought} machines were bought for {self.most}")
        found += [f"placeholder {name} is left" for name in self.placeholders]
        if self.holder:
            found.append(f"the Lease is still held by {self.holder}")
        return found


@dataclass(frozen=True, kw_only=True)
class Trained:
    """A finished run. `nodes` is the size in its training job, None without one.

    `made` is how many training jobs the API created for the run, `counted` what the launcher that submitted said, None
    where it was killed before it could. `places` are the workers' nodes, and `worlds` the world sizes that they
    received.
    """

    code: int
    made: int
    nodes: int | None
    counted: int | None = None
    replicas: int = 0
    places: tuple[str, ...] = ()
    worlds: tuple[str, ...] = ()

    @property
    def wrongs(self) -> list[str]:
        """Empty if exactly the counted nodes ran one worker each, once."""
        found = [] if self.code == 0 else [f"exit code {self.code}"]
        if self.made != 1:
            found.append(f"{self.made} training jobs were created")
        if self.nodes is None:
            return [*found, "there is no training job"]
        if self.counted not in (None, self.nodes):
            found.append(f"{self.counted} nodes were counted for a job of {self.nodes}")
        if not self.nodes == self.replicas == len(self.places) == len(set(self.places)):
            found.append(
                f"a job of {self.nodes} nodes has {self.replicas} replicas and {len(self.places)} workers on"
                f" {len(set(self.places))} nodes"
            )
        if any(world != str(self.nodes) for world in self.worlds) or len(self.worlds) != len(self.places):
            found.append(f"a job of {self.nodes} nodes has workers in worlds of {', '.join(self.worlds)}")
        return found
