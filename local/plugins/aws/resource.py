"""The row of the table of resources: its properties, how they compare, and its operations in botocore.

Inputs and outputs are plain dictionaries with the property names of the official Pulumi SDK. The provider checks names
and computes differences from the tables of a row. The row itself only calls the AWS API.
"""

from __future__ import annotations

import datetime
import functools
import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from local.plugins import sdk
from local.plugins.aws.cloud import Cloud, is_gone, retry_busy, wait_until

Props = dict[str, Any]

# Maps that belong to the stack as a whole: an entry that someone else added is drift, too.
_WHOLE_MAPS = frozenset({"tags", "tagsAll", "labels"})


@dataclass(frozen=True)
class Resource:
    """A row of the table: a resource type, the operations of its service, and how its properties compare.

    Arguments and results are mapped by the shapes of botocore and the names of the official SDK: `vpcId` is the member
    `VpcId`. The row names only the members that are called otherwise. A subclass replaces a whole call; a function of
    the row (`more`, `live`, `change`, `before_delete`) adds to one.
    """

    token: str
    _: KW_ONLY
    service: str
    # Inputs that this row supports. Any other input of the official SDK is refused by name.
    accepts: frozenset[str]
    # Lists whose order has no meaning.
    unordered: frozenset[str] = frozenset()
    # Strings that contain JSON and are compared by meaning.
    documents: frozenset[str] = frozenset()
    # Inputs that the API never returns, so a refresh keeps the values of the stack.
    write_only: frozenset[str] = frozenset()
    # Defaults of the official provider.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    # The input that is `<resource name>-<7 hex>` if the program does not set it, its maximum length, and its form.
    auto_name: str | None = None
    auto_name_limit: int = 255
    auto_name_lower: bool = False
    # Two of them can't exist at the same time, so a replacement deletes the old one first.
    exclusive: bool = False
    # Outputs inside an input, by the input's name.
    computed_in: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    # Outputs that every update changes.
    moving: frozenset[str] = frozenset()

    # Operations of the service's client. The id is in the answer of the first one (JMESPath), or is made of inputs
    # (`{name}`). `key` names the arguments that identify the resource in all others, separated as the id's parts are.
    create_op: str = ""
    id: str = ""
    key: str = ""
    read_op: str = ""
    # Where the resource is in the answer (JMESPath; `{id}` is the id, `{PolicyArn}` a part of it).
    found: str = "@"
    read_with: Mapping[str, Any] = field(default_factory=dict)
    # Properties that have an operation of their own: its name, the place in its answer, more arguments.
    extras: Mapping[str, tuple[str, str, Mapping[str, Any]]] = field(default_factory=dict)
    delete_op: str = ""
    # Inputs that the deletion gets, too.
    delete_with: frozenset[str] = frozenset()
    # Operations that change a resource in place, each with its inputs. Those that creation does not take are set after
    # it. `clears` are the operations for an input that is absent or false.
    updates: tuple[tuple[str, frozenset[str]], ...] = ()
    clears: Mapping[str, str] = field(default_factory=dict)
    # The creation's operation writes the whole resource, and is its update, too.
    put: bool = False
    # Members that are not called like their property. Alternatives are separated by spaces, levels by dots.
    names: Mapping[str, str] = field(default_factory=dict)
    # The member that contains all members that are not on the first level.
    within: str = ""
    # The resource's name in tag specifications of EC2, in ARNs and in messages.
    kind: str = ""
    # The operation that sets tags, and the output by which it knows the resource, if that is not the id.
    tag_op: str = ""
    tag_by: str = ""
    # The member with the status; the one to wait for; those of a failure, and where its reason is; those of a deletion.
    status: str = ""
    ready: str = ""
    failed: frozenset[str] = frozenset()
    reason: str = ""
    gone: frozenset[str] = frozenset()
    seconds: float = 600.0
    # How long a deletion is repeated while something else still uses the resource.
    busy_seconds: float = 300.0

    # More failures of known inputs, each as (property, reason).
    check: Callable[[Props], list[tuple[str, str]]] = lambda _: []
    # Inputs of the old ones that need a replacement for their values in the new ones, such as a smaller size.
    cannot_change: Callable[[Props, Props], frozenset[str]] = lambda _old, _new: frozenset()
    # More arguments of the creation.
    more: Callable[[Cloud, Props], Props] = lambda _cloud, _inputs: {}
    # More live properties: of the id, the inputs and what the read operation found.
    live: Callable[[Cloud, str, Props, Any], Props] = lambda _cloud, _rid, _inputs, _found: {}
    # More changes in place: the inputs, and a function of the id, old and new inputs and the names of changed ones. An
    # override of `update` needs the inputs, too.
    changes: frozenset[str] = frozenset()
    change: Callable[[Cloud, str, Props, Props, frozenset[str]], None] = lambda *_: None
    before_delete: Callable[[Cloud, str, Props], None] = lambda *_: None

    @property
    def tagged(self) -> bool:
        """Whether the resource has tags."""
        return "tags" in self.accepts

    @functools.cached_property
    def replaces(self) -> frozenset[str]:
        """The inputs that nothing changes in place (force-new in the official provider)."""
        if self.put:
            return frozenset(re.findall(r"{(\w+)}", self.id))
        updated = {name for _, names in self.updates for name in names}
        return self.accepts - {"tags"} - self.write_only - self.changes - updated

    # ------------------------------------------------------------------------------------------------- calls

    def create(self, cloud: Cloud, inputs: Props) -> str:
        """Create the resource and return its id as early as possible. The rest belongs into `finish`."""
        arguments = {**self.arguments(cloud, self.create_op, inputs), **self.more(cloud, inputs)}
        tags = inputs.get("tags")
        if tags:
            arguments |= self.creation_tags(cloud, tags)
        answer = self._write(cloud, arguments)
        return self.id.format_map(inputs) if "{" in self.id else str(search(self.id, answer))

    def _write(self, cloud: Cloud, arguments: Props) -> Any:
        # Several settings of one bucket are written at the same time. S3 returns OperationAborted for such a conflict.
        call = cloud.call(self.service, self.create_op)
        return retry_busy(lambda: call(**arguments), 60) if self.put else call(**arguments)

    def finish(self, cloud: Cloud, rid: str, inputs: Props) -> None:
        """Apply settings and wait after the creation. After a failure the state keeps the resource, for a repair."""
        for operation, names in self.updates:
            created = cloud.input_shape(self.service, self.create_op)
            if not any(self.path(created, name) for name in names):
                chosen = {name for name in names if inputs.get(name) not in (None, self.defaults.get(name))}
                self._set(cloud, rid, operation, inputs, frozenset(chosen))
        self.settle(cloud, rid)

    def settle(self, cloud: Cloud, rid: str) -> None:
        """Wait for the status in which the resource is ready.

        Raises:
            RuntimeError: It has a status of a failure. The message has the reason.
        """

        def is_ready() -> bool:
            found = self.describe(cloud, rid)
            status = str(search(self.status, found or {}))
            if status in self.failed:
                why = search(self.reason, found)
                raise RuntimeError(f"{self.kind} {rid} is {status}" + (f": {why}" if why else ""))
            return status.lower() == self.ready.lower()

        if self.ready:
            wait_until(f"{self.kind} {rid} {self.ready}", is_ready, self.seconds)

    def describe(self, cloud: Cloud, rid: str) -> Any:
        """Return what the read operation finds, or None."""
        return self._query(cloud, self.read_op, self.found, rid, self.read_with)

    def _query(self, cloud: Cloud, operation: str, place: str, rid: str, more: Mapping[str, Any]) -> Any:
        arguments = {**self.key_of(cloud, operation, rid), **more}
        client = cloud.client(self.service)
        if "[?" in place and client.can_paginate(operation):
            answer = client.get_paginator(operation).paginate(**arguments).build_full_result()
        else:
            answer = getattr(client, operation)(**arguments)
        return search(place.format(id=rid, **self.parts(rid)) if "{" in place else place, answer)

    def read(self, cloud: Cloud, rid: str, inputs: Props) -> Props | None:
        """Return the live properties, or None if the resource is gone (a "not found" error means the same)."""
        found = self.describe(cloud, rid)
        if not found or str(search(self.status, found) if self.status else "") in self.gone:
            return None
        props = self.properties(found)
        for name, (operation, place, more) in self.extras.items():
            value = self._query(cloud, operation, place, rid, more)
            props[name] = plain_tags(value) if name == "tags" else value
        if self.service == "ec2" and self.kind:
            props.setdefault("arn", cloud.arn("ec2", f"{self.kind}/{rid}"))
        props |= self.live(cloud, rid, inputs, found)
        for name in (self.accepts & inputs.keys()) - self.write_only - {"tags"}:
            if name not in props and isinstance(inputs[name], str | list | int):
                props[name] = type(inputs[name])()  # the API leaves out what is empty
        return {name: value for name, value in props.items() if value is not None}

    def update(self, cloud: Cloud, rid: str, old: Props, new: Props, changed: frozenset[str]) -> None:
        """Apply the changed inputs in place."""
        if self.put and changed - {"tags"}:
            self._write(cloud, {**self.arguments(cloud, self.create_op, new), **self.more(cloud, new)})
        for operation, names in self.updates:
            if (names & changed) - self.write_only:
                self._set(cloud, rid, operation, new, names & (changed | self.write_only))
                self.settle(cloud, rid)
        self.change(cloud, rid, old, new, changed)
        if "tags" in changed:
            self.retag(cloud, rid, old, new)

    def _set(self, cloud: Cloud, rid: str, operation: str, new: Props, names: frozenset[str]) -> None:
        if not names:
            return
        clear = next((self.clears[name] for name in names if name in self.clears and not new.get(name)), None)
        if clear is not None:
            cloud.call(self.service, clear)(**self.key_of(cloud, clear, rid))
            return
        # A description that the program no longer sets is empty.
        arguments = self.arguments(cloud, operation, {"description": "", **new}, names)
        arguments |= self.key_of(cloud, operation, rid)
        # EKS changes nothing during another update.
        retry_busy(lambda: cloud.call(self.service, operation)(**arguments))

    def delete(self, cloud: Cloud, rid: str, state: Props) -> None:
        """Delete the resource and wait until it is gone ("not found" is success)."""
        self.before_delete(cloud, rid, state)
        arguments = self.key_of(cloud, self.delete_op, rid)
        arguments |= self.arguments(cloud, self.delete_op, state, self.delete_with)
        retry_busy(lambda: cloud.call(self.service, self.delete_op)(**arguments), self.busy_seconds)
        self.wait_gone(cloud, rid)

    def wait_gone(self, cloud: Cloud, rid: str) -> None:
        """Wait until the API no longer has the resource, if that takes time."""

        def is_absent() -> bool:
            try:
                found = self.describe(cloud, rid)
            except Exception as error:
                if is_gone(error):
                    return True
                raise
            status = str(search(self.status, found or {}))
            if status in self.failed:
                raise RuntimeError(f"{self.kind} {rid} is {status} and was not deleted")
            return not found or (status in self.gone and status.lower() != "deleting")

        if self.ready:
            wait_until(f"{self.kind} {rid} deleted", is_absent, self.seconds)

    # ------------------------------------------------------------------------------------------------- tags

    def creation_tags(self, cloud: Cloud, tags: Mapping[str, str]) -> Props:
        """Return the argument of the creation for tags, if it takes any."""
        shape = cloud.input_shape(self.service, self.create_op)
        if "TagSpecifications" in shape.members:
            return {"TagSpecifications": [{"ResourceType": self.kind, "Tags": tag_list(tags)}]}
        member = match(shape.members, "tags")
        return {member: tags_form(shape.members[member], tags)} if member else {}

    def retag(self, cloud: Cloud, rid: str, old: Props, new: Props) -> None:
        """Apply the change of tags."""
        gone, put = tag_changes(old, new)
        subject = str((self.read(cloud, rid, new) or {})[self.tag_by]) if self.tag_by else rid
        untag_op = "delete_tags" if self.tag_op == "create_tags" else f"un{self.tag_op}"
        for operation, tags in ((untag_op, gone), (self.tag_op, put)):
            if tags:
                members = cloud.input_shape(self.service, operation).members
                tags_member = next(name for name in members if name.lower().startswith("tag"))
                owner = next(name for name in members if name not in (tags_member, "DryRun"))
                cloud.call(self.service, operation)(
                    **{
                        owner: [subject] if members[owner].type_name == "list" else subject,
                        tags_member: tags_form(members[tags_member], tags),
                    }
                )

    # ------------------------------------------------------------------------------------------------- mapping

    def parts(self, rid: str) -> dict[str, str]:
        """Return the parts of an id by the names in `key`."""
        separator = next((sign for sign in ":#/" if sign in self.key), None)
        names = self.key.split(separator)
        return dict(zip(names, rid.split(separator, len(names) - 1) if separator else [rid], strict=True))

    def key_of(self, cloud: Cloud, operation: str, rid: str) -> Props:
        """Return the arguments that identify the resource in an operation: `VpcId`, or a list for `VpcIds`."""
        members = cloud.input_shape(self.service, operation).members
        made: Props = {}
        for part, value in self.parts(rid).items():
            if part in members:
                made[part] = value
            elif f"{part}s" in members:
                made[f"{part}s"] = [value]
        return made

    def path(self, shape: Any, name: str) -> str | None:
        """Return the path of a property's member in the shape of an operation's input, or None."""
        for path in self.names.get(name, "").split():
            if path.split(".")[0] in shape.members:
                return path
        member = match(shape.members, name)
        if member or self.within not in shape.members:
            return member
        inner = match(shape.members[self.within].members, name)
        return f"{self.within}.{inner}" if inner else None

    def arguments(
        self, cloud: Cloud, operation: str, inputs: Mapping[str, Any], names: frozenset[str] | None = None
    ) -> Props:
        """Return the arguments of an operation for the inputs (or only those with `names`), without tags."""
        shape = cloud.input_shape(self.service, operation)
        made: Props = {}
        for name in sorted((self.accepts if names is None else names) - {"tags"}):
            path = self.path(shape, name)
            if path is None or inputs.get(name) is None:
                continue
            *outer, last = path.split(".")
            place = made
            for part in outer:
                place = place.setdefault(part, {})
            place[last] = to_api(shape_at(shape, path), inputs[name])
        return made

    def properties(self, found: Mapping[str, Any]) -> Props:
        """Return the properties that are in an answer of the API, with the names of the SDK."""
        official = sdk.properties(sdk.resource(self.token))
        inner = found.get(self.within) or {}
        made: Props = {}
        for name in {*output_names(self.token), *self.accepts} - {"tags"}:
            places = [search(path, found) for path in self.names.get(name, "").split()]
            places += [each[member] for each in (found, inner) if (member := match(each, name))]
            value = next((place for place in places if place is not None), None)
            if value is not None:
                made[name] = to_sdk(value, official.get(name))
        member = match(found, "tags")
        if self.tagged:
            made["tags"] = plain_tags(found[member] if member else {})
        return made


