"""Whether a text is an IAM policy document at all. Pure.

https://docs.aws.amazon.com/IAM/latest/UserGuide/reference_policies_grammar.html
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

EFFECTS: Final = ("Allow", "Deny")
PRINCIPALS: Final = ("AWS", "CanonicalUser", "Federated", "Service")
TEXTS: Final = ("Action", "NotAction", "Resource", "NotResource")
WHO: Final = ("Principal", "NotPrincipal")
# As much of a wrong value as a message shows.
SHOWN_CHARACTERS: Final = 40


def parsed(document: Any) -> Any:
    """A document as a mapping; a text that is no JSON stays one."""
    if not isinstance(document, str):
        return document
    try:
        return json.loads(document)
    except json.JSONDecodeError:
        return document


def faults(document: Any) -> Iterator[str]:
    """What is wrong with a document, as the end of a sentence that begins with its name."""
    document = parsed(document)
    if isinstance(document, str):
        yield f"is {_shown(document)}, which is no JSON; it must be a policy document"
        return
    if not isinstance(document, Mapping):
        yield f"is {_shown(document)}; it must be a policy document, with a list named Statement"
        return
    listed = document.get("Statement")
    if not isinstance(listed, list | Mapping):
        yield f"has the Statement {_shown(listed)}; it must be a list of statements"
        return
    for index, statement in enumerate([listed] if isinstance(listed, Mapping) else listed):
        for fault in _of_statement(statement):
            yield f"has Statement[{index}]{fault}"


def _of_statement(statement: Any) -> Iterator[str]:
    if not isinstance(statement, Mapping):
        yield f" {_shown(statement)}; it must be a mapping with an Effect"
        return
    if statement.get("Effect") not in EFFECTS:
        yield f".Effect {_shown(statement.get('Effect'))}; it must be Allow or Deny"
    for name in TEXTS:
        if name in statement and not _texts(statement[name]):
            yield f".{name} {_shown(statement[name])}; it must be a text or a list of texts"
    for name in WHO:
        if name in statement and not _principal(statement[name]):
            yield f".{name} {_shown(statement[name])}; it must be * or a mapping of {', '.join(PRINCIPALS)}"
    condition = statement.get("Condition", {})
    if not isinstance(condition, Mapping) or not all(
        isinstance(keys, Mapping) for keys in condition.values()
    ):
        yield f".Condition {_shown(condition)}; it must be a mapping of operators, keys and values"


def _texts(value: Any) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(each, str) for each in value)
    )


def _principal(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return bool(value == "*")
    return all(kind in PRINCIPALS and _texts(named) for kind, named in value.items())


def _shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    text = " ".join(text.split())
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
