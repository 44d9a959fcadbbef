"""Arguments of the built trainer: invalid ones are refused before any node is launched."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from infra.settings.trainer_options import wrong
from tests.unit.infra.changing import mistakes, settings, with_
from trainer.config import Config
from trainer.contract import TrainerError
from trainyard.k8s.names import TRAINER_OPTIONS

TRAINING = {"pool": "small", "minNodes": 1, "maxNodes": 2}
IMAGE = f"registry.example/trainer@sha256:{'0' * 64}"
# Values that are valid for every kind of option, so only the option names are checked.
WORDS = [
    "--epochs",
    "--seed",
    "--epochs=1",
    "--seed=",
    "--seed=--",
    "--epoks",
    "--help",
    "-e",
    "-",
    "--",
    "",
    "1",
    "-1",
    "a b",
]


def errors(*words: str) -> list[str]:
    return mistakes(with_({"training": {**TRAINING, "args": list(words)}}))


def test_misspelt_option_is_reported_with_a_suggestion() -> None:
    assert errors("--seed", "7", "--epoks", "10") == [
        "trainyard:training.args[2]: '--epoks' is no option of the trainer (trainer/config.py); did you mean --epochs?"
    ]
    (line,) = errors("verbose")
    assert line.startswith("trainyard:training.args[0]: 'verbose' is no option of the trainer")
    assert "it must be one of --epochs, --steps, " in line


def test_option_without_value_is_reported() -> None:
    line = "'--epochs' has no value; it must be followed by one"
    assert errors("--epochs", "--seed", "7") == [f"trainyard:training.args[0]: {line}"]
    assert errors("--seed=7", "--epochs") == [f"trainyard:training.args[1]: {line}"]


def test_arguments_of_an_own_trainer_are_not_checked() -> None:
    config = with_({"training": {**TRAINING, "args": ["--epoks"]}, "images": {"trainer": IMAGE}})
    training = settings(config).training
    assert training is not None
    assert training.args == ("--epoks",)


def test_argument_that_is_no_string_is_reported_alone() -> None:
    config = with_({"training": {**TRAINING, "args": ["--epochs", 10]}})
    assert [line.partition(": ")[0] for line in mistakes(config)] == ["trainyard:training.args[1]"]


@hypothesis_settings(max_examples=80)
@given(st.lists(st.sampled_from(WORDS), max_size=5))
def test_arguments_are_refused_as_by_the_trainers_parser(words: list[str]) -> None:
    refused = False
    try:
        Config.read(words, {})
    except TrainerError as error:
        # Values are not checked here.
        refused = "no such option" in str(error) or "has no value" in str(error)
    except SystemExit:  # --help
        refused = True
    assert bool(list(wrong(words))) == refused


def test_every_option_of_the_trainer_is_accepted() -> None:
    words = [f"--{each.name.replace('_', '-')}={each.default}" for each in fields(Config)]
    assert list(wrong(words)) == []
    assert len(words) == len(TRAINER_OPTIONS)
