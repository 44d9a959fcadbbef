"""Flags, environment, defaults and what is said about mistakes."""

from __future__ import annotations

import pytest

from trainer.config import Config
from trainer.contract import Exit, TrainerError


def refused(arguments: list[str], environ: dict[str, str]) -> str:
    with pytest.raises(TrainerError) as caught:
        Config.read(arguments, environ)
    assert caught.value.code == Exit.CONFIGURATION
    return str(caught.value)


def test_without_flags_and_environment_the_defaults_hold() -> None:
    config = Config.read([], {})
    assert config == Config()
    assert (config.data, config.device, config.model_uri) == ("digits", None, None)


def test_flag_wins_over_environment_and_that_over_default() -> None:
    environ = {
        "TRAINYARD_EXPECTED_NODES": "3",
        "TRAINYARD_PROCESSES_PER_NODE": "4",
        "TRAINYARD_RUN_ID": "r7",
        "TRAINYARD_RESTART": "2",
        "TRAINYARD_DEVICE": "cuda",
        "TRAINYARD_MODEL_URI": "s3://models/runs",
        "TRAINYARD_DATA": "/data/mnist",
        "TRAINYARD_CHECKPOINT_URI": "",  # counts as unset
    }
    config = Config.read(["--run-id", "flag"], environ)
    assert (config.expected_nodes, config.processes_per_node, config.restart) == (3, 4, 2)
    assert (config.device, config.model_uri, config.data) == ("cuda", "s3://models/runs", "/data/mnist")
    assert (config.run_id, config.checkpoint_uri) == ("flag", None)
    assert Config.read([], environ).run_id == "r7"


def test_config_reports_all_errors_together() -> None:
    message = refused(
        [
            *("--epochs", "many", "--batch-size=0", "--learning-rate", "-1", "--epoch", "3"),
            *("--model", "llama", "--precision", "int8", "--parallel", "fsdp", "--weight-decay", "nan"),
            *("--metrics-port", "70000", "--checkpoint-uri", "s3://bucket/a?b", "--restart", "-1"),
        ],
        {"TRAINYARD_DEVICE": "tpu", "TRAINYARD_EXPECTED_NODES": "2.5", "TRAINYARD_MODEL_URI": "https://x/y"},
    )
    for part in (
        "--epochs: 'many' is not a whole number",
        "batch_size: 0 is less than 1",
        "learning_rate: -1.0 is not a positive number",
        "--epoch: no such option",
        "restart: -1 is less than 0",
        "device: 'tpu' is not one of cuda, cpu",
        "model: 'llama' is not one of convnet, gpt-tiny",
        "precision: 'int8' is not one of auto, bf16, fp16, fp32",
        "weight_decay: nan is not a finite number",
        "metrics_port: 70000 is not a port",
        "checkpoint_uri: 's3://bucket/a?b' has a '?'; a place must have neither a query nor a fragment",
        "TRAINYARD_EXPECTED_NODES: '2.5' is not a whole number",
        "model_uri: 'https://x/y' must be s3://bucket/prefix, file:///path or a path",
    ):
        assert part in message


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--batch-size=0", "--epochs"], ["--epochs", "batch_size"]),
        (["--epochs", "--batch-size", "0"], ["--epochs", "batch_size"]),
        (["--epochs", "--seed", "--seed", "-1"], ["--epochs", "--seed"]),
        (["--owner=--", "--epoch", "3", "--device"], ["--epoch", "3", "--owner", "--device"]),
        (["--learning-rate", "-1e-3"], ["-1e-3", "--learning-rate"]),
    ],
)
def test_flag_without_value_hides_no_other_error(words: list[str], names: list[str]) -> None:
    message = refused(words, {})
    assert [part.partition(":")[0] for part in message.split("; ") if ": " in part] == names
    assert "--epochs: has no value; it must be followed by one" in message or "--epochs" not in words


def test_help_shows_one_value_per_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        Config.read(["--help"], {})
    output = capsys.readouterr().out
    assert "--epochs VALUE" in output
    assert "-h, --help  " in output


@pytest.mark.parametrize("name", ["", "Run", "a_b", "-a", "a/b", "a" * 41])
def test_a_run_id_that_is_no_label_is_refused(name: str) -> None:
    assert f"run_id: {name!r}" in refused([f"--run-id={name}"], {})


def test_fsdp_with_fp16_is_accepted() -> None:
    assert Config.read(["--parallel", "fsdp", "--precision", "fp16"], {}).precision == "fp16"


@pytest.mark.parametrize("value", ["nan", "inf", "0"])
def test_a_learning_rate_that_is_no_positive_number_is_refused(value: str) -> None:
    assert "learning_rate" in refused(["--learning-rate", value], {})


@pytest.mark.parametrize("value", ["0", "nan", "inf", "1e9", "1e300"])
@pytest.mark.parametrize("name", ["timeout-seconds", "start-timeout-seconds"])
def test_a_time_that_torch_cannot_count_is_refused(name: str, value: str) -> None:
    message = refused([f"--{name}", value], {})
    assert message == (
        f"{name.replace('-', '_')}: {float(value)} is not a number of seconds above 0 and up to 100000000"
    )
