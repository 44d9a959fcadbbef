"""Rules for a run's pool and worker environment: the settings refuse what the launcher would refuse."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from infra.settings import SettingsError, read
from launcher.backends import pytorchjob
from launcher.request import Request
from tests.unit.infra.changing import NOW, POOL, mistakes, settings, with_
from tests.unit.infra.test_launch_request import request_of as request_of_training

RESERVED = [
    *(
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "MASTER_ADDR",
        "MASTER_PORT",
        "PET_NNODES",
        "PET_X",
        "TORCHELASTIC_RUN_ID",
    ),
    *(
        "AWS_ROLE_ARN",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
    ),
    *("AWS_REGION", "TRAINYARD_DATA", "TRAINYARD_RUN_ID"),
]


def with_training(**change: Any) -> dict[str, Any]:
    return with_({"training": {"pool": "small", "runId": "r1", "minNodes": 1, "maxNodes": 4, **change}})


def request_of(config: dict[str, Any]) -> Request:
    training = read("test", config, NOW).training
    assert training is not None
    return request_of_training(training)


@pytest.mark.parametrize("name", ["A B", "", "1A", "A=B", "A-B.c", "Ä", "A\n"])
def test_invalid_variable_name_is_reported_once(name: str) -> None:
    (line,) = mistakes(with_training(env={name: "x"}))
    assert line.startswith("trainyard:training.env.")
    assert "it must be letters, digits and underscores, no digit first" in line


@pytest.mark.parametrize(("name", "what"), [(True, "a boolean"), (None, "nothing"), (5, "a whole number")])
def test_variable_name_that_is_no_string_is_reported_once(name: Any, what: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read("test", with_training(env={name: "x"}), NOW)
    (line,) = caught.value.lines
    key = {True: "true", None: "null", 5: "5"}[name]
    assert line.startswith(
        f"trainyard:training.env.{key}: has the key {key}, which is {what}; it must be a text"
    )


def test_secrets_reach_the_workers_as_references() -> None:
    config = with_training(secrets=["HF_TOKEN", "W=wandb/key", "X=wandb"], env={"A": "1"})
    request = request_of(config)
    assert dict(request.worker.secrets) == {"HF_TOKEN": "hf-token/HF_TOKEN", "W": "wandb/key", "X": "wandb/X"}
    for replica in pytorchjob.build(request, 2, "")["spec"]["pytorchReplicaSpecs"].values():
        env = {each["name"]: each for each in replica["template"]["spec"]["containers"][0]["env"]}
        assert env["A"] == {"name": "A", "value": "1"}
        assert env["HF_TOKEN"] == {
            "name": "HF_TOKEN",
            "valueFrom": {"secretKeyRef": {"name": "hf-token", "key": "HF_TOKEN"}},
        }
        assert env["W"]["valueFrom"] == {"secretKeyRef": {"name": "wandb", "key": "key"}}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["1A"], "secrets[0]"),
        (["A=Upper/key"], "it must be NAME or NAME=SECRET/KEY"),
        (["A=x/"], "it must be NAME or NAME=SECRET/KEY"),
        (["A=x/y/z"], "it must be NAME or NAME=SECRET/KEY"),
        (["_A_"], "_A_ is not the name of a Secret; it must be NAME or NAME=SECRET/KEY"),
        (["A", "A=x/y"], "secrets[1]: A is listed twice"),
        (["B"], "B is also in env"),
        (
            ["AWS_SECRET_ACCESS_KEY"],
            "is for credentials, and workers have those of their service account's role",
        ),
        (["RANK"], "is set for each worker"),
        (["TRAINYARD_DATA"], "is set by the stack itself"),
    ],
)
def test_forbidden_secret_is_reported_once(entries: list[str], message: str) -> None:
    (line,) = mistakes(with_training(secrets=entries, env={"B": "1"}))
    assert line.startswith("trainyard:training.secrets[")
    assert message in line


@pytest.mark.parametrize("name", RESERVED)
def test_reserved_variable_is_reported_once(name: str) -> None:
    (line,) = mistakes(with_training(env={name: "x"}))
    assert line.startswith(f"trainyard:training.env.{name}: is ")
    assert "it must be " in line


@pytest.mark.parametrize("text", ["", "0", "541", "2m", "-5", "1.5", "²"])
def test_invalid_stop_time_is_reported_once(text: str) -> None:
    (line,) = mistakes(with_training(env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": text}))
    assert line == (
        f"trainyard:training.env.TORCH_ELASTIC_SHUTDOWN_TIMEOUT: is {text!r}; "
        "it must be a whole number of seconds from 1 to 540"
    )


@pytest.mark.parametrize("text", ["1", "540"])
def test_stop_time_at_its_limits_reaches_the_workers(text: str) -> None:
    env = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": text}
    assert request_of(with_training(env=env)).worker.env.items() >= env.items()


@pytest.mark.parametrize(
    "name", ["NCCL_DEBUG", "FI_EFA_USE_HUGE_PAGE", "PATH", "RANKS", "AWS_MAX_ATTEMPTS", "_x", "PETS"]
)
def test_unreserved_variable_is_accepted(name: str) -> None:
    assert request_of(with_training(env={name: "x"})).worker.env[name] == "x"


def test_null_character_is_reported() -> None:
    (line,) = mistakes(with_training(env={"A": "x\0y"}))
    assert (
        line == r"trainyard:training.env.A: 'x\x00y' is invalid; it must be a text without a null character"
    )


def test_more_nodes_than_the_pool_allows_are_reported() -> None:
    (line,) = mistakes(with_training(minNodes=5, maxNodes=8))
    assert line == (
        "trainyard:training.minNodes: 5 is more than the pool 'small' may have; it must be at most 4, its maxNodes"
    )
    run = settings(with_training(minNodes=4, maxNodes=8)).training
    assert run is not None
    assert (run.min_nodes, run.max_nodes) == (4, 8), "the launcher bounds what is wished for"


BLOCK = {
    **POOL,
    "name": "block",
    "instanceType": "p5.48xlarge",
    "purchase": "reserved",
    "reservationType": "capacity-block",
    "capacityReservationIds": ["cr-0123456789abcdef0", "cr-0123456789abcdef1"],
}


@pytest.mark.parametrize("run", [{"pool": "block"}, {"fallbackPools": ["block"]}], ids=["first", "fallback"])
def test_run_on_capacity_block_needs_its_end(run: dict[str, Any]) -> None:
    """Without the end, the launcher would refuse the run after the deployment."""
    config = with_training(**run)
    config["trainyard:pools"] = [POOL, BLOCK]
    (line,) = mistakes(config)
    assert line.startswith("trainyard:pools[1].reservationEnds: is missing, and training.runId starts a run")
    assert "--capacity-reservation-ids cr-0123456789abcdef0 cr-0123456789abcdef1 --query" in line
    assert read("test", config, NOW, takes_ended=True).training is not None, "who deploys nothing starts none"
    config["trainyard:pools"][1] = {**BLOCK, "reservationEnds": "2027-01-31T11:30:00Z"}
    assert request_of(config).min_nodes == 1
    config["trainyard:pools"][1] = {**BLOCK, "reservationType": "odcr"}
    assert request_of(config).min_nodes == 1, "its machines outlive it"


def test_capacity_block_without_run_on_it_needs_no_end() -> None:
    for run in ({"pool": "block", "runId": None}, {"pool": "small"}):
        config = with_training(**run)
        config["trainyard:pools"] = [POOL, BLOCK]
        assert settings(config).training is not None


def test_capacity_block_after_invalid_pool_has_its_own_index() -> None:
    config = with_training(pool="block")
    config["trainyard:pools"] = [{**POOL, "maxNodes": 0}, BLOCK]
    assert [line.partition(": ")[0] for line in mistakes(config)] == [
        "trainyard:pools[0].maxNodes",
        "trainyard:pools[1].reservationEnds",
    ]


NAMES = (
    st.text(max_size=8) | st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True) | st.sampled_from(RESERVED)
)


@hypothesis_settings(max_examples=50)
@given(
    st.dictionaries(NAMES, st.text(max_size=8), max_size=3),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(1, 6),
)
@pytest.mark.long
def test_valid_run_is_readable_by_the_launcher(
    env: dict[str, str], least: int, most: int, ceiling: int
) -> None:
    config = with_training(env=env, minNodes=least, maxNodes=most)
    config["trainyard:pools"] = [{**POOL, "maxNodes": ceiling}]
    try:
        request = request_of(config)
    except SettingsError:
        return
    assert set(env.items()) <= set(request.worker.env.items()), "one was overwritten"
    assert request.min_nodes <= min(request.max_nodes, request.pool.max_nodes)


@pytest.mark.parametrize("key", ["memory", "sharedMemory", "cpu"])
def test_invalid_quantity_is_reported_once_with_its_key(key: str) -> None:
    run = {"pool": "small", "minNodes": 1, "maxNodes": 4}
    (line,) = mistakes(with_({"training": {**run, key: ""}}))
    assert line.startswith(f"trainyard:training.{key}: ")


def test_run_has_pytorchjobs_unless_stack_file_names_trainjobs() -> None:
    assert request_of(with_training()).backend == "pytorchjob"
    assert request_of(with_training(backend="trainjob")).backend == "trainjob"


def test_elastic_shape_with_trainjobs_is_refused() -> None:
    assert settings(with_training(shape="elastic")).training_operator
    (line,) = mistakes(with_training(shape="elastic", backend="trainjob"))
    assert line.startswith("trainyard:training.shape: is elastic, and backend is trainjob")
    (line,) = mistakes(with_training(shape="elastic", backend="mpijob"))
    assert line.startswith("trainyard:training.backend: 'mpijob'")


@pytest.mark.parametrize(
    ("backend", "mpi", "operator", "trainer"),
    [
        ("pytorchjob", False, True, False),
        ("trainjob", False, False, True),
        ("trainjob", True, True, True),
        (None, False, True, False),
    ],
)
def test_stack_has_operators_of_jobs_that_it_runs(
    backend: str | None, mpi: bool, operator: bool, trainer: bool
) -> None:
    config = with_training(backend=backend) if backend else with_({})
    found = settings({**config, "trainyard:mpi": mpi})
    assert (found.training_operator, found.kubeflow_trainer) == (operator, trainer)
