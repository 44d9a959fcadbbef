"""Find and read the file with a stack's settings.

The file of stack `p4d` is `Pulumi.p4d.yaml` in the root of the checkout, else `examples/stacks/p4d.yaml`. The program,
the preflight and the command line all find it here. Entry points: `find()`, `read()` and `dump()`.
"""

from __future__ import annotations

import difflib
import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import yaml

ROOT: Final = Path(__file__).resolve().parents[1]
EXAMPLES: Final = Path("examples", "stacks")
# What Pulumi itself writes into `Pulumi.<stack>.yaml` to protect the stack's secrets
# (pulumi.com/docs/iac/concepts/projects/stack-settings-file).
SALT: Final = "encryptionsalt"
SECRETS_KEYS: Final = (SALT, "secretsprovider", "encryptedkey")

# What go-yaml v3 reads as something other than a text.
_TAGS: Final = "tag:yaml.org,2002:"
_CONSTANTS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER: Final = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[bB][01]+|0[oO]?[0-7]+|[1-9][0-9]*|0)")
_OCTAL: Final = re.compile(r"^([-+]?0)([0-7]+)$")
_FLOAT: Final = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE: Final = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_TIMESTAMP: Final = re.compile(
    r"\d{4}-\d\d?-\d\d?"
    r"(([Tt]| +)\d\d?:\d\d?:\d\d?([.,]\d+)?( *(Z|[-+]\d\d?(:?\d\d)?))?)?",
    re.ASCII,
)
# Go writes larger numbers with an exponent in JSON.
_EXPONENT_FROM: Final = 1e21


class StackFileError(Exception):
    """A stack file that is missing, can't be read or is no YAML mapping; one line."""


def path_of(stack: str, root: Path = ROOT) -> Path:
    """Return the path of a stack's file, which may not exist.

    `pulumi stack init` writes `Pulumi.<stack>.yaml` for the keys of the stack's secrets, whatever file has the
    settings (github.com/pulumi/pulumi/issues/11220). A file with these keys alone does not hide an example.
    """
    own, example = root / f"Pulumi.{stack}.yaml", root / EXAMPLES / f"{stack}.yaml"
    return example if example.exists() and not _has_settings(own) else own


def find(stack: str, root: Path = ROOT) -> Path:
    """Return the path of a stack's file.

    Raises:
        StackFileError: There is no such file. The message lists the files of both places.
    """
    path = path_of(stack, root)
    if path.exists():
        return path
    own = sorted(each.name.split(".")[1] for each in root.glob("Pulumi.*.yaml"))
    examples = sorted(each.stem for each in (root / EXAMPLES).glob("*.yaml"))
    near = difflib.get_close_matches(stack.strip().lower(), [*own, *examples], n=1)
    meant = f" Did you mean {near[0]}?" if near else ""
    places = f"Stack files here: {', '.join(own)}"
    if examples:
        places += f"; in {EXAMPLES}: {', '.join(examples)}"
    raise StackFileError(f"{path.name} does not exist.{meant} {places}")


def names(root: Path = ROOT) -> list[str]:
    """Return the names of all stacks that have a file."""
    own = {each.name.split(".")[1] for each in root.glob("Pulumi.*.yaml")}
    return sorted(own | {each.stem for each in (root / EXAMPLES).glob("*.yaml")})


def is_example(path: Path, root: Path = ROOT) -> bool:
    """Return whether a stack file is in `examples/stacks`, where Pulumi does not find it by itself."""
    return path.parent == root / EXAMPLES


def display_name(path: Path, root: Path = ROOT) -> str:
    """Return a stack file's name for messages: its path in the checkout, or the name of a file elsewhere."""
    return str(path.relative_to(root)) if path.is_relative_to(root) else path.name


def read(path: Path, root: Path = ROOT) -> dict[str, Any]:
    """Read a stack file.

    Returns:
        The whole document; `config` is a mapping.

    Raises:
        StackFileError: The file does not exist, can't be read, or is not a mapping with a mapping under `config`.
    """
    name = display_name(path, root)
    try:
        # The subclass of SafeLoader constructs only what SafeLoader does.
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)  # noqa: S506
    except FileNotFoundError:
        raise StackFileError(f"{name} does not exist") from None
    except UnicodeDecodeError as error:
        raise StackFileError(f"{name} is not in UTF-8: {error}; it must be saved as UTF-8") from None
    except OSError as error:
        raise StackFileError(f"{name} can't be read: {error.strerror}; it must be a file") from None
    # A number with too many digits is a ValueError.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StackFileError(_not_yaml(name, error)) from None
    if not isinstance(document, dict) or not isinstance(document.get("config"), dict):
        raise StackFileError(f"{name} needs a mapping named 'config' with the stack's settings")
    # The engine ignores settings there and would deploy the stack without them.
    if stray := [key for key in document if str(key).startswith(("trainyard:", "aws:"))]:
        raise StackFileError(f"{name}: {stray[0]} stands beside 'config'; it must be indented, below it")
    return document