def search(path: str, found: Any) -> Any:
    """Return what a JMESPath finds."""
    import jmespath  # late, as in `Cloud.client`

    return jmespath.search(path, found) if path else None


def match(names: Iterable[str], name: str) -> str | None:
    """Return the one of `names` that differs from `name` only in upper and lower case."""
    return next((each for each in names if each.lower() == name.lower()), None)


def shape_at(shape: Any, path: str) -> Any:
    """Return the shape of a member of a structure, or of a map's values, by its path."""
    for part in path.split("."):
        shape = shape.value if shape.type_name == "map" else shape.members[part]
    return shape


def to_api(shape: Any, value: Any) -> Any:
    """Return a value of the SDK in the form that a shape of botocore needs."""
    kind = shape.type_name
    if kind == "structure":
        # The SDK has a list of one where the official provider's schema allows more.
        value = value[0] if isinstance(value, list) else value
        made = {}
        for name, item in value.items():
            member = match(shape.members, name)
            if member is None:
                raise ValueError(f"{shape.name} of the API has no member for {name}")
            if item is not None:
                made[member] = to_api(shape.members[member], item)
        return made
    if kind == "list":
        if isinstance(value, Mapping):
            if {"Key", "Value"} <= set(getattr(shape.member, "members", ())):
                return tag_list(value)
            value = [value]
        return [to_api(shape.member, item) for item in (value if isinstance(value, list) else [value])]
    if kind == "map":
        return {key: to_api(shape.value, item) for key, item in value.items()}
    if kind in ("integer", "long"):
        return int(value)
    if kind == "boolean":
        return value.lower() == "true" if isinstance(value, str) else bool(value)
    if kind == "string" and not isinstance(value, str):
        whole = int(value) if isinstance(value, float) and value.is_integer() else value
        return str(whole).lower() if isinstance(value, bool) else str(whole)
    return value


