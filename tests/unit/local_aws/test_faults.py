"""The fault plan refuses values that no launch or call could use."""

from __future__ import annotations

import time

import pytest

from local.aws.faults import TEXTS, BadPlan, Plan


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *((key, value, f"{value!r} must be a text") for key in TEXTS for value in (5, ["a"], {}, True)),
        *(
            (key, value, f"{value!r} must be a whole number of at least 0")
            for key in ("available", "times", "status", "since")
            for value in (-1, 1.5, "1", True, [])
        ),
        ("status", 99999, "99999 must be from 400 to 599"),
        ("since", 10**15, "1000000000000000 must be a number of seconds, at most those since 1970"),
        ("condition", ["a"], "['a'] must be one of AcceleratedHardwareReady, "),
    ],
)
def test_plan_wrong_value_is_refused(key: str, value: object, message: str) -> None:
    with pytest.raises(BadPlan) as refused:
        Plan().replace({"faults": [{"code": "X"}, {"code": "X", key: value}]})
    assert str(refused.value).startswith(f"faults[1].{key}: {message}")


@pytest.mark.parametrize("document", [[], {}, {"faults": {}}, {"faults": [5]}, {"faults": [{"code": 5}]}])
def test_plan_of_another_form_is_refused(document: object) -> None:
    with pytest.raises(BadPlan, match="must be"):
        Plan().replace(document)


@pytest.mark.parametrize("message", ["quota {foo}", "{0}", "{", "}", "{type.x}", "{type} in {zone}"])
def test_plan_message_may_have_braces(message: str) -> None:
    plan = Plan()
    plan.replace({"faults": [{"code": "X", "message": message}]})
    expected = message.replace("{type} in {zone}", "g5.xlarge in us-west-2a")
    assert plan.faults[0].text("g5.xlarge", "us-west-2a") == expected


def test_plan_null_is_a_missing_key() -> None:
    plan = Plan()
    keys = ("condition", "available", "times", "status", "since", *TEXTS)
    plan.replace({"faults": [{"code": "X", **dict.fromkeys(keys)}]})
    (fault,) = plan.faults
    assert (fault.instance_type, fault.status, fault.action) == ("*", 400, None)
    assert fault.since <= time.time()
