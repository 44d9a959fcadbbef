"""One way to run Pulumi code under mocks: run it, wait for every registration, then look at what was registered."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest.mock import patch

import pulumi
from pulumi.runtime import mocks
from pulumi.runtime.proto.callback_pb2 import Callback
from pulumi.runtime.proto.source_pb2 import StackTrace
from pulumi.runtime.stack import wait_for_rpcs

from components.documents.account import Account
from tests.unit.pulumi_sdk import LOOP, isolated

ACCOUNT = "123456789012"
HERE = Account(id=ACCOUNT, region="us-west-2")
TIMEOUT_SECONDS = 120


@dataclass(frozen=True)
class Resource:
    """One registration: camelCase inputs as the engine sees them."""

    type: str
    name: str
    inputs: dict[str, Any]


@dataclass
class Recorded:
    """Everything that was registered, each resource after those it depends on."""

    resources: list[Resource] = field(default_factory=list)
    invokes: list[str] = field(default_factory=list)
    result: Any = None
    transforms: list[Callable[[Any], Any]] = field(default_factory=list)
    edges: dict[str, frozenset[str]] = field(default_factory=dict)
    """URN of each resource and those that it needs directly: dependencies, parent and provider."""

    protected: set[tuple[str, str]] = field(default_factory=set)
    """(type, name) of the resources that a deletion is refused for."""

    ignored_changes: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    timeouts: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict)
    """How long the engine waits for a resource, by (type, name): create, update and delete, as far as they are set."""

    def needs(self, type_: str, name: str) -> set[tuple[str, str]]:
        """(type, name) of everything that must outlive a resource, in any number of steps."""
        (start,) = [urn for urn in self.edges if _kind(urn) == (type_, name)]
        found: set[str] = set()
        ahead = [start]
        while ahead:
            for urn in self.edges.get(ahead.pop(), ()):
                if urn not in found:
                    found.add(urn)
                    ahead.append(urn)
        return {_kind(urn) for urn in found}

    def of(self, type_: str) -> list[Resource]:
        """Return the resources of a type, sorted by name: the SDK registers independent ones in parallel."""
        return sorted((r for r in self.resources if r.type == type_), key=lambda r: r.name)

    def one(self, type_: str, name: str | None = None) -> Resource:
        """The only resource of a type (and name)."""
        found = [r for r in self.of(type_) if name is None or r.name == name]
        assert len(found) == 1, f"{len(found)} resources of {type_} {name or ''}: {[r.name for r in found]}"
        return found[0]


@cache
def _kind(urn: str) -> tuple[str, str]:
    """A URN's type, without its parents' types, and name."""
    _, _, types, name = urn.split("::", 3)
    return types.split("$")[-1], name


def normal(value: Any) -> Any:
    """Whole numbers as int: the engine's wire format knows floats alone."""
    if isinstance(value, dict):
        return {key: normal(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [normal(entry) for entry in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


# What each type gives back beside its inputs. A type that is not here has no outputs that the program uses.
OUTPUTS: dict[str, Callable[[str, dict[str, Any]], dict[str, Any]]] = {
    "aws:iam/role:Role": lambda name, _: {
        "arn": f"arn:aws:iam::{ACCOUNT}:role/{name}",
        "name": f"{name}-1a2b3c4",
    },
    "aws:iam/policy:Policy": lambda name, _: {"arn": f"arn:aws:iam::{ACCOUNT}:policy/{name}"},
    "aws:kms/key:Key": lambda name, _: {
        "arn": f"arn:aws:kms:us-west-2:{ACCOUNT}:key/{name}",
        "keyId": f"{name}-id",
    },
    "aws:cloudwatch/logGroup:LogGroup": lambda name, given: {
        "arn": f"arn:aws:logs:us-west-2:{ACCOUNT}:log-group:{given.get('name', name)}"
    },
    "aws:iam/instanceProfile:InstanceProfile": lambda name, _: {"name": f"{name}-1a2b3c4"},
    "aws:sqs/queue:Queue": lambda name, given: {
        "arn": f"arn:aws:sqs:us-west-2:{ACCOUNT}:{given.get('name', name)}",
        "url": f"https://sqs.us-west-2.amazonaws.com/{ACCOUNT}/{given.get('name', name)}",
    },
    "aws:s3/bucket:Bucket": lambda name, _: {"arn": f"arn:aws:s3:::{name}-1a2b3c4"},
    "aws:cloudwatch/eventRule:EventRule": lambda name, _: {
        "name": f"{name}-1a2b3c4",
        "arn": f"arn:aws:events:us-west-2:{ACCOUNT}:rule/{name}-1a2b3c4",
    },
    "aws:ecr/repository:Repository": lambda name, given: {
        "repositoryUrl": f"{ACCOUNT}.dkr.ecr.us-west-2.amazonaws.com/{given['name']}"
    },
    "aws:fsx/lustreFileSystem:LustreFileSystem": lambda name, _: {
        "dnsName": f"{name}-id.fsx.us-west-2.amazonaws.com",
        "mountName": "abcdefgh",
    },
    "docker-build:index:Image": lambda name, given: {
        "ref": given["tags"][0].rsplit(":", 1)[0] + "@sha256:" + "ab" * 32
    },
    "eks:index:Cluster": lambda name, _: {
        "kubeconfigJson": "{}",
        "clusterSecurityGroupId": f"eks-cluster-sg-{name}",
        "oidcProviderArn": f"arn:aws:iam::{ACCOUNT}:oidc-provider/oidc.eks.us-west-2.amazonaws.com/id/AB",
        "oidcIssuer": "oidc.eks.us-west-2.amazonaws.com/id/AB",
    },
}


# The one thing that the program asks the account for.
ADDON_VERSION = "aws:eks/getAddonVersion:getAddonVersion"


def addon_default(addonName: str, kubernetesVersion: str) -> str:
    """The default version of an add-on in the account of the mocks."""
    return f"v{kubernetesVersion}.{len(addonName)}-eksbuild.1"


class _Recorder(pulumi.runtime.Mocks):
    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        inputs = normal(dict(args.inputs))
        self._recorded.resources.append(Resource(args.typ, args.name, inputs))
        extra = OUTPUTS.get(args.typ)
        # A resource among the outputs would be looked up again, in a thread that does not know these mocks.
        plain = {key: value for key, value in inputs.items() if not isinstance(value, pulumi.Resource)}
        outputs = {**plain, **(extra(args.name, inputs) if extra else {})}
        identity = f"{args.name}-1a2b3c4" if args.typ == "aws:s3/bucket:Bucket" else f"{args.name}-id"
        return identity, outputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        self._recorded.invokes.append(args.token)
        assert args.token == ADDON_VERSION, f"the program asks the account: {args.token}"
        asked = {key: args.args[key] for key in ("addonName", "kubernetesVersion")}
        return {**asked, "id": asked["addonName"], "version": addon_default(**asked)}


class _Monitor(mocks.MockMonitor):
    """Record the dependencies of each registration, which Pulumi mocks do not receive."""

    def __init__(self, recorded: Recorded) -> None:
        super().__init__(_Recorder(recorded))
        self._recorded = recorded

    def RegisterResource(self, request: Any) -> Any:
        answer = super().RegisterResource(request)
        needed = {*request.dependencies, request.parent, request.provider.rpartition("::")[0]}
        if request.ignoreChanges:
            self._recorded.ignored_changes[request.type, request.name] = list(request.ignoreChanges)
        if request.protect:
            self._recorded.protected.add((request.type, request.name))
        limits = request.customTimeouts
        given = {each: getattr(limits, each) for each in ("create", "update", "delete")}
        if any(given.values()):
            self._recorded.timeouts[request.type, request.name] = {k: v for k, v in given.items() if v}
        self._recorded.edges[answer.urn] = frozenset(needed - {""})
        return answer


class _Callbacks:
    def __init__(self, recorded: Recorded) -> None:
        self._recorded = recorded

    def register_transform(self, transform: Callable[[Any], Any]) -> Callback:
        self._recorded.transforms.append(transform)
        return Callback(target="test", token=str(len(self._recorded.transforms)))


def deploy(program: Callable[[], Any], *, preview: bool = False) -> Recorded:
    """Run `program` under mocks until every registration is done. Assert on what comes back, not inside `apply`.

    What `program` returns is resolved, outputs and all, where it is a mapping of outputs.
    """
    recorded = Recorded()

    async def run() -> None:
        result = program()
        # Registrations are only scheduled so far; each enters the list that is waited for on its first turn.
        await asyncio.sleep(0)
        await wait_for_rpcs(await_all_outstanding_tasks=False)
        if isinstance(result, dict):
            recorded.result = await pulumi.Output.all(**result).future()

    def deployment() -> None:
        monitor = _Monitor(recorded)
        mocks.set_mocks(monitor.mocks, project="trainyard", stack="test", preview=preview, monitor=monitor)
        LOOP.run_until_complete(asyncio.wait_for(run(), TIMEOUT_SECONDS))

    # The mocks know no transforms, which the engine applies: they are kept for tests to call.
    # Nor do they tell anyone which line registered a resource, which takes the SDK a tenth of a deployment's time.
    with (
        warnings.catch_warnings(),
        patch("pulumi.runtime.resource._get_stack_trace", return_value=StackTrace()),
        patch("pulumi.runtime.resource._sync_monitor_supports_transforms", return_value=True),
        patch("pulumi.runtime.resource._get_callbacks", return_value=_Callbacks(recorded)),
    ):
        # The SDK imports the old names of what it exports.
        warnings.filterwarnings("ignore", ".*has been deprecated in favor", DeprecationWarning)
        isolated(deployment)
    return recorded
