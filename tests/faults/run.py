"""One run on a live stack: its Job, its launchers, what it makes, and what is wrong with that at its end."""

from __future__ import annotations

import copy
import threading
import time
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from launcher.backends import BACKENDS
from tests.faults.launched import Launched
from tests.faults.place import SPACE, Place, until
from tests.faults.proxy import Call, Proxy
from tests.faults.verdict import Leavings, Trained
from trainyard.k8s.client import ApiError, ApiUnavailable, JsonObject

PODS = f"/api/v1/namespaces/{SPACE}/pods"
JOBS = f"/apis/batch/v1/namespaces/{SPACE}/jobs"
LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases"
LOOK_SECONDS = 0.3
# Its first process gets no signal that it does not ask for.
PROGRAM = "trap 'exit 1' TERM; sleep {seconds:g} & wait"
# Machines of the stack's pool, whatever the stack file says by now.
CEILING = 4


class Run:
    """A run of `least` to `most` machines whose workers only sleep; used as a context manager, it leaves nothing.

    `changes` are of the request's top level. `backend` is the one of the request, and `jobs` the path of its training
    jobs. The launcher's Job is suspended, so that no pod of it runs beside the processes that are launched here. While
    it is used, `placeholders_at_once` is the most that were seen, and `bought` are the NodeClaims of the pool that were
    not there at its begin.
    """

    def __init__(
        self,
        place: Place,
        proxy: Proxy,
        directory: Path,
        *,
        least: int,
        most: int,
        trains: float = 2.0,
        **changes: Any,
    ) -> None:
        self.place, self.proxy = place, proxy
        self.id = f"f{uuid.uuid4().hex[:7]}"
        self.most = most
        self.placeholders_at_once = 0
        self.bought: set[str] = set()
        self._directory = directory
        self._launched: list[Launched] = []
        self._before = len(proxy.writes)
        self._stop = threading.Event()
        document = place.request()
        document["worker"] |= {"command": ["sh", "-c", PROGRAM.format(seconds=trains)], "args": []}
        document["pool"]["maxNodes"] = CEILING
        asked = {"runId": self.id, "minNodes": least, "maxNodes": most, "maxRestarts": 0, "fallbacks": []}
        quick = {"capacityDeadlineSeconds": 120, "holdSeconds": 3}
        self.document: JsonObject = {**document, **asked, **quick, **changes}
        self.backend = BACKENDS[self.document["backend"]]
        self.jobs = self.backend.path(SPACE)

    def __enter__(self) -> Run:
        self._known = {claim["metadata"]["uid"] for claim in self.place.claims()}
        job = copy.deepcopy(self.place.manifest)
        job["metadata"] = {"name": f"launch-{self.id}", "namespace": SPACE}
        job["spec"]["suspend"] = True
        self.place.api.request("POST", JOBS, body=job)
        self._looker = threading.Thread(target=self._sample, daemon=True)
        self._looker.start()
        return self

    def __exit__(self, *_: object) -> None:
        for launcher in self._launched:
            launcher.kill()
        self.proxy.plan()
        # First, so that no pod is recreated.
        self.place.delete(f"{self.jobs}/train-{self.id}")
        self.place.delete(f"{JOBS}/launch-{self.id}")
        until(lambda: not self.pods(), f"the pods of run {self.id} are gone")
        self._stop.set()
        self._looker.join()

    def launch(self, unreconciled_seconds: float | None = None) -> Launched:
        """The first launcher, or the Job's next pod."""
        log = self._directory / f"{self.id}-{len(self._launched)}.log"
        launched = Launched(self.proxy.url, self.place.token(), self.document, log, unreconciled_seconds)
        self._launched.append(launched)
        return launched

    def _sample(self) -> None:
        while not self._stop.wait(LOOK_SECONDS):
            with suppress(ApiError, ApiUnavailable):
                held = [pod for pod in self.placeholders() if "deletionTimestamp" not in pod["metadata"]]
                self.placeholders_at_once = max(self.placeholders_at_once, len(held))
                claims = {claim["metadata"]["uid"] for claim in self.place.claims()}
                self.bought |= claims - self._known

    # -- objects of the run

    def pods(self, role: str = "") -> list[JsonObject]:
        """Its pods, of one role where that is given."""
        wanted = f",trainyard.dev/role={role}" if role else ""
        return self.place.items(PODS, f"trainyard.dev/run={self.id}{wanted}")

    def placeholders(self) -> list[JsonObject]:
        """Those that there are, on their way out or not."""
        return self.pods("placeholder")

    def training(self) -> JsonObject | None:
        """Its training job."""
        return self.place.get(f"{self.jobs}/train-{self.id}")

    def holder(self) -> str:
        """Which launcher holds its Lease; empty where none does."""
        lease = self.place.get(f"{LEASES}/launch-{self.id}") or {"spec": {}}
        return lease["spec"].get("holderIdentity") or ""

    @property
    def writes(self) -> list[Call]:
        """What its launchers wrote."""
        return self.proxy.writes[self._before :]

    def submits(self) -> list[Call]:
        """The requests to create its training job, those that failed among them."""
        return [call for call in self.writes if call.method == "POST" and call.path == self.jobs]

    def made(self, path: str) -> int:
        """How many objects the launchers made there."""
        return sum(call.method == "POST" and call.path == path and call.status == 201 for call in self.writes)

    @staticmethod
    def is_waiting(launcher: Launched, *fragments: str) -> bool:
        """Whether the launcher waits and its last line contains all fragments."""
        return all(each in launcher.last for each in ("state=waiting", *fragments))

    def stays_unsubmitted(self, seconds: float) -> None:
        """Look for this long that there is no training job."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            assert self.submits() == [], "it was submitted"
            time.sleep(0.2)

    # -- its end

    def wrongs(self, code: int) -> list[str]:
        """What is wrong at the end of a run that trains: empty where exactly its machines trained, once."""
        training = self.training()
        workers = self.pods("worker")
        submits = [number for launcher in self._launched for number in launcher.submitted]
        trained = Trained(
            code=code,
            made=self.made(self.jobs),
            nodes=int(training["metadata"]["annotations"]["trainyard.dev/nodes"]) if training else None,
            counted=submits[-1] if submits else None,
            replicas=self.backend.parse(training, self.id).nodes if training else 0,
            places=tuple(str(pod["spec"].get("nodeName")) for pod in workers),
            worlds=tuple(self._environment(pod).get("PET_NNODES", "") for pod in workers),
        )
        return [*trained.wrongs, *self.leftovers()]

    def leftovers(self) -> list[str]:
        """What there was too much of, or is left, at the end of a run, however it ended."""
        with suppress(AssertionError):  # the last of them has a second to end
            until(lambda: not self.placeholders(), "no placeholder is left", seconds=15)
        return Leavings(
            most=self.most,
            at_once=self.placeholders_at_once,
            bought=len(self.bought),
            placeholders=tuple(pod["metadata"]["name"] for pod in self.placeholders()),
            holder=self.holder(),
        ).wrongs

    def _environment(self, pod: JsonObject) -> dict[str, str]:
        """Return the variables of a worker's program."""
        containers = pod["spec"]["containers"]
        (container,) = [each for each in containers if each["name"] == self.backend.container]
        return {entry["name"]: entry.get("value", "") for entry in container["env"]}
