"""Write docs/components.md, the page of all components: `python -m infra.components_reference`.

Everything on it comes from the sources in `components/`: a component's docstring says what it creates, and the string
below an argument or an output describes it.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from components.documents import account, iam, instance_types, pool, tags

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "components.md"
# In the order in which a program uses them.
MODULES: Final = (
    *("network", "identity", "encryption", "cluster", "karpenter", "pools", "warm_nodes", "device_plugins"),
    *("csi", "lustre", "storage", "registry", "training", "operators", "launcher_job", "torchrun"),
    *("node_check", "debug_pod", "drain"),
)
# Modules for the program of the checkout.
INTERNAL: Final = ("fixed_settings",)
# Classes with the outputs that new and existing networks and clusters share.
BASES: Final = ("BaseNetwork", "BaseCluster")
# Arguments that mean the same everywhere.
COMMON: Final = {
    "account": "The account and its region: `documents.account.Account(id=..., region=...)`.",
    "after": "Resources that must exist before the component's resources and until they are deleted.",
    "cluster": "The cluster's name.",
    "oidc_provider_arn": "The OIDC provider of the cluster in IAM.",
    "pools": "The pools (`documents.instance_types.make_pool`).",
    "region": "The region.",
    "tags": "The tags of all AWS resources.",
    "vpc_id": "The id of the VPC.",
}
# Functions and classes of `documents` that give arguments of components.
HELPERS: Final[tuple[Callable[..., Any], ...]] = (
    account.Account,
    instance_types.find_instance_type,
    instance_types.make_pool,
    pool.Pool,
    tags.stack_tags,
    iam.account_of,
    iam.bucket_tls_only,
    iam.control_plane_group,
    iam.flow_logs_group,
)
HEAD: Final = """\
# Components

<!-- Written by `make reference` from the sources in components/; edits here are lost. -->

The components of a stack, for a Pulumi program of your own. [examples/library](../examples/library/README.md) is such a
program. Install them from a checkout, with the Pulumi SDKs that they need:

```console
$ pip install '.[components]'
```

