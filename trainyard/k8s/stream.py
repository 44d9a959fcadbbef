"""Parse responses of the API as they arrive: lists item by item, watches line by line."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

_JSON = json.JSONDecoder()


class MalformedResponse(Exception):
    """The response is not JSON of the expected form, or it is incomplete."""


def lines(chunks: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream with one on each line. An incomplete last line is left out.

    Raises MalformedResponse for a line that is not a JSON object.
    """
    rest = b""
    for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n")
        for line in complete:
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                value = None
            if not isinstance(value, dict):
                raise MalformedResponse(f"{line[:80]!r} is no JSON object")
            yield value


def read_list(chunks: Iterable[bytes], each: Callable[[dict[str, Any]], None]) -> str:
    """Call `each` with every item of a Kubernetes list, and return the list's resourceVersion.

    At most one item and one chunk are in memory. The pods of a large cluster need tens of megabytes as text, and ten
    times as much as Python objects. The fields may have any order: lists of custom resources have `items` before
    `metadata`. Raises MalformedResponse for anything but a list.
    """
    text = _Text(chunks)
    version, is_list = "", False
    text.take("{")
    while text.peek() != "}":
        name = text.value()
        text.take(":")
        is_list = is_list or name in ("items", "metadata")
        if name == "items" and text.peek() == "[":
            text.take("[")
            while text.peek() != "]":
                each(text.value())
                text.skip(",")
            text.take("]")
        else:
            value = text.value()
            if name == "metadata" and isinstance(value, dict):
                version = str(value.get("resourceVersion") or "")
        text.skip(",")
    text.finish()
    if not is_list:  # for instance the {} of a proxy
        raise MalformedResponse("an object without items and metadata is no list")
    return version


class _Text:
    """A JSON text that is still arriving."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self._chunks = iter(chunks)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._here, self._at = "", 0

    def peek(self) -> str:
        """Return the next character that is not white space."""
        while True:
            while self._at < len(self._here):
                if not self._here[self._at].isspace():
                    return self._here[self._at]
                self._at += 1
            self._more()

    def take(self, expected: str) -> None:
        """Skip this character. Raises MalformedResponse if another one comes next."""
        found = self.peek()
        if found != expected:
            raise MalformedResponse(
                f"{self._here[self._at : self._at + 80]!r} where {expected!r} was expected"
            )
        self._at += 1

    def skip(self, possible: str) -> None:
        """Skip this character if it comes next."""
        if self.peek() == possible:
            self._at += 1

    def value(self) -> Any:
        """Return the next value. At least the end of the list always follows it."""
        self.peek()
        while True:
            try:
                value, end = _JSON.raw_decode(self._here, self._at)
            except json.JSONDecodeError:
                end = len(self._here)
            except RecursionError as error:
                raise MalformedResponse(f"an object in the list is too deep: {error}") from None
            if end < len(self._here):
                self._at = end
                return value
            self._more()

    def finish(self) -> None:
        """Read the rest, so that the connection can serve another request."""
        for _ in self._chunks:
            pass

    def _more(self) -> None:
        chunk = next(self._chunks, None)
        if chunk is None:
            raise MalformedResponse("the list ends in the middle")
        try:
            self._here, self._at = self._here[self._at :] + self._decoder.decode(chunk), 0
        except UnicodeDecodeError as error:
            raise MalformedResponse(f"the list is no UTF-8: {error}") from None