def to_sdk(value: Any, shape: sdk.Shape) -> Any:
    """Return a value of the API with the names of the SDK. `shape` is the SDK's, as far as it has one."""
    if isinstance(shape, sdk.Many):
        if shape.keyed:
            return plain_tags(value) if isinstance(value, list) else dict(value)
        return [to_sdk(item, shape.item) for item in (value if isinstance(value, list) else [value])]
    if isinstance(value, list) and isinstance(shape, sdk.Fields):
        return to_sdk(value[0], shape) if value else None
    if isinstance(value, list):
        return [to_sdk(item, None) for item in value]
    if isinstance(value, Mapping):
        known = sdk.properties(shape) if isinstance(shape, sdk.Fields) else {}
        made = {}
        for member, item in value.items():
            name = match(known, member) or member[0].lower() + member[1:]
            made[name] = to_sdk(item, known.get(name))
        return made
    return value.strftime("%Y-%m-%dT%H:%M:%SZ") if isinstance(value, datetime.datetime) else value


def tags_form(shape: Any, tags: Any) -> Any:
    """Return tags, or the keys of tags, in the form of an operation's argument."""
    if shape.type_name == "map":
        return dict(tags)
    if shape.member.type_name == "string":
        return list(tags)
    key, value = (next(m for m in shape.member.members if m.endswith(end)) for end in ("Key", "Value"))
    return [{key: k, value: tags[k]} if isinstance(tags, Mapping) else {key: k} for k in tags]