def dump(document: dict[str, Any]) -> str:
    """Return a document as YAML of which the engine reads the same values."""
    return yaml.dump(document, Dumper=_Dumper, sort_keys=False)


def _has_settings(path: Path) -> bool:
    """Return whether a file exists and holds more than the keys of a stack's secrets."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return False
    except (OSError, UnicodeDecodeError):
        return True  # `read` reports it
    keys = tuple(f"{key}:" for key in SECRETS_KEYS)
    return any(line.strip() and not line.startswith(keys) for line in lines)


def _not_yaml(name: str, error: Exception) -> str:
    """Return where and why the YAML is invalid, in one line. Lines are counted from 1, as in editors."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return f"{name} is not valid YAML: {str(error).splitlines()[0]}"
    start = error.context_mark
    since = f", {error.context} that begins in line {start.line + 1}" if error.context and start else ""
    what = "" if isinstance(error, _UnusableValueError) else "is not valid YAML: "
    return f"{name}:{error.problem_mark.line + 1}: {what}{error.problem}{since}"


class _UnusableValueError(yaml.constructor.ConstructorError):
    """A valid scalar of YAML that the engine can't pass to the program as it stands in the file."""

    def __init__(self, node: yaml.ScalarNode, problem: str) -> None:
        super().__init__(None, None, f"'{node.value}' {problem}", node.start_mark)


def _number(text: str) -> int | float | None:
    """Return the number that an unquoted scalar is to the engine; None for a text.

    The engine passes numbers as JSON, where 1.0 is 1 and an integer of more than 64 bits is rounded.
    """
    plain = "" if text.startswith("_") else text.replace("_", "")
    if _INTEGER.fullmatch(plain) and -(2**63) <= (value := int(_OCTAL.sub(r"\1o\2", plain), 0)) < 2**64:
        if value < 2**63:
            return value
        number = float(value)
    elif _FLOAT.fullmatch(plain):
        number = float(plain)
    else:
        return None
    if math.isinf(number):
        return None
    is_whole = number.is_integer() and abs(number) < _EXPONENT_FROM
    return int(Decimal(repr(number))) if is_whole else number


def _resolve(text: str) -> tuple[str, Any]:
    """Return tag and value of an unquoted scalar, by the rules of the engine's parser.

    It is go-yaml v3 (https://github.com/go-yaml/yaml/blob/v3/resolve.go), which reads `yes` and `on` as texts.
    """
    if text in _CONSTANTS:
        value = _CONSTANTS[text]
        return ("null" if value is None else "bool"), value
    if text == "<<":
        return "merge", text
    if _NOT_FINITE.fullmatch(text):
        return "float", math.nan
    if _TIMESTAMP.fullmatch(text):
        return "timestamp", text
    number = _number(text)
    if number is None:
        return "str", text
    return ("int" if isinstance(number, int) else "float"), number


class _Loader(yaml.SafeLoader):
    """YAML as the engine reads it, for which PyYAML has the rules of YAML 1.1.

    It also refuses a duplicate key, of which the last one would silently win; the engine refuses it, too.
    """

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        if kind is yaml.ScalarNode and implicit[0]:
            return _TAGS + _resolve(value)[0]
        return str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]

    def construct_engine_scalar(self, node: yaml.ScalarNode) -> Any:
        tag, value = _resolve(node.value)
        wanted = node.tag.removeprefix(_TAGS)
        if "timestamp" in (tag, wanted):
            raise _UnusableValueError(node, "is a date, which Pulumi rewrites; it must be in quotes")
        if tag != wanted and (tag, wanted) != ("int", "float"):
            raise _UnusableValueError(node, f"has the tag !!{wanted}; it must be a value of this type")
        if tag == "float" and math.isnan(value):
            raise _UnusableValueError(node, "is no number of JSON; it must be finite, or a text in quotes")
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key '{key.value}' stands twice in one mapping", key.start_mark
                    )
                seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


class _Dumper(yaml.SafeDumper):
    """Also quotes a text that only the engine reads as something else, such as `08` or `1e3`."""

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> str:
        tag = str(super().resolve(kind, value, implicit))  # type: ignore[no-untyped-call]
        is_plain_text = kind is yaml.ScalarNode and implicit[0] and tag == f"{_TAGS}str"
        return _TAGS + _resolve(value)[0] if is_plain_text else tag


for _tag in ("null", "bool", "int", "float", "timestamp"):
    _Loader.add_constructor(_TAGS + _tag, _Loader.construct_engine_scalar)