Import each from its module: `from trainyard.components.network import Network, NetworkArgs`. A component takes a name,
one object with its arguments, and Pulumi's `ResourceOptions`, where `providers` has the AWS and Kubernetes providers.
[Drain](#drain) and [ClusterCleanup](#clustercleanup) are dynamic resources and need no provider.
Arguments of the type `Input` accept outputs of other resources.

Components read no settings, and do not check values as stack files are checked ([settings.md](settings.md)).

Pulumi deletes a resource before those it depends on. Resources without a dependency between them are deleted in
parallel. The arguments `after`, `control_plane_dependencies` and `node_dependencies` add dependencies; see also
[Drain](#drain).

Names such as `documents.iam` are modules of `trainyard.components`. [Helpers](#helpers) lists their functions.
"""
WIDTH: Final = 100


def classes(module: str) -> list[ast.ClassDef]:
    """Return the public classes of a module of the components."""
    found = [
        each
        for each in _tree(module).body
        if isinstance(each, ast.ClassDef) and not each.name.startswith("_")
    ]
    return [each for each in found if each.name not in ("AtDelete", *BASES)]


def is_component(node: ast.ClassDef) -> bool:
    """Return whether the class is a resource, and not its arguments."""
    return any("Resource" in ast.unparse(base) or ast.unparse(base) in BASES for base in node.bases)


def described(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Yield each statement with the string below it, else with an empty one."""
    for position, statement in enumerate(body):
        following = body[position + 1] if position + 1 < len(body) else None
        text = ""
        if isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant):
            text = inspect.cleandoc(str(following.value.value))
        yield statement, " ".join(text.split())


def arguments(node: ast.ClassDef) -> list[tuple[str, str, str, str]]:
    """Return name, type, default and meaning of each field of a class of arguments."""
    found = []
    for statement, text in described(node.body):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            name = statement.target.id
            found.append(
                (name, _type(statement.annotation), _default(statement.value), text or COMMON.get(name, ""))
            )
    return found


def outputs(module: str, node: ast.ClassDef) -> dict[str, str]:
    """Return the meaning of each public attribute of a component, by name."""
    found = {name: text for base in _bases(module, node) for name, _, _, text in arguments(base)}
    for statement in node.body:
        if isinstance(statement, ast.FunctionDef) and _is_property(statement):
            found[statement.name] = (ast.get_docstring(statement) or "").splitlines()[0]
    for statement, text in [*described(node.body), *_in_constructor(node)]:
        target = (
            statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        )
        name = str(getattr(target, "attr", None) or getattr(target, "id", "_"))
        if not name.startswith("_"):
            found[name] = text or found.get(name, "")
    return found


def _bases(module: str, node: ast.ClassDef) -> list[ast.ClassDef]:
    wanted = {ast.unparse(base) for base in node.bases} & set(BASES)
    return [each for each in _tree(module).body if isinstance(each, ast.ClassDef) and each.name in wanted]


def _tree(module: str) -> ast.Module:
    return ast.parse((ROOT / "components" / f"{module}.py").read_text())


def _in_constructor(node: ast.ClassDef) -> Iterator[tuple[ast.stmt, str]]:
    for function in node.body:
        if isinstance(function, ast.FunctionDef) and function.name == "__init__":
            for block in ast.walk(function):
                for statement, text in described(
                    getattr(block, "body", []) if isinstance(block, ast.stmt) else []
                ):
                    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
                    target = statement.target if isinstance(statement, ast.AnnAssign) else target
                    if isinstance(target, ast.Attribute) and ast.unparse(target.value) == "self":
                        yield statement, text


def _is_property(function: ast.FunctionDef) -> bool:
    return any(ast.unparse(each) == "property" for each in function.decorator_list)


def _type(annotation: ast.expr) -> str:
    return ast.unparse(annotation).replace("pulumi.", "").replace("|", "\\|")


def _default(value: ast.expr | None) -> str:
    if value is None:
        return "required"
    text = ast.unparse(value)
    if text.startswith("field("):
        return {"list": "[]", "dict": "{}"}.get(
            text.removeprefix("field(default_factory=").removesuffix(")"), "built-in"
        )
    return f"`{text}`"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (head, ("---",) * len(head), *rows)]
    return "\n".join(lines) + "\n"


COLUMNS: Final = ("Argument", "Type", "Default", "Meaning")


def section(module: str) -> str:
    """Return the part of the page about a module."""
    parts, described_later = [], []
    for node in classes(module):
        if not is_component(node):
            # The classes of arguments are above their component.
            rows = [
                (f"`{name}`", f"`{type_}`", default, text) for name, type_, default, text in arguments(node)
            ]
            text = ast.get_docstring(node) or ""
            described_later.append(f"### {node.name}\n\n{text}\n\n{_table(COLUMNS, rows)}")
            continue
        text = (ast.get_docstring(node) or "").replace("Raises:\n    ", "Raises ")
        parts.append(f"## {node.name}\n\n`trainyard.components.{module}`\n\n{text}\n")
        found = [(f"`{name}`", text) for name, text in outputs(module, node).items()]
        if found:
            parts.append(_table(("Output", "Meaning"), found))
        parts += described_later
        described_later = []
    return "\n".join(parts)


def helper(call: Callable[..., Any]) -> str:
    """Return the part of the page about a function or class of `documents`: its signature and docstring."""
    signature = inspect.signature(call)
    parameters = []
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        default = "" if each.default is each.empty else f" = {each.default!r}"
        parameters.append(f"{each.name}: {each.annotation}{default}")
    result = "" if isinstance(call, type) else f" -> {signature.return_annotation}"
    text = f"{call.__name__}({', '.join(parameters)}){result}"
    if len(text) > WIDTH:
        lines = "".join(f"    {each},\n" for each in parameters)
        text = f"{call.__name__}(\n{lines}){result}"
    meaning = (inspect.getdoc(call) or "").replace("Raises:\n    ", "Raises ")
    meaning = re.sub(r"^    (\w+): ", r"- `\1`: ", meaning.replace("Args:\n", "Arguments:\n\n"), flags=re.M)
    meaning = re.sub(r"^ {8}", "  ", meaning, flags=re.M)
    module = f"trainyard.{call.__module__}"
    return f"### {call.__name__}\n\n`{module}`\n\n```python\n{text}\n```\n\n{meaning}\n"


def render() -> str:
    """Return the page."""
    helpers = ["## Helpers\n", *map(helper, HELPERS)]
    return "\n".join([HEAD, *(section(module) for module in MODULES), *helpers])


if __name__ == "__main__":
    PAGE.write_text(render())
    sys.stdout.write(f"wrote {PAGE}\n")
