"""The properties of a resource in the official Pulumi SDK, read from the source of the installed package.

An import of the SDK takes seconds (pulumi_aws alone has thousands of modules). This module parses only the text of the
module that defines a resource, and of the input types that it names. The files are generated and regular: an args class
has one `@pulumi.getter` per property, and its annotation is the type.
"""

from __future__ import annotations

import ast
import difflib
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local.plugins.protos import sdk_directory
from local.plugins.provider import Failure
from local.plugins.values import Props, is_unknown, join_path


class UnknownTokenError(LookupError):
    """The official SDK has no such resource."""


@dataclass(frozen=True)
class Fields:
    """An object with fixed properties: the class `name` in the module at `path`."""

    name: str
    path: Path


@dataclass(frozen=True)
class Many:
    """A list (`keyed` false) or a map of values of one type."""

    item: Shape
    keyed: bool


# None: any value is valid (scalars, free maps, unions).
Shape = Fields | Many | None


@functools.cache
def resource(token: str) -> Fields:
    """Return the inputs of a resource, such as `aws:ec2/vpc:Vpc`, or of a provider, such as `pulumi:providers:aws`.

    Raises:
        UnknownTokenError: The SDK lacks it. The message has the nearest tokens of the same module, if there are any.
    """
    package, module, name = _split(token)
    root = sdk_directory(f"pulumi_{package.replace('-', '_')}")
    folder = root / "/".join(_folders(package, module))
    for candidate in _candidates(folder, name):
        if f'@pulumi.type_token("{token}")' in _text(candidate):
            return Fields(_args_class(candidate), candidate)
    near = difflib.get_close_matches(token, _tokens(folder), n=3)
    hint = f"; near it are {', '.join(near)}" if near else ""
    raise UnknownTokenError(f"{token} is no resource of pulumi_{package.replace('-', '_')}{hint}")


@functools.cache
def properties(fields: Fields) -> Mapping[str, Shape]:
    """Return the property names (as on the wire, camelCase) and the shapes of their values."""
    body = _class_body(fields)
    found: dict[str, Shape] = {}
    for statement in body:
        if isinstance(statement, ast.FunctionDef) and statement.returns is not None:
            name = _getter_name(statement)
            if name is not None:
                found[name] = _shape(statement.returns, fields.path)
    return found


@functools.cache
def required(fields: Fields) -> frozenset[str]:
    """Return the names of the properties that must have a value."""
    getters = [each for each in _class_body(fields) if isinstance(each, ast.FunctionDef) and each.returns]
    names = {_getter_name(each): ast.unparse(each.returns) for each in getters if each.returns}
    return frozenset(name for name, kind in names.items() if name and "Optional[" not in kind)


def check_inputs(token: str, inputs: Props) -> list[Failure]:
    """Return the properties of `inputs`, at any depth, that the official SDK lacks.

    Raises:
        UnknownTokenError: The SDK lacks the resource.
    """
    return check_shape(resource(token), inputs, "", token)


def check_shape(shape: Shape, value: Any, path: str, owner: str) -> list[Failure]:
    """Return the unknown properties of one value of a known shape. `owner` names the resource in messages."""
    if shape is None or value is None or is_unknown(value):
        return []
    if isinstance(shape, Many):
        pairs: list[tuple[str, Any]] = []
        if shape.keyed and isinstance(value, Mapping):
            pairs = [(join_path(path, key), item) for key, item in value.items()]
        elif not shape.keyed and isinstance(value, list):
            pairs = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
        return [failure for inner, item in pairs for failure in check_shape(shape.item, item, inner, owner)]
    if not isinstance(value, Mapping):
        return [Failure(path, f"{owner}: {path} must be an object, not {type(value).__name__}")]
    known = properties(shape)
    failures: list[Failure] = []
    for key, item in value.items():
        inner = join_path(path, key)
        if key in known:
            failures += check_shape(known[key], item, inner, owner)
        elif not key.startswith("__"):
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            failures.append(Failure(inner, f"{owner} has no property {inner} in the official SDK{hint}"))
    return failures


def split_names(text: str) -> frozenset[str]:
    """Return the names in a text, separated by spaces."""
    return frozenset(text.split())


