"""What a bucket makes of concurrent claims, of bodies that break off, and of an endpoint that is no URL."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError, IncompleteReadError, ReadTimeoutError

from trainer.stores import Bucket, PlaceError, StoreError


class S3:
    def __init__(self, code: str) -> None:
        self._code = code

    def put_object(self, **_request: object) -> dict[str, Any]:
        if not self._code:
            return {}
        raise ClientError({"Error": {"Code": self._code, "Message": "planned"}}, "PutObject")


@pytest.mark.parametrize(
    ("code", "won"), [("", True), ("PreconditionFailed", False), ("ConditionalRequestConflict", False)]
)
def test_claim_beside_another_one_is_not_won(code: str, won: bool) -> None:
    store = Bucket("b", "p")
    store.__dict__["_client"] = S3(code)
    assert store.put_if_absent("owners/1", b"x") is won


@pytest.mark.parametrize(
    "error",
    [ReadTimeoutError(endpoint_url="https://b"), IncompleteReadError(actual_bytes=1, expected_bytes=2)],
)
@pytest.mark.parametrize(("failures", "calls"), [(1, 2), (9, 2)])
def test_body_that_breaks_off_is_read_once_more(error: Exception, failures: int, calls: int) -> None:
    class Broken:
        calls = 0

        def get_object(self, **_request: object) -> dict[str, Any]:
            self.calls += 1
            return {"Body": self}

        def read(self) -> bytes:
            if self.calls <= failures:
                raise error
            return b"x"

    store = Bucket("b", "p")
    store.__dict__["_client"] = s3 = Broken()
    if failures < calls:
        assert store.read("a") == b"x"
    else:
        with pytest.raises(StoreError, match=r"^cannot read s3://b/p/a: "):
            store.read("a")
    assert s3.calls == calls


def test_bucket_with_invalid_endpoint_raises_place_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "nonsense")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    line = r"^cannot reach s3://b/p: Invalid endpoint: nonsense\. Set AWS_ENDPOINT_URL to a URL, or unset it$"
    with pytest.raises(PlaceError, match=line):
        Bucket("b", "p").probe("model.pt")
