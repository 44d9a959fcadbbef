from __future__ import annotations

import pytest

from trainyard.cli.progress import Filter


def shown(text: str, command: str = "up") -> list[str]:
    kept = Filter(command)
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


@pytest.mark.parametrize("word", ["created", "deleted", "created replacement", "deleted original"])
def test_what_is_done_does_not_look_as_if_it_still_waited(word: str) -> None:
    row = f" +  kubernetes:apps/v1:Deployment app:web/app {word} (12s)"
    waiting = f"{row} Waiting for app ReplicaSet to be available (0/1 Pods available)"
    assert shown(waiting) == [row]
    for telling in (f"{row} error: no room", f"{row} warning: old", f"{row} [diff: ~spec]"):
        assert shown(telling) == [telling]


def test_what_is_unchanged_is_not_listed() -> None:
    text = """\
Refreshing (local):
 ~  aws:ec2:Vpc trainyard-local refreshing (0s)
    aws:ec2:Vpc trainyard-local  
    aws:ec2:Vpc trainyard-local refresh (0.25s) 
 ~  aws:iam:Role node updated (0.3s) [diff: ~tags]
Resources:
    ~ 1 updated
    174 unchanged
"""
    assert shown(text, "refresh") == [
        "Refreshing (local):",
        " ~  aws:iam:Role node updated (0.3s) [diff: ~tags]",
        "Resources:",
        "    ~ 1 updated",
        "    174 unchanged",
    ]


def test_drain_lines_are_shown_once_as_they_arrive() -> None:
    text = """\
    pulumi:pulumi:Stack trainyard-local  drain of trainyard-local: 0 s: deleting launcher Jobs: launch-r1
 -  pulumi-python:dynamic:Drain drain deleted (19s)
Diagnostics:
  pulumi:pulumi:Stack (trainyard-local):
    drain of trainyard-local: 0 s: deleting launcher Jobs: launch-r1
    remains of trainyard-local: 0 s: removed log group /aws/eks/trainyard-local/cluster

Resources:
    - 175 deleted
"""
    assert shown(text, "destroy") == [
        "    pulumi:pulumi:Stack trainyard-local  drain of trainyard-local: 0 s: deleting launcher Jobs: launch-r1",
        " -  pulumi-python:dynamic:Drain drain deleted (19s)",
        "Diagnostics:",
        "  pulumi:pulumi:Stack (trainyard-local):",
        "    remains of trainyard-local: 0 s: removed log group /aws/eks/trainyard-local/cluster",
        "",
        "Resources:",
        "    - 175 deleted",
    ]


def test_repeated_warnings_are_shown_once() -> None:
    text = """\
    pulumi:pulumi:Stack trainyard-local  warning: pools[0].purchase is spot
    pulumi:pulumi:Stack trainyard-local  warning: queues[0].nodeResources.gpus is 0
 +  pulumi:pulumi:Stack trainyard-local create warning: queues[0].nodeResources.gpus is 0
 +  pulumi:pulumi:Stack trainyard-local creating (0s) warning: queues[0].nodeResources.gpus is 0
 +  pulumi:pulumi:Stack trainyard-local creating (0s) warning: using pulumi-resource-aws from $PATH at /x
 +  aws:s3:Bucket models creating (0s) warning: acl is deprecated
 +  aws:s3:Bucket models created (2s) warning: acl is deprecated
 ~  aws:s3:Bucket logs updating (0s) warning: acl is deprecated
 ~  aws:s3:Bucket logs updated (2s) warning: acl is deprecated
 +  pulumi:pulumi:Stack trainyard-local created (2s) 4 warnings
Diagnostics:
  aws:s3:Bucket (models):
    warning: acl is deprecated

  pulumi:pulumi:Stack (trainyard-local):
    warning: using pulumi-resource-aws from $PATH at /x
    warning: pools[0].purchase is spot
    warning: queues[0].nodeResources.gpus is 0
%s
Resources:
"""
    live = [
        "    pulumi:pulumi:Stack trainyard-local  warning: pools[0].purchase is spot",
        "    pulumi:pulumi:Stack trainyard-local  warning: queues[0].nodeResources.gpus is 0",
        " +  aws:s3:Bucket models creating (0s) warning: acl is deprecated",
        " +  aws:s3:Bucket models created (2s)",
        " ~  aws:s3:Bucket logs updated (2s)",
        " +  pulumi:pulumi:Stack trainyard-local created (2s)",
    ]
    assert shown(text % "") == [*live, "", "Resources:"]
    diagnostics = ["Diagnostics:", "  pulumi:pulumi:Stack (trainyard-local):", "    warning: new"]
    assert shown(text % "    warning: new\n") == [*live, *diagnostics, "", "Resources:"]


@pytest.mark.parametrize(
    ("count", "lines"), [(1, []), (3, ["    - 2 deleted"])], ids=("nothing else went", "two others went")
)
def test_run_removed_from_state_is_reported_as_kept(count: int, lines: list[str]) -> None:
    text = f"""\
 -  kubernetes:batch/v1:Job launch-lab1 deleting (0s)[retain] 
 -  kubernetes:batch/v1:Job launch-lab1 deleted (0.06s)[retain] 
Resources:
    + 1 created
    - {count} deleted
"""
    assert shown(text) == [
        " -  kubernetes:batch/v1:Job launch-lab1 kept, no longer in the state",
        "Resources:",
        "    + 1 created",
        *lines,
        "    - 1 kept, no longer in the state",
    ]


def test_a_destroy_does_not_say_that_it_kept_what_the_drain_has_ended() -> None:
    text = " -  kubernetes:batch/v1:Job launch-r1 deleted (0.02s)[retain]\n    - 175 deleted"
    assert shown(text, "destroy") == text.splitlines()
