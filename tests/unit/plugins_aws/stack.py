"""The AWS plugin as the engine calls it, on the account of the emulator."""

from __future__ import annotations

import json
from typing import Any

from local.plugins.aws.cloud import Cloud
from local.plugins.aws.provider import AwsProvider
from local.plugins.provider import (
    CheckRequest,
    CreateRequest,
    DeleteRequest,
    DiffRequest,
    ReadRequest,
    UpdateRequest,
)

Values = dict[str, Any]


def policy(action: str) -> str:
    return json.dumps(
        {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": action, "Resource": "*"}]}
    )


TRUST = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": "ec2.amazonaws.com"}}
        ],
    }
)


class Stack:
    """A few resources of one provider. Each is a token, an id, and the inputs and outputs of the state."""

    def __init__(self) -> None:
        self.provider = AwsProvider()
        self.provider.configure({"region": "us-west-2"})
        self.cloud = Cloud("us-west-2")
        self.provider._made = self.cloud

    def who(self, token: str) -> dict[str, str]:
        return {"urn": f"urn:pulumi:dev::p::{token}::thing", "type": token, "name": "thing"}

    def checked(self, token: str, inputs: Values, old: Values | None = None) -> Values:
        result = self.provider.check(
            CheckRequest(**self.who(token), inputs=inputs, old_inputs=old, seed=b"s")
        )
        assert result.failures == []
        return result.inputs

    def make(self, token: str, **inputs: Any) -> tuple[str, Values, Values]:
        checked = self.checked(token, inputs)
        rid, outputs = self.provider.create(CreateRequest(**self.who(token), inputs=checked, preview=False))
        return rid, checked, outputs

    def drift(self, token: str, rid: str, inputs: Values, outputs: Values) -> Values | None:
        found = self.provider.read(ReadRequest(**self.who(token), id=rid, inputs=inputs, outputs=outputs))
        if found is None:
            return None
        return {k: v for k, v in found.inputs.items() if inputs.get(k) != v}

    def imported(self, token: str, rid: str) -> Values | None:
        """The outputs of an import by id alone."""
        found = self.provider.read(ReadRequest(**self.who(token), id=rid, inputs={}, outputs={}))
        return None if found is None else found.outputs

    def update(self, token: str, rid: str, old: Values, **change: Any) -> tuple[Values, Values]:
        """Change a resource in place; the new inputs and outputs, without drift."""
        own = {k: v for k, v in old.items() if not k.startswith("__") and k != "tagsAll"}
        new = self.checked(token, {**own, **change}, old)
        request = UpdateRequest(
            **self.who(token), id=rid, old_inputs=old, old_outputs={}, inputs=new, preview=False
        )
        outputs = self.provider.update(request)
        assert self.drift(token, rid, new, outputs) == {}
        return new, outputs

    def replaced(self, token: str, old: Values, **change: Any) -> list[str]:
        """The inputs for which the change needs another resource."""
        request = DiffRequest(
            **self.who(token), id="one", old_inputs=old, old_outputs={}, inputs={**old, **change}
        )
        return self.provider.diff(request).replaces

    def delete(self, token: str, rid: str, inputs: Values, outputs: Values | None = None) -> None:
        """Delete a resource twice: what is gone is gone, and is seen to be."""
        state = outputs or inputs
        for _ in range(2):
            self.provider.delete(DeleteRequest(**self.who(token), id=rid, inputs=inputs, outputs=state))
        assert self.drift(token, rid, inputs, state) is None
