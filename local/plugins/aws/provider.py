"""The AWS plugin: it checks names and computes differences from the handlers' tables. The handlers make the calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from local import guard
from local.plugins import sdk
from local.plugins.aws import invokes
from local.plugins.aws.cloud import Cloud, error_code, is_gone
from local.plugins.aws.handlers import HANDLERS
from local.plugins.aws.resource import Props, Resource, changed_inputs, output_names, project
from local.plugins.provider import (
    CheckRequest,
    CheckResult,
    CreateRequest,
    DeleteRequest,
    DiffRequest,
    DiffResult,
    Failure,
    InitFailed,
    Provider,
    ProviderError,
    ReadRequest,
    ReadResult,
    UpdateRequest,
)
from local.plugins.values import UNKNOWN, decode_json, diff_paths, is_unknown

# Names of inputs that the provider chose itself. The engine keeps and hides names that begin with two underscores.
OWN = "__defaults"
# Settings of `aws.Provider` that have an effect here. Credentials and endpoints come only from the environment.
SETTINGS = sdk.split_names(
    "region allowedAccountIds forbiddenAccountIds defaultTags maxRetries "
    "skipCredentialsValidation skipMetadataApiCheck skipRegionValidation skipRequestingAccountId version"
)
NO_CLOUD = "no local cloud to work on (TRAINYARD_LOCAL_CLOUD is not set): start it with `make up`"


class AwsProvider(Provider):
    """The provider of the tokens in `HANDLERS`."""

    name = "aws"
    version = sdk.sdk_version("aws")
    copies = {"tagsAll": "tags"}  # noqa: RUF012

    def __init__(self) -> None:
        super().__init__()
        self._settings: Props = {}
        self._made: Cloud | None = None
        self._lock = threading.Lock()

    # --------------------------------------------------------------------------------------------- settings

    def check_config(self, inputs: Props) -> CheckResult:
        """Refuse settings that would have no effect."""
        plain = {key: decode_json(value) for key, value in inputs.items() if key != "version"}
        found = sdk.check_inputs("pulumi:providers:aws", plain)
        wrong = {failure.path for failure in found}
        for key in sorted(plain):
            if key not in SETTINGS and key not in wrong and not key.startswith("__"):
                reason = "is not served by the local AWS plugin: credentials and endpoints come from the environment"
                found.append(Failure(key, reason))
        return CheckResult(inputs, found)

    def configure(self, inputs: Props) -> None:
        """Apply region, tags and account limits. An account that is not allowed is refused at once.

        Without such limits, there is no call before the first real use.
        """
        self._settings = {key: decode_json(value) for key, value in inputs.items()}
        self._made = None
        if os.environ.get("TRAINYARD_LOCAL_CLOUD"):
            try:
                guard.refuse_foreign(os.environ)
            except guard.ForeignCloudError as error:
                raise ProviderError(str(error)) from error
            if any(self._accounts(key) for key in ("allowedAccountIds", "forbiddenAccountIds")):
                with _provider_errors(self.name, "configure"):
                    self.cloud()

    def _accounts(self, key: str) -> list[str]:
        return [str(each) for each in self._settings.get(key) or []]

    @property
    def region(self) -> str:
        """The provider's region.

        Raises:
            ProviderError: Neither the settings nor the environment name one.
        """
        region = self._settings.get("region") or os.environ.get("AWS_REGION")
        if not region:
            raise ProviderError("aws:region is not set; set it to a region such as us-west-2")
        return str(region)

    @property
    def default_tags(self) -> Props:
        """The tags that every taggable resource gets."""
        chosen = self._settings.get("defaultTags")
        return dict(chosen.get("tags") or {}) if isinstance(chosen, Mapping) else {}

    def cloud(self) -> Cloud:
        """Return the session with the local cloud.

        Raises:
            ProviderError: There is no local cloud, or the account is not allowed.
        """
        with self._lock:
            if self._made is None:
                if not os.environ.get("TRAINYARD_LOCAL_CLOUD"):
                    raise ProviderError(NO_CLOUD)
                if not guard.is_loopback(os.environ.get("AWS_ENDPOINT_URL", "")):
                    raise ProviderError(
                        "AWS_ENDPOINT_URL is not an address of this machine: "
                        "use the environment of `python -m local env`"
                    )
                made = Cloud(self.region)
                self._judge(made)
                self._made = made
            return self._made

    def _judge(self, cloud: Cloud) -> None:
        """Raise ProviderError if the account is not allowed.

        The message is that of the official provider (from github.com/hashicorp/aws-sdk-go-base).
        """
        allowed = self._accounts("allowedAccountIds")
        if (allowed and cloud.account not in allowed) or cloud.account in self._accounts(
            "forbiddenAccountIds"
        ):
            raise ProviderError(f"AWS account ID not allowed: {cloud.account}")

    # ------------------------------------------------------------------------------------------ check, diff

    def handler(self, token: str) -> Resource:
        """Return the handler of a token.

        Raises:
            ProviderError: The token is not served. The message names it.
        """
        found = HANDLERS.get(token)
        if found is None:
            try:
                sdk.resource(token)
            except sdk.UnknownTokenError as error:
                raise ProviderError(str(error)) from error
            raise ProviderError(
                f"{token} is not served by the local AWS plugin; `local/plugins/aws` has no handler"
            )
        return found

    def check(self, request: CheckRequest) -> CheckResult:
        """Refuse unknown names and missing values, and fill in defaults, name and tags."""
        handler = self.handler(request.type)
        inputs = {key: value for key, value in request.inputs.items() if value is not None}
        inputs.pop(OWN, None)
        failures = _names(handler, inputs, self._settings.get("region"))
        for key, value in handler.defaults.items():
            inputs.setdefault(key, value)
        if handler.tagged:
            inputs = self._tag(inputs)
        inputs = _named(handler, request, inputs)
        required = sdk.required(sdk.resource(request.type))
        failures += [Failure(key, "is required") for key in sorted(required - inputs.keys())]
        if not failures and not any(is_unknown(value) for value in inputs.values()):
            failures += [Failure(key, reason) for key, reason in handler.check(inputs)]
        return CheckResult(inputs, failures)

    def _tag(self, inputs: Props) -> Props:
        """Add the default tags to the resource's tags, as the official provider does since version 6."""
        given = inputs.get("tags", {})
        if is_unknown(given):
            return inputs
        tags = {**self.default_tags, **given}
        return {**inputs, "tags": tags, "tagsAll": tags} if tags else inputs

    def diff(self, request: DiffRequest) -> DiffResult:
        """Compare inputs by meaning."""
        handler = self.handler(request.type)
        old, new = request.old_inputs, request.inputs
        detailed: dict[str, str] = {}
        replaces: list[str] = []
        frozen = handler.replaces | handler.cannot_change(old, new)
        for key in changed_inputs(handler, old, new):
            exact = key not in handler.documents and key not in handler.unordered
            paths = diff_paths(old[key], new[key], key) if exact and key in old and key in new else {}
            kind = "add" if key not in old else "delete" if key not in new else "update"
            detailed |= paths or {key: kind}
            if key in frozen:
                replaces.append(key)
        named = handler.auto_name in new and handler.auto_name not in (new.get(OWN) or [])
        first = bool(replaces) and (handler.exclusive or named)
        return DiffResult(detailed, replaces, delete_before_replace=first)

    # ------------------------------------------------------------------------------------------------ calls

    def create(self, request: CreateRequest) -> tuple[str, Props]:
        """Create, finish and read back."""
        handler = self.handler(request.type)
        if request.preview:
            return "", self._foreseen(request.type, request.inputs)
        cloud = self.cloud()
        with _provider_errors(request.name, "create"):
            rid = handler.create(cloud, request.inputs)
        try:
            with _provider_errors(request.name, "create"):
                handler.finish(cloud, rid, request.inputs)
        except ProviderError as error:
            if self._read(cloud, handler, rid, request.inputs, request.name) is None:
                raise  # nothing of it exists
            outputs = self._outputs(cloud, handler, rid, request.inputs, request.name)
            raise InitFailed(rid, outputs, [str(error)], request.inputs) from error
        return rid, self._outputs(cloud, handler, rid, request.inputs, request.name)

    def _foreseen(self, token: str, inputs: Props) -> Props:
        known = {key: value for key, value in inputs.items() if not key.startswith("__")}
        known["region"] = self.region
        known = _with_computed(self.handler(token), known, {})
        return {**{key: UNKNOWN for key in output_names(token) if key not in known}, **known}

    def _outputs(self, cloud: Cloud, handler: Resource, rid: str, inputs: Props, name: str) -> Props:
        live = self._read(cloud, handler, rid, inputs, name)
        if live is None:
            raise ProviderError(f"{name}: {handler.token} {rid} is gone right after it was written")
        return _merged(handler, inputs, live, cloud.region)

    def _read(self, cloud: Cloud, handler: Resource, rid: str, inputs: Props, name: str) -> Props | None:
        try:
            with _provider_errors(name, "read"):
                return handler.read(cloud, rid, inputs)
        except ProviderError as error:
            if error.__cause__ is not None and is_gone(error.__cause__):  # type: ignore[arg-type]
                return None
            raise

    def read(self, request: ReadRequest) -> ReadResult | None:
        """Return live values for `refresh` (with the state's inputs) and `import` (without inputs)."""
        handler, cloud = self.handler(request.type), self.cloud()
        # The old outputs help if the id alone does not identify the resource.
        hints = {**request.outputs, **request.inputs}
        given = hints if request.inputs else {}
        live = self._read(cloud, handler, request.id, given, request.name)
        if live is None:
            return None
        if request.inputs:
            inputs = project(handler, request.inputs, live)
            if handler.tagged and "tags" in inputs:
                inputs["tagsAll"] = inputs["tags"]
        else:
            inputs = {
                key: value
                for key, value in live.items()
                if key in handler.accepts and value not in ("", [], {})
            }
        return ReadResult(request.id, _merged(handler, inputs, live, cloud.region), inputs)

    def update(self, request: UpdateRequest) -> Props:
        """Change in place and read back."""
        handler = self.handler(request.type)
        old, new = request.old_inputs, request.inputs
        if request.preview:
            own = {key: value for key, value in new.items() if not key.startswith("__")}
            own = _with_computed(handler, own, request.old_outputs)
            return {**request.old_outputs, **own, **dict.fromkeys(handler.moving, UNKNOWN)}
        cloud = self.cloud()
        changed = frozenset(changed_inputs(handler, old, new))
        try:
            with _provider_errors(request.name, "update"):
                handler.update(cloud, request.id, old, new, changed)
        except ProviderError as error:
            # A part may be in effect. The state gets the live values, so that the next run sees what is missing.
            live = self._read(cloud, handler, request.id, new, request.name)
            if live is None:
                raise
            outputs = _merged(handler, new, live, cloud.region)
            raise InitFailed(request.id, outputs, [str(error)], project(handler, new, live)) from error
        return self._outputs(cloud, handler, request.id, new, request.name)

    def delete(self, request: DeleteRequest) -> None:
        """Delete. A resource that does not exist is no error."""
        handler, cloud = self.handler(request.type), self.cloud()
        try:
            with _provider_errors(request.name, "delete"):
                handler.delete(cloud, request.id, {**request.outputs, **request.inputs})
        except ProviderError as error:
            if error.__cause__ is None or not is_gone(error.__cause__):  # type: ignore[arg-type]
                raise

    def invoke(self, token: str, args: Props) -> tuple[Props, list[Failure]]:
        """Answer look-ups: see `invokes`."""
        function = invokes.FUNCTIONS.get(token)
        if function is None:
            raise ProviderError(f"function {token} is not served by the local AWS plugin {self.version}")
        cloud = self.cloud() if os.environ.get("TRAINYARD_LOCAL_CLOUD") else None
        with _provider_errors(token, "invoke"):
            return function(cloud, self.region, args), []


