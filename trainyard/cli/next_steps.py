"""Messages at the end of a command: where everything is, and which command continues."""

from __future__ import annotations

from pathlib import Path

from local.cluster.kubeconfig import current_context, read
from local.home import CHECKOUT, Home
from trainyard.cli.follow import Result
from trainyard.cli.make_variables import user_command


def shown(path: Path) -> str:
    """Return a path as the user types it: in the checkout, below the checkout; elsewhere, from the root."""
    is_relative = Path.cwd() == CHECKOUT and path.is_relative_to(CHECKOUT)
    return str(path.relative_to(CHECKOUT)) if is_relative else str(path)


def kubectl(home: Home, context: str) -> str:
    """Return the command of the local cloud's kubectl for one of its clusters."""
    return f"KUBECONFIG={shown(home.kubeconfig)} {shown(home.bin / 'kubectl')} --context {context}"


def places(home: Home, context: str, namespace: str) -> list[str]:
    """Return the lines about a run's logs and its cluster."""
    current = current_context(home.kubeconfig)
    note = "" if current == context else f" (the current context is {current or 'not set'}: give --context)"
    return [
        f"logs:       {shown(home.logs)}/, or {kubectl(home, context)} logs -n {namespace} <pod>",
        f"kubeconfig: {shown(home.kubeconfig)}, context {context}{note}",
    ]


def removed_context(home: Home, before: str) -> str | None:
    """Return the message that the kubeconfig's current context `before` is gone, None if one is set.

    Without a current context, kubectl asks localhost:8080. kind and minikube unset it in the same way
    (kubernetes-sigs/kind pkg/cluster/internal/kubeconfig/internal/kubeconfig/remove.go).
    """
    if current_context(home.kubeconfig):
        return None
    names = [str(each["name"]) for each in read(home.kubeconfig).get("contexts") or []]
    gone = f"context {before} is gone, so " if before else ""
    way = (
        f". Set one: KUBECONFIG={shown(home.kubeconfig)} {shown(home.bin / 'kubectl')} config use-context "
        f"{names[0] if len(names) == 1 else 'NAME (one of ' + ', '.join(names) + ')'}"
    )
    return f"kubeconfig {shown(home.kubeconfig)}: {gone}no current context is set{way if names else ''}"


def made_here(what: str, identity: str = "") -> str:
    """Return the message about a resource that the stack file names as existing. `identity` is its new id."""
    return f"created in the emulated account, because the stack file names it as existing: {what}" + (
        f", as {identity}" if identity else ""
    )


def run_end(stack: str, cloud: str, run_id: str, result: Result) -> str:
    """Return the message about the end of a run."""
    if not result.succeeded:
        return f"run {run_id} failed: {result.message}"
    if not result.is_earlier:
        return f"run {run_id} succeeded in {result.seconds:.0f} s"
    submit = user_command("submit", stack, cloud, MIN="<nodes>", MAX="<nodes>")
    return (
        f"run {run_id} has already succeeded, in {result.seconds:.0f} s. `{submit}` starts "
        "another run, and so does another trainyard:training.runId"
    )


def unwatched(stack: str, cloud: str, run_id: str, again: str) -> str:
    """Return the message for a run that is no longer followed. `again` is the command that shows it."""
    return f"stopped watching; run {run_id} goes on: `{again}` shows it, `{user_command('down', stack, cloud)}` ends it"


def stopped(stack: str, action: str, cloud: str = "local") -> str:
    """Return the message for a command of the engine that was stopped in order."""
    if action == "preview":
        return "pulumi preview was stopped; nothing was changed"
    up, down = user_command("up", stack, cloud), user_command("down", stack, cloud)
    return f"pulumi {action} was stopped; `{up}` goes on from here, `{down}` removes all"