def plain_tags(tags: Any) -> dict[str, str]:
    """Return tags of any form as a map, without those that AWS itself sets."""
    if isinstance(tags, list):  # KMS has names of its own
        tags = {tag.get("Key") or tag["TagKey"]: tag.get("Value", tag.get("TagValue")) for tag in tags}
    return {key: value for key, value in (tags or {}).items() if not key.startswith("aws:")}


def tag_list(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    """Return a map of tags as `[{"Key", "Value"}]`."""
    return [{"Key": key, "Value": value} for key, value in (tags or {}).items()]


def tag_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], dict[str, str]]:
    """Return (keys to remove, tags to set) for the change from the old inputs' tags to the new ones'."""
    before, after = old.get("tags") or {}, new.get("tags") or {}
    return [k for k in before if k not in after], {k: v for k, v in after.items() if before.get(k) != v}


_GETTER = re.compile(r'@pulumi\.getter(?:\(name="(\w+)"\))?\s+def (\w+)\(self\) -> pulumi\.Output')


@functools.cache
def output_names(token: str) -> tuple[str, ...]:
    """Return the output names (camelCase) of a resource such as `aws:ec2/vpc:Vpc`.

    Raises:
        sdk.UnknownTokenError: The SDK lacks the resource.
    """
    text = sdk.resource(token).path.read_text(encoding="utf-8")
    found = [wire or name for wire, name in _GETTER.findall(text)]
    return tuple(sorted(set(found)))


