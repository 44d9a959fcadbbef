from __future__ import annotations

import pytest

from local.deploy.progress import Filter

pytestmark = pytest.mark.unit


def shown(text: str) -> list[str]:
    kept = Filter()
    return [line for given in text.splitlines() for line in kept.lines(given)]


def test_what_was_made_is_shown_and_heartbeats_are_not() -> None:
    text = """\
warning: using pulumi-language-python from $PATH at /x/pulumi-language-python
Updating (local):
    pulumi:pulumi:Stack trainyard-local  warning: using pulumi-resource-aws from $PATH at /x
@ updating....
 +  aws:ec2:Vpc trainyard-local creating (0s)
 +  aws:ec2:Vpc trainyard-local created (6s)
"""
    assert shown(text) == ["Updating (local):", " +  aws:ec2:Vpc trainyard-local created (6s)"]


def test_the_number_of_our_plugins_warnings_is_left_out() -> None:
    line = " +  pulumi:pulumi:Stack trainyard-local created (29s)"
    assert shown(f"{line} 11 warnings") == [line]


def test_a_wait_with_a_message_is_shown() -> None:
    line = " +  kubernetes:apps/v1:Deployment app creating (3s) Waiting for app ReplicaSet to be available"
    assert shown(line) == [line]


def test_diagnostics_that_hold_only_our_plugins_warnings_vanish() -> None:
    text = """\
 +  pulumi:pulumi:Stack trainyard-local created (130s)
Diagnostics:
  pulumi:pulumi:Stack (trainyard-local):
    warning: using pulumi-resource-aws from $PATH at /x

Resources:
    + 155 created
"""
    assert shown(text)[1:] == ["", "Resources:", "    + 155 created"]


def test_an_error_stays_under_its_headings() -> None:
    text = """\
Diagnostics:
  pulumi:pulumi:Stack (trainyard-local):
    warning: using pulumi-resource-aws from $PATH at /x
    error: update failed

  aws:ec2:Vpc (trainyard-local):
    error: no room
"""
    assert shown(text) == [
        "Diagnostics:",
        "  pulumi:pulumi:Stack (trainyard-local):",
        "    error: update failed",
        "",
        "  aws:ec2:Vpc (trainyard-local):",
        "    error: no room",
    ]


def test_the_programs_end_by_the_engine_after_a_failure_is_left_out() -> None:
    text = """\
Diagnostics:
  pulumi:pulumi:Stack (trainyard-local):
    error: update failed

    Traceback (most recent call last):
      File "x", line 1, in <module>
        run()
    KeyboardInterrupt

  aws:ec2:Vpc (trainyard-local):
    error: no room
"""
    lines = shown(text)
    assert not any("Traceback" in line or "KeyboardInterrupt" in line for line in lines)
    assert lines[-1] == "    error: no room"


def test_any_other_traceback_is_shown_whole() -> None:
    text = "    Traceback (most recent call last):\n      File x\n    ValueError: wrong"
    assert shown(text) == text.splitlines()
