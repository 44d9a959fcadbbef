"""Start, probe, restart and stop one container of a pod. `Container.run` is the entry point."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp

from local.nodes import environment, images, logs, status
from local.nodes.api import Object
from local.nodes.context import PodSite
from local.nodes.environment import MissingReference
from local.nodes.images import PullError
from local.nodes.process import Ended, Entry, NotRunningError, Process, Stdin
from local.nodes.status import ContainerState
from local.nodes.volumes import PodVolumes

CONFIG_RETRY_SECONDS = 2.0
STOP_POLL_SECONDS = 0.1
STEADY_SECONDS = 600.0  # a run of this length resets the back-off, as in the kubelet
# https://kubernetes.io/docs/tasks/debug/debug-application/determine-reason-pod-failure/
MESSAGE_PATH = "/dev/termination-log"
MESSAGE_BYTES = 4096
LOGGED_MESSAGE_BYTES = 2048
Port = Callable[[int | str], int | None]
Run = Callable[[list[str], float], Awaitable[int]]


async def probe_http(probe: Object, ip: str, port: int) -> str:
    """Send a GET request, without verification of a certificate. Return "" for 200 to 399, otherwise the error."""
    # A path without the first slash is allowed (k8s.io/kubernetes, pkg/probe/http/request.go, formatURL).
    path = "/" + probe.get("path", "/").removeprefix("/")
    url = f"{probe.get('scheme', 'HTTP').lower()}://{probe.get('host') or ip}:{port}{path}"
    headers = {"User-Agent": "kube-probe"} | {h["name"]: h["value"] for h in probe.get("httpHeaders") or []}
    async with (
        aiohttp.ClientSession() as session,
        session.get(url, headers=headers, ssl=False, allow_redirects=False) as response,
    ):
        good = 200 <= response.status < 400
        return "" if good else f"HTTP probe failed with statuscode: {response.status}"


async def probe_tcp(host: str, port: int) -> str:
    """Connect, and return "" on success."""
    _, writer = await asyncio.open_connection(host, port)
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ""


async def probe_once(probe: Object, ip: str, port: Port, run: Run) -> str:
    """Make one attempt. Return "" on success, otherwise the event's message. A gRPC probe only connects."""
    timeout = float(probe.get("timeoutSeconds", 1))
    if "exec" in probe:
        code = await run(probe["exec"]["command"], timeout)
        return "" if code == 0 else f"command ended with exit code {code}"
    kind = next((kind for kind in ("httpGet", "tcpSocket", "grpc") if kind in probe), None)
    if kind is None:
        return ""
    target = probe[kind]
    number = port(target["port"])
    if number is None:
        return f"no container port is called {target['port']!r}"
    work = (
        probe_http(target, ip, number) if kind == "httpGet" else probe_tcp(target.get("host") or ip, number)
    )
    try:
        async with asyncio.timeout(timeout):
            return await work
    except TimeoutError:
        return f"no answer from {ip}:{number} within {timeout:g} s"
    except (OSError, aiohttp.ClientError, ValueError) as error:
        return f"{ip}:{number}: {error}"


async def probe_results(
    probe: Object, attempt: Callable[[], Awaitable[str]], *, is_readiness: bool
) -> AsyncIterator[tuple[bool, str]]:
    """Probe with the probe's delays and thresholds. Yield whether it succeeds, and the message of the last attempt.

    A result follows when enough consecutive attempts give another one, and again after each further failure. The first
    success ends the initial delay of a readiness probe, so that a rollout is not slower than its program.
    """
    delay = float(probe.get("initialDelaySeconds", 0))
    if is_readiness and delay:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay):
                while await attempt():
                    await asyncio.sleep(1.0)
    else:
        await asyncio.sleep(delay)
    good, row, verdict = False, 0, False
    while True:
        message = await attempt()
        success = not message
        row = row + 1 if success == good else 1
        good = success
        threshold = int(probe.get("successThreshold", 1) if success else probe.get("failureThreshold", 3))
        if row >= threshold and (success != verdict or not success):
            verdict = success
            yield verdict, message
        # At first the interval is short, because it determines how long a rollout takes.
        await asyncio.sleep(float(probe.get("periodSeconds", 10)) if verdict or row > 5 else 1.0)


