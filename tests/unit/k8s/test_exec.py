"""`exec` over real WebSockets."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests.unit.k8s.exec_api import Pods, rest
from trainyard.k8s import exec as k8s_exec
from trainyard.k8s.client import ApiError, ApiUnavailable
from trainyard.k8s.exec import Execution
from trainyard.kubectl.cluster import explained
from trainyard.kubectl.output import PluginError


def execution(pods: Pods, *command: str, stdin: bool = False) -> Execution:
    return Execution(rest(pods), "team", "pod", "torchrun", command, stdin=stdin)


def test_what_a_command_says_and_how_it_ends(pods: Pods) -> None:
    with execution(pods, "sh", "-c", "echo one; echo two; echo bad >&2; exit 3") as running:
        assert running.line() == "one"
        assert running.line() == "two"
        assert running.result() == (3, "bad")
    with execution(pods, "head", "-c", "1000000", "/dev/zero") as running:
        size = 0
        while data := running.read():
            size += len(data)
        assert (size, running.result()) == (1_000_000, (0, ""))


def test_what_nobody_has_read_yet_waits_in_the_pod(pods: Pods) -> None:
    with execution(pods, "head", "-c", "20000000", "/dev/zero") as running:
        size = len(running.read())
        time.sleep(0.1)
        while data := running.read():
            assert len(data) < 2**20, "what came meanwhile is not taken all at once"
            size += len(data)
        assert (size, running.result()) == (20_000_000, (0, ""))


def test_what_is_sent_arrives_whole(pods: Pods) -> None:
    sent = os.urandom(500_000)
    with execution(pods, "sh", "-c", "head -c 500000 > got; echo done", stdin=True) as running:
        for start in range(0, len(sent), 65536):
            running.write(sent[start : start + 65536])
        assert running.line() == "done"
    assert (pods.root / "got").read_bytes() == sent


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("Handshake status 403 Forbidden", ("", "Handshake status 403 Forbidden")),
        ("line -+-+- {} -+-+- b'no json'", ("", "line")),
        ('line -+-+- {} -+-+- {"reason": "Forbidden", "message": "no exec"}', ("Forbidden", "no exec")),
    ],
)
def test_refusal_of_any_form_is_read(said: str, expected: tuple[str, str]) -> None:
    assert k8s_exec._refusal(said) == expected


def test_a_refusal_and_a_broken_connection(pods: Pods) -> None:
    pods.refuse = 403
    with pytest.raises(ApiError) as refused:
        execution(pods, "true")
    assert refused.value.status == 403
    for tells, why in ((True, "no exec for you"), (False, "Handshake status 403 Forbidden")):
        pods.tells = tells
        with (
            pytest.raises(
                PluginError, match=f"namespace team: you may not get and create pods/exec there: {why}$"
            ),
            explained("get and create pods/exec", "team"),
        ):
            execution(pods, "true")
    pods.refuse, pods.cut = 0, 2

    def send() -> None:
        with execution(pods, "cat", stdin=True) as running:
            for _ in range(200):
                running.write(bytes(65536))
            running.result()

    with pytest.raises(ApiUnavailable, match=r"exec in team/pod: the connection broke"):
        send()


def test_the_last_that_a_command_said_is_why_it_ended(pods: Pods) -> None:
    def send() -> None:
        says = "for i in 1 2 3; do echo INFO $i >&2; sleep 0.05; done; echo no space left >&2; exit 1"
        with execution(pods, "sh", "-c", says, stdin=True) as running:
            until = time.monotonic() + 60
            while time.monotonic() < until:
                running.write(bytes(65536))
                time.sleep(0.01)

    with pytest.raises(ApiUnavailable, match=r"the connection broke.*no space left"):
        send()


@pytest.mark.long
def test_execution_without_a_word_ends_after_the_silence(pods: Pods, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(k8s_exec, "_POLL_SECONDS", 0.05)
    with execution(pods, "sh", "-c", "for i in 1 2 3 4; do sleep 0.15; echo $i; done; exit 3") as running:
        monkeypatch.setattr(k8s_exec, "SILENCE_SECONDS", 0.5)
        assert running.result() == (3, "")
    monkeypatch.setattr(k8s_exec, "SILENCE_SECONDS", 60.0)
    with execution(pods, "sleep", "30") as running:
        monkeypatch.setattr(k8s_exec, "SILENCE_SECONDS", 0.1)
        with pytest.raises(ApiUnavailable, match="exec in team/pod: nothing came for 0 s"):
            running.result()
    pods.silent = True
    with pytest.raises(ApiUnavailable, match="exec in team/pod: no answer for 0 s"):
        execution(pods, "true")
    monkeypatch.setattr(k8s_exec, "SILENCE_SECONDS", 60.0)
    pods.waiting.clear()

    def interrupt() -> None:
        assert pods.waiting.wait(20)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        execution(pods, "true")
    thread.join()