def sdk_version(package: str) -> str:
    """Return the version of the installed SDK package, such as `4.34.2` for `kubernetes`."""
    import json

    record = sdk_directory(f"pulumi_{package.replace('-', '_')}") / "pulumi-plugin.json"
    return str(json.loads(record.read_text())["version"])


def _split(token: str) -> tuple[str, str, str]:
    parts = token.split(":")
    if len(parts) != 3 or not all(parts):
        raise UnknownTokenError(f"{token} is no resource token; it would read package:module:Name")
    package, module, name = parts
    return (
        (name, "index", "Provider")
        if (package, module) == ("pulumi", "providers")
        else (package, module, name)
    )


def _folders(package: str, module: str) -> list[str]:
    """Return the directories of a module.

    `ec2/vpc` is `ec2`, `rbac.authorization.k8s.io/v1` is `rbac/v1`, `index` is the root.
    """
    parts = module.split("/")
    if package == "kubernetes":
        return [parts[0].split(".")[0], *parts[1:]] if parts != ["index"] else []
    return [] if parts[0] == "index" else parts[:1]


def _candidates(folder: Path, name: str) -> list[Path]:
    """Return the files that may define the resource, the most likely one first."""
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    likely = [folder / f"{snake}.py", folder / f"{name}.py"]
    squeezed = snake.replace("_", "")
    others = [path for path in folder.glob("*.py") if path.stem.replace("_", "") == squeezed]
    return [path for path in dict.fromkeys([*likely, *others]) if path.is_file()]


def _tokens(folder: Path) -> list[str]:
    pattern = re.compile(r'@pulumi\.type_token\("([^"]+)"\)')
    return [found for path in folder.glob("[!_]*.py") for found in pattern.findall(_text(path))]


@functools.lru_cache(maxsize=64)
def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""


def _args_class(path: Path) -> str:
    """Return the name of the args class, which is the first name of `__all__`."""
    found = re.search(r"^__all__ = \['(\w+)'", _text(path), re.MULTILINE)
    if found is None:
        raise UnknownTokenError(f"{path.name} does not look like a generated SDK module: no __all__")
    return found.group(1)


def _class_body(fields: Fields) -> list[ast.stmt]:
    text = _text(fields.path)
    start = text.find(f"\nclass {fields.name}:")
    if start < 0:
        raise UnknownTokenError(f"{fields.path.name} of the SDK has no class {fields.name}")
    following = re.compile(r"^\S", re.MULTILINE).search(text, text.index("\n", start + 1) + 1)
    tree = ast.parse(text[start : following.start() if following else len(text)])
    definition = tree.body[0]
    return definition.body if isinstance(definition, ast.ClassDef) else []


def _getter_name(function: ast.FunctionDef) -> str | None:
    """Return the wire name of a `@pulumi.getter` property; None for other functions."""
    for decorator in function.decorator_list:
        call = decorator if isinstance(decorator, ast.Call) else None
        target = call.func if call else decorator
        if isinstance(target, ast.Attribute) and target.attr == "getter":
            for keyword in call.keywords if call else []:
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
            return function.name
    return None


def _shape(annotation: ast.expr, path: Path) -> Shape:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return _reference(annotation.value, path)
    if not isinstance(annotation, ast.Subscript):
        return None
    outer = annotation.value.attr if isinstance(annotation.value, ast.Attribute) else _name(annotation.value)
    inner = annotation.slice
    if outer in ("Input", "Optional", "InputType"):
        return _shape(inner, path)
    if outer == "Sequence":
        return Many(_shape(inner, path), keyed=False)
    if outer == "Mapping" and isinstance(inner, ast.Tuple):
        return Many(_shape(inner.elts[1], path), keyed=True)
    return None


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _reference(text: str, path: Path) -> Shape:
    """Resolve an input type in quotes.

    `VpcFooArgs` is in this module's `_inputs.py`, `_meta.v1.FooArgs` in that of another.
    """
    *modules, name = text.split(".")
    folder = path.parent
    if modules:
        alias = re.search(rf"^from (\.+) import (\w+) as {re.escape(modules[0])}$", _text(path), re.MULTILINE)
        if alias is None:
            return None
        for _ in alias.group(1)[1:]:
            folder = folder.parent
        folder = folder.joinpath(alias.group(2), *modules[1:])
    inputs = folder / "_inputs.py"
    return Fields(name, inputs) if f"\nclass {name}:" in _text(inputs) else None