def read_end(file: Path, size: int) -> str:
    """Return the last bytes of a file, of any length, as text: "" if the file does not exist."""
    try:
        with file.open("rb") as opened:
            opened.seek(max(0, opened.seek(0, os.SEEK_END) - size))
            return opened.read(size).decode(errors="replace")
    except FileNotFoundError:
        return ""


class Container:
    """Runs one container of a pod to its end. `once` is true for an init container that must succeed."""

    def __init__(
        self, pod: PodSite, volumes: PodVolumes, spec: Object, state: ContainerState, *, once: bool
    ) -> None:
        self.pod = pod
        self._volumes = volumes
        self.spec = spec
        self.state = state
        self.once = once
        self.name: str = spec["name"]
        self.simulated = images.simulated(spec, pod.context.images)
        # Set while the current run has a process. Each run has its own, so that `kubectl logs -f` ends with its run.
        self.running = asyncio.Event()
        self.started_once = asyncio.Event()  # set after its first start, or if it never starts
        self.clock = logs.Clock(self.log_path(state.restarts))
        self.process: Process | None = None
        self._failures = 0

    @property
    def directory(self) -> Path:
        """The directory of its plan and its process record."""
        return self.pod.directory / "containers" / self.name

    def log_path(self, run: int) -> Path:
        """Return the log file of its n-th run."""
        return self.pod.log_directory / self.name / f"{run}.log"

    @property
    def policy(self) -> str:
        """The restart policy: the container's own (sidecars), otherwise the pod's.

        An init container does not restart after success.
        """
        policy = self.spec.get("restartPolicy") or self.pod.item["spec"].get("restartPolicy", "Always")
        return "OnFailure" if self.once and policy == "Always" else str(policy)

    async def run(self) -> None:
        """Run until the container has ended and will not restart, or until the pod and its process stop."""
        try:
            await self.pod.persist(self._live, f"container {self.name}")
        finally:
            self.started_once.set()

    async def _live(self) -> None:
        await self._take_over()
        while not self.pod.stopping.is_set():
            if self.state.stage == "terminated":
                if not status.restarts_after(self.policy, self.state.exit_code):
                    return
                if not await self._back_off():
                    return
            if await self._start():
                await self._follow()

    async def _take_over(self) -> None:
        """Continue with a process that an earlier local/nodes process started."""
        found = None if self.simulated else self.process or Process.found(self.directory)
        if self.state.stage != "running" and found is not None and found.alive:
            # It was started, but its status did not reach the API server.
            self.state.restarts += self.state.stage == "terminated"
            self.state.run(time.time())
        if self.state.stage != "running":
            return
        if found is None and not self.simulated:
            killed = Ended(status.KILLED, time.time(), "no record of the process")
            self._ended(killed, "ContainerStatusUnknown")
            return
        self.process = found
        self.clock = logs.Clock(self.log_path(self.state.restarts))
        self.clock.record(self.state.started_at)
        await self._follow()

    async def _back_off(self) -> bool:
        """Wait before a restart. Return false if the pod stops meanwhile."""
        if self.state.finished_at - self.state.started_at >= STEADY_SECONDS:
            self._failures = 0
        delay = status.back_off(self._failures)
        self._failures += 1
        if delay:
            message = f"back-off {delay:g}s restarting failed container={self.name} pod={self.pod.label}"
            self.state.wait("CrashLoopBackOff", message)
            self.pod.event("Warning", "BackOff", message)
            self.pod.publish()
        stopped = await self.pod.sleep(delay)
        if not stopped:
            if self.state.stage == "terminated":
                self.state.last = self.state.terminated()
            self.state.restarts += 1
        return not stopped

    async def _start(self) -> bool:
        """Start the process. If something it needs is missing, return false after a delay."""
        try:
            if not self.simulated:
                self.process = await self._launch()
        except MissingReference as error:
            return await self._postpone("CreateContainerConfigError", str(error))
        except PullError as error:
            return await self._postpone("ErrImagePull", str(error))
        except (OSError, ValueError, RuntimeError) as error:
            return await self._postpone("CreateContainerError", f"container {self.name}: {error}")
        self.state.image, self.state.image_id = self.spec["image"], self.spec["image"]
        self.state.run(time.time())
        self.pod.event("Normal", "Started", f"Started container {self.name}")
        return True

    async def _postpone(self, reason: str, message: str) -> bool:
        if self.state.reason != reason:
            self.pod.event("Warning", "Failed", f"Error: {message}")
        self.state.wait(reason, message)
        self.pod.publish()
        await self.pod.sleep(CONFIG_RETRY_SECONDS)
        return False

    async def _launch(self) -> Process:
        """Determine the command, environment and mounts, and start the process."""
        facts, context = self.pod.facts(), self.pod.context
        declared = environment.declared(facts, self.spec)
        program = context.images.find(self.spec, self.pod.ip, declared, self.pod.port_for)
        self.pod.save_ports()
        user, group = environment.user_and_group(self.pod.item, self.spec, program.user, program.users)
        variables = environment.complete(
            declared | program.forced,
            program.environment,
            self.pod.injected(),
            self.pod.hostname,
            context.settings.service_ip,
            user,
            program.users,
        )
        variables.setdefault("PATH", images.SYSTEM_PATH)
        plan = self._volumes.plan(self.spec, program) | {
            "hostname": self.pod.hostname,
            "user": user,
            "group": group,
            "users": program.users,
            "argv": list(program.argv),
            "env": variables,
        }
        plan["mounts"].append(self._message_mount())
        self.clock = logs.Clock(self.log_path(self.state.restarts))
        pulled = f'Container image "{self.spec["image"]}" already present on machine'
        self.pod.event("Normal", "Pulled", pulled)
        stdin: Stdin = "none"
        if self.spec.get("stdin"):
            stdin = "once" if self.spec.get("stdinOnce") else "open"
        return Process.start(self.directory, plan, self.clock.path, stdin)

    async def _follow(self) -> None:
        """Wait for the end of the current run, and probe it meanwhile."""
        self.running = running = asyncio.Event()
        running.set()
        self.started_once.set()
        probing = asyncio.create_task(self._probe())
        self.pod.publish()
        try:
            if self.process is None:
                if not self.once:
                    await self.pod.stopping.wait()
                ended, reason = Ended(0, time.time()), ""
            else:
                ended = await self.process.wait()
                reason = "StartError" if ended.code == 128 and ended.message else ""
        finally:
            probing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await probing
            running.clear()
        self._ended(ended, reason)

    def _ended(self, ended: Ended, reason: str) -> None:
        message = ended.message or read_end(self.directory / "termination-log", MESSAGE_BYTES)
        may_be_logged = self.spec.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if may_be_logged and ended.code and not message:
            message = read_end(self.clock.path, LOGGED_MESSAGE_BYTES)
        self.clock.record(time.time())
        self.state.end(ended.code, ended.at, reason, message)
        self.process = None
        if ended.code and not self.pod.stopping.is_set():
            self.pod.event("Warning", "Failed", f"container {self.name} ended with exit code {ended.code}")
        self.pod.publish()

    def _message_mount(self) -> Object:
        """Create the file for the termination message, which all users in the container may write."""
        file = self.directory / "termination-log"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"")
        file.chmod(0o666)
        return {"source": str(file), "target": self.spec.get("terminationMessagePath") or MESSAGE_PATH}

    async def stop(self, grace: float) -> None:
        """Send SIGTERM, and SIGKILL after `grace` seconds. Return when the process is gone.

        This includes a process of an earlier local/nodes process that was not taken over yet.
        """
        process = self.process or (None if self.simulated else Process.found(self.directory))
        if process is None or not process.alive:
            return
        process.signal(signal.SIGTERM if grace > 0 else signal.SIGKILL)
        deadline = time.monotonic() + grace
        while process.alive:
            await asyncio.sleep(STOP_POLL_SECONDS)
            if time.monotonic() >= deadline:
                process.signal(signal.SIGKILL)

    async def finish(self, grace: float) -> None:
        """Stop a sidecar after the other containers have ended. Its task must not be running."""
        process = self.process
        await self.stop(grace)
        if self.state.stage == "running":
            self._ended(process.ended() if process else Ended(0, time.time()), "")

    async def entry(self) -> Entry:
        """Return how to run a command in the container.

        Raises:
            NotRunningError: No command can run; the message has the reason.
        """
        if self.simulated:
            raise NotRunningError("its image has no program on the local nodes")
        if self.process is None:
            raise NotRunningError("it does not run")
        return await self.process.entry()

    def open_stdin(self) -> int | None:
        """Return a descriptor for its standard input, or None if it has `stdin: false`.

        Raises:
            OSError: The container does not read its input any more.
        """
        return self.process.open_stdin() if self.process and self.spec.get("stdin") else None

    async def execute(self, argv: list[str], timeout: float) -> int:
        """Run a command in the container. Return its exit code, 124 if it takes longer than `timeout` seconds."""
        null = asyncio.subprocess.DEVNULL
        try:
            entry = await self.entry()
            child = await asyncio.create_subprocess_exec(
                *entry.command(argv), env=entry.variables, stdin=null, stdout=null, stderr=null
            )
        except (NotRunningError, OSError):  # not enough memory, for instance; the next probe may succeed
            return 1
        try:
            async with asyncio.timeout(timeout):
                return await child.wait()
        except TimeoutError:
            return 124
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()

    async def _probe(self) -> None:
        """Run the startup probe, then the readiness and liveness probes concurrently.

        Without a probe the container is ready at once.
        """
        probes = {} if self.simulated else self.spec
        if probes.get("startupProbe") and not self.state.started:
            await self._follow_probe("startup")
        self.state.started = True
        if not probes.get("readinessProbe") and not self.once:
            self.state.ready = True
        self.pod.publish()
        async with asyncio.TaskGroup() as group:
            for kind in ("readiness", "liveness"):
                if probes.get(f"{kind}Probe"):
                    group.create_task(self._follow_probe(kind))

    async def _follow_probe(self, kind: str) -> None:
        """Run a probe: a startup probe until its first result, a liveness probe until its first failure."""
        probe = self.spec[f"{kind}Probe"]

        async def attempt() -> str:
            return await probe_once(probe, self.pod.ip, self.pod.port, self.execute)

        async for good, message in probe_results(probe, attempt, is_readiness=kind == "readiness"):
            failure = f"{kind.capitalize()} probe failed: {message}"
            if kind != "readiness":
                if not good:
                    self._kill_unhealthy(kind, failure)
                if not good or kind == "startup":
                    return
            elif self.state.ready != good:
                self.state.ready = good
                if not good:
                    self.pod.event("Warning", "Unhealthy", failure)
                self.pod.publish()

    def _kill_unhealthy(self, kind: str, failure: str) -> None:
        self.pod.event("Warning", "Unhealthy", failure)
        self.pod.event("Normal", "Killing", f"Container {self.name} failed {kind} probe, will be restarted")
        grace = float(self.pod.item["spec"].get("terminationGracePeriodSeconds", 30))
        # In its own task, because the end of the process cancels all probes, including this one.
        self.pod.context.tasks.start(self.stop(grace), f"stop {self.name}")
