"""Forms of names and places that both kinds take, as regular expressions of RE2, each with words for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from trainyard.operator.api.fields import Field, Rule, mapping, named, text

# RFC 1123 and RFC 1035, as https://kubernetes.io/docs/concepts/overview/working-with-objects/names/ has them.
_LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SERVICE: Final = r"^[a-z]([-a-z0-9]*[a-z0-9])?$"
_LABEL_VALUE: Final = r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$"
# Docker's and Kubernetes' mounts take no colon.
_PATH: Final = r"^/[^:]+$"
_BUCKET: Final = r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"
_HOST: Final = r"([A-Za-z0-9]([-A-Za-z0-9.]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])"
# 1 to 65535.
_PORT: Final = r"([1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])"


def object_name(about: str, name: str, *, most: int = 253, **more: Any) -> Field:
    """The name of another object."""
    right = "the name of an object: lower-case letters, digits, '-' and '.'"
    return named(about, rf"^{_LABEL}(\.{_LABEL})*$", name, right, most=most, **more)


def label_value(about: str, name: str, **more: Any) -> Field:
    """A value of a label."""
    right = "a label's value: letters, digits, '-', '_' and '.', a letter or digit at both ends"
    return named(about, _LABEL_VALUE, name, right, most=63, **more)


def directory(about: str, name: str, example: str, **more: Any) -> Field:
    """An absolute path below `/` in a container."""
    right = f"an absolute path without ':', such as {example}"
    return named(about, _PATH, name, right, most=1024, **more)


def image(about: str, **more: Any) -> Field:
    """An image reference. Only what no registry has is refused: the kubelet knows the rest."""
    right = "an image reference without spaces, such as registry.example.com/team/pytorch:2.9"
    return named(about, r"^[^\s]+$", "image", right, most=1024, **more)


def bucket_prefix(about: str, name: str, **more: Any) -> Field:
    """A place in S3 that other keys go below."""
    right = "s3://bucket or s3://bucket/prefix"
    return named(about, rf"^s3://{_BUCKET}(/[^\s]*)?$", name, right, most=1024, **more)


def bucket_object(about: str, name: str, **more: Any) -> Field:
    """One object in S3."""
    return named(about, rf"^s3://{_BUCKET}/[^\s]+$", name, "s3://bucket/key", most=2048, **more)


def endpoint(about: str, name: str, **more: Any) -> Field:
    """A host with a port."""
    right = "<host>:<port>, the port from 1 to 65535, such as etcd.training.svc:2379"
    return named(about, rf"^{_HOST}:{_PORT}$", name, right, most=261, **more)


def labels(about: str, *, most: int = 64, longest: int = 63, **more: Any) -> Field:
    """A map from keys of labels (or of annotations, which are longer) to their values."""
    return mapping(about, text("The value of this key.", most=longest), most=most, **more)


def service_name(most: int) -> Rule:
    """Of a root: the object's name is also that of a Service (RFC 1035) and the beginning of others."""
    right = f"at most {most} lower-case letters, digits and '-', a letter first and no '-' at the end"
    return _name(f"self.metadata.name.matches({_SERVICE!r})", most, right)


def label_name(most: int) -> Rule:
    """Of a root: the object's name is also the value of a label."""
    right = f"at most {most} lower-case letters, digits and '-', a letter or digit at both ends"
    return _name(f"self.metadata.name.matches({f'^{_LABEL}$'!r})", most, right)


def _name(form: str, most: int, right: str) -> Rule:
    return Rule(
        check=f"size(self.metadata.name) <= {most} && {form}",
        message=f"metadata.name must be {right}",
        path=".metadata.name",
    )


def metadata() -> Mapping[str, Any]:
    """The one part of an object's metadata that a definition may say something of, so that a rule can point there."""
    return {"type": "object", "properties": {"name": {"type": "string"}}}