def _names(handler: Resource, inputs: Props, region: Any) -> list[Failure]:
    found = sdk.check_inputs(handler.token, {key: value for key, value in inputs.items() if key != "tagsAll"})
    wrong = {failure.path for failure in found}
    for key in sorted(inputs):
        if key == "region":
            if not is_unknown(inputs[key]) and inputs[key] != region:
                found.append(
                    Failure(key, f"is {inputs[key]!r}; the local cloud has the provider's region only")
                )
        elif key not in handler.accepts and key not in wrong and not (key == "tagsAll" and handler.tagged):
            found.append(Failure(key, f"{handler.token}: {key!r} is not served by the local AWS plugin yet"))
    return found


def _named(handler: Resource, request: CheckRequest, inputs: Props) -> Props:
    key = handler.auto_name
    if key is None or key in inputs:
        return inputs
    old = request.old_inputs or {}
    if key in (old.get(OWN) or []):
        name = old[key]
    else:
        name = request.auto_name(prefix=request.name[: handler.auto_name_limit - 8])
        name = name.lower() if handler.auto_name_lower else name
    return {**inputs, key: name, OWN: [key]}


def _with_computed(handler: Resource, known: Props, live: Props) -> Props:
    """Return the inputs with the outputs that are inside them: live values, or unknown."""
    result = dict(known)
    for name, parts in handler.computed_in.items():
        if isinstance(known.get(name), dict):
            outputs = live.get(name) or {}
            result[name] = {**{part: outputs.get(part, UNKNOWN) for part in parts}, **known[name]}
    return result


def _merged(handler: Resource, inputs: Props, live: Props, region: str) -> Props:
    known = {key: value for key, value in project(handler, inputs, live).items() if not key.startswith("__")}
    outputs = {**live, **_with_computed(handler, known, live), "region": region}
    if handler.tagged:
        tags = live.get("tags", {})
        outputs |= {"tags": tags, "tagsAll": tags} if tags or "tags" in inputs else {"tagsAll": {}}
        if not tags and "tags" not in inputs:
            outputs.pop("tags", None)
    return outputs


@contextmanager
def _provider_errors(subject: str, verb: str) -> Iterator[None]:
    """Turn failures of the API into one line with the operation, the code and the text."""
    try:
        yield
    except ProviderError:
        raise
    except Exception as error:
        operation = getattr(error, "operation_name", "")
        message = getattr(error, "response", {}).get("Error", {}).get("Message") or str(error) or repr(error)
        code = error_code(error)
        reason = ": ".join(part for part in (operation, code, message) if part)
        raise ProviderError(f"{subject}: {verb}: {reason}") from error