def canonical(handler: Resource, key: str, value: Any) -> Any:
    """Return a form in which two values of an input are equal if they mean the same."""
    if key in handler.documents and isinstance(value, str):
        return document(value)
    if isinstance(value, Mapping):
        return {k: canonical(handler, k, v) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        items = [canonical(handler, "", item) for item in value]
        if key in handler.unordered:
            items.sort(key=lambda item: json.dumps(item, sort_keys=True, default=str))
        return items
    if isinstance(value, float) and value.is_integer():
        return int(value)
    # Some booleans are texts in the SDK.
    return value == "true" if value in ("true", "false") else value


def document(text: str) -> Any:
    """Return a JSON policy document without meaningless differences: one-element lists and the order of actions."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return _policy_form(parsed)


def _policy_form(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _policy_form(value) for key, value in node.items()}
    if isinstance(node, list):
        items = [_policy_form(item) for item in node]
        if all(isinstance(item, str) for item in items):
            items = sorted(set(items))
        return items[0] if len(items) == 1 else items
    return node


def is_equal(handler: Resource, key: str, left: Any, right: Any) -> bool:
    """Return whether two values of one input mean the same. Absent and None are the same."""
    return bool(canonical(handler, key, left) == canonical(handler, key, right))


def changed_inputs(handler: Resource, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Return the sorted names of the inputs that differ, without the provider's own (two leading underscores).

    A missing input has its default: a state may be older than the default.
    """
    keys = {key for key in (*old, *new) if not key.startswith("__") and key != "tagsAll"}
    before, after = ({**handler.defaults, **values} for values in (old, new))
    return sorted(key for key in keys if not is_equal(handler, key, before.get(key), after.get(key)))


def project(handler: Resource, inputs: Mapping[str, Any], live: Mapping[str, Any]) -> Props:
    """Return the inputs, with the live value for each one that differs.

    What the API adds (defaults, read-only fields) is left out, so that a refresh without drift changes nothing. Tags
    that someone added to a resource without tags are drift as well.
    """
    result: Props = {}
    for key, value in inputs.items():
        if key in live and key not in handler.write_only:
            result[key] = _project(handler, key, value, live[key])
        else:
            result[key] = value
    if handler.tagged and not inputs.get("tags") and live.get("tags"):
        result["tags"] = live["tags"]
    return {key: value for key, value in result.items() if value is not None}


def _project(handler: Resource, key: str, value: Any, live: Any) -> Any:
    if is_equal(handler, key, value, live):
        return value
    if isinstance(value, Mapping) and isinstance(live, Mapping) and key not in _WHOLE_MAPS:
        return {k: _project(handler, k, v, live[k]) if k in live else v for k, v in value.items()}
    if (
        isinstance(value, list)
        and isinstance(live, list)
        and len(value) == len(live)
        and key not in handler.unordered
    ):
        return [_project(handler, "", v, item) for v, item in zip(value, live, strict=True)]
    return live
