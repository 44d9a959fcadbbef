"""What a program deploys, written down so that later programs are judged by it (`tests.integration.graph.upgrades`).

A recording has a line per resource: URN, type, the inputs that can force a replacement, and the options that decide
over one (`ignoreChanges`, `retainOnDelete`, aliases). What `ignoreChanges` covers is left out, as nobody knows what a
stack has there by now. A name that the provider makes up at random loses its end; of a Secret's values a digest stays.

**Previews are the source**, not the states of stacks that are up. Such a state has values where a preview has marks:
ids, addresses and ARNs, other ones in each account and each life. Without them it says what the preview says, which
each life asserts (`tests.integration.graph.agreement`) of states in this same form. So a recording is the same on
every machine and
is written within a minute, where a life takes ten. What is lost is what the program computes from such values:
`upgrades.unseen` names each object of Kubernetes of which a preview does not know a whole part for that reason, so that
nothing of the kind goes unnoticed.

**One folder per version**: `states/unreleased` has what `make record-states` wrote last. A release keeps it under its
own name (`cp -r tests/integration/graph/states/unreleased tests/integration/graph/states/0.1.0`), and no one writes
there again; today's program is judged by every folder, so that an upgrade may leave versions out.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from infra.changes import FIXED_SETTINGS_TYPE
from local.plugins.aws.handlers import HANDLERS
from local.plugins.kubernetes import replacement
from local.plugins.kubernetes.objects import api_version_and_kind
from tests.integration.graph import api_server
from tests.integration.graph.model import UNKNOWN
from tests.integration.graph.paths import without
from trainyard.policies.model import UNKNOWN as NOT_KNOWN
from trainyard.policies.snapshot import plain

STATES: Final = Path(__file__).parent / "states"
UNRELEASED: Final = "unreleased"
# Names that the provider chose itself stand in this input.
CHOSEN: Final = "__defaults"
RANDOM_END: Final = re.compile(r"-[0-9a-f]{7}$")
RELEASE: Final = "kubernetes:helm.sh/v3:Release"
# What the deletions' own provider replaces for (components/drain.py).
OF_DELETIONS: Final = ("cluster", "region", "vpc")
OF_SECRETS: Final = ("data", "stringData")

Recording = dict[str, dict[str, Any]]


def recorded(document: Mapping[str, Any]) -> Recording:
    """The resources of a preview (`pulumi preview --json`) or of an exported state, in the form of a recording."""
    states = list(_states(document))
    chosen = {name: RANDOM_END.sub("-*", name) for state in states for name in _chosen(state)}
    return {
        state["urn"]: _renamed({"type": state["type"], "inputs": _inputs(state), **_options(state)}, chosen)
        for state in states
        if state.get("custom")
    }


def _states(document: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "steps" in document:
        return (step["newState"] for step in document["steps"] if step.get("newState"))
    deployment = document.get("deployment", document)
    return (state for state in deployment.get("resources") or [] if not state.get("delete"))


def _options(state: Mapping[str, Any]) -> dict[str, Any]:
    wanted = ("aliases", "ignoreChanges", "retainOnDelete")
    return {key: state[key] for key in wanted if state.get(key)}


def _chosen(state: Mapping[str, Any]) -> list[str]:
    """Return the provider-generated names of a resource. Other resources use them, too: an attachment its role's."""
    inputs = state.get("inputs") or {}
    return [
        str(inputs[key]) for key in inputs.get(CHOSEN) or [] if RANDOM_END.search(str(inputs.get(key, "")))
    ]


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """The value with each of the names as its counterpart."""
    if isinstance(value, Mapping):
        return {key: _renamed(entry, names) for key, entry in value.items()}
    if isinstance(value, list):
        return [_renamed(entry, names) for entry in value]
    return names.get(value, value) if isinstance(value, str) else value


def _inputs(state: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs that count, plain, with the engine's mark for whatever is secret or not known."""
    known = _marked(plain(state.get("inputs") or {}))
    return without(_replacement_inputs(str(state["type"]), known), state.get("ignoreChanges") or [])


def _marked(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _marked(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_marked(entry) for entry in value]
    return UNKNOWN if value is NOT_KNOWN else value


def _replacement_inputs(kind: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Inputs that can force a replacement. What is nobody's to compare (documents, tags, code) is left out."""
    if kind in HANDLERS:
        left_out = {"tags", "tagsAll", *HANDLERS[kind].documents}
        return {key: value for key, value in inputs.items() if key not in left_out}
    if kind == RELEASE:
        return _only(inputs, ("name", "namespace"))
    if kind.startswith("kubernetes:"):
        return _of_object(kind, inputs)
    if kind == FIXED_SETTINGS_TYPE:
        return _only(inputs, ("values",))
    return _only(inputs, OF_DELETIONS) if kind.startswith("pulumi-python:") else {}


def _of_object(kind: str, inputs: Mapping[str, Any]) -> dict[str, Any]:
    named = api_version_and_kind(kind)
    paths = (*replacement.patterns(*named), *api_server.fixed(*named))
    kept = _only(inputs, sorted({path.split(".")[0] for path in paths}))
    if isinstance(kept.get("metadata"), Mapping):
        kept["metadata"] = _only(kept["metadata"], ("name", "namespace"))
    if named == ("v1", "Secret"):
        kept |= {key: _digests(kept[key]) for key in OF_SECRETS if key in kept}
    return kept


def _only(inputs: Mapping[str, Any], keys: tuple[str, ...] | list[str]) -> dict[str, Any]:
    return {key: inputs[key] for key in keys if key in inputs}


def _digests(values: Any) -> Any:
    """Of each value what tells that it changed, and not what it is. Values that the program calls secret are marks."""
    if not isinstance(values, Mapping):
        return UNKNOWN
    return {
        key: value if value == UNKNOWN else f"sha256:{hashlib.sha256(str(value).encode()).hexdigest()[:16]}"
        for key, value in values.items()
    }


def versions() -> list[str]:
    """Versions with recordings, `unreleased` among them."""
    return sorted(folder.name for folder in STATES.iterdir() if folder.is_dir())


def stacks(version: str) -> list[str]:
    """The stack files that a version has recordings of."""
    return sorted(path.stem for path in (STATES / version).glob("*.json"))


def load(version: str, stack: str) -> Recording:
    """A version's recording of a stack file."""
    found: Recording = json.loads((STATES / version / f"{stack}.json").read_text())
    return found


def save(stack: str, recording: Recording, states: Path = STATES) -> Path:
    """Write what is not released yet of a stack file, a line per resource; returns where."""
    path = states / UNRELEASED / f"{stack}.json"
    lines = [
        f"{json.dumps(urn)}: {json.dumps(each, sort_keys=True)}" for urn, each in sorted(recording.items())
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    return path
