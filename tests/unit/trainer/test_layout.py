"""Which checkpoints count, and which go."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.checkpoint import layout
from trainer.checkpoint.layout import MANIFEST, File, Manifest, Tensor

SHA = "0" * 64


def manifest(**changes: object) -> Manifest:
    said: dict[str, object] = {
        "step": 1200,
        "position": 76_800,
        "world_size": 2,
        "data_digest": "d1",
        "fingerprint": {"model.w": Tensor((2, 3), "float32")},
        "files": {"a-0-0.distcp": File(10, SHA), ".metadata": File(3, SHA)},
        "notes": {"run": "r1"},
    }
    return Manifest(**{**said, **changes})  # type: ignore[arg-type]


def test_a_manifest_says_the_same_after_a_round_trip() -> None:
    assert Manifest.decode(manifest().encode()) == manifest()


@pytest.mark.parametrize(
    ("was", "becomes"),
    [
        (b'"position": 76800', b'"position": 76801'),
        (b'"data_digest": "d1"', b'"data_digest": "d2"'),
        (b'"model.w"', b'"model.v"'),
        (b'"run": "r1"', b'"run": "r2"'),
        (b'"sha256": "' + json.loads(manifest().encode())["sha256"].encode(), b'"sha256": "' + b"0" * 64),
        (b'"sha256": "' + json.loads(manifest().encode())["sha256"].encode(), b'"sha257": "' + b"0" * 64),
    ],
)
def test_a_manifest_in_which_a_character_flipped_is_damaged(was: bytes, becomes: bytes) -> None:
    body = manifest().encode()
    assert body.count(was) == 1
    with pytest.raises(ValueError, match=r"manifest\.json has SHA-256 [0-9a-f]{12}, expected "):
        Manifest.decode(body.replace(was, becomes))


def test_the_digest_of_a_manifest_is_of_its_content_alone() -> None:
    said = json.loads(manifest(notes={1: 0.1, "a": float("inf")}).encode())
    assert Manifest.decode(json.dumps(said, indent=7).encode()).notes == {"1": 0.1, "a": float("inf")}


def test_names_sort_as_their_steps() -> None:
    assert layout.name(1200) == "step-000001200"


def broken(change: Callable[[dict[str, object]], object]) -> bytes:
    said = json.loads(manifest().encode())
    change(said)
    return layout.sealed(said)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", r"manifest\.json is not JSON \(0 bytes\)"),
        (manifest().encode()[:-20], "is not JSON"),
        (b"\xff\xfe{}", "is not JSON"),
        (b"[]", "has format None, expected 1"),
        (broken(lambda said: said.update(format=2)), "has format 2, expected 1"),
        (
            broken(lambda said: said.update(files={"../a": {"bytes": 1, "sha256": SHA}})),
            r"'\.\./a' is not a file name",
        ),
    ],
)
def test_invalid_manifest_names_the_problem(body: bytes, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Manifest.decode(body)


def test_only_steps_with_a_manifest_are_finished() -> None:
    listing = {
        "step-000000010/manifest.json": 5,
        "step-000000010/a": 1,
        "step-000000030/a": 1,
        "step-000000020/manifest.json": 5,
        "step-000000020/.manifest.json.x.part": 5,
        "step-20/manifest.json": 5,
        "owners/000001.json": 5,
        "run/model.pt": 5,
    }
    assert layout.finished(listing) == [20, 10]
    assert list(layout.by_step(listing)) == [30, 20, 10]


@pytest.mark.parametrize(
    ("sizes", "problem"),
    [
        ({"a-0-0.distcp": 10, ".metadata": 3, "more": 1}, None),
        ({"a-0-0.distcp": 10}, ".metadata is missing"),
        ({"a-0-0.distcp": 0, ".metadata": 3}, "a-0-0.distcp has 0 bytes, expected 10"),
    ],
)
def test_sizes_show_what_is_torn(sizes: dict[str, int], problem: str | None) -> None:
    assert layout.torn(manifest().files, sizes) == problem


def test_difference_names_the_first_tensor() -> None:
    saved = {"a": Tensor((2,), "float32"), "b": Tensor((3, 4), "float32")}
    assert layout.difference(saved, dict(saved)) is None
    for model, message in (
        (
            {**saved, "b": Tensor((3, 5), "float32")},
            "b: the checkpoint has float32[3, 4], the model float32[3, 5]",
        ),
        ({**saved, "a": Tensor((2,), "bfloat16")}, "a: the checkpoint has float32[2], the model bfloat16[2]"),
        ({"b": saved["b"]}, "a: the checkpoint has float32[2], the model none"),
        ({**saved, "aa": Tensor((), "int64")}, "aa: the checkpoint has none, the model int64[]"),
    ):
        assert layout.difference(saved, model) == message


steps = st.dictionaries(st.integers(0, 40), st.booleans(), min_size=1)


@settings(max_examples=50)
@given(steps=steps, keep=st.integers(1, 5), data=st.data())
def test_keep_k_keeps_the_good_ones(steps: dict[int, bool], keep: int, data: st.DataObject) -> None:
    """Whatever is there: the newest good one and what is newer stay, and as many good ones as there are up to k."""
    steps[data.draw(st.sampled_from(sorted(steps)))] = True
    listing = {
        f"{layout.name(step)}/{each}": 1
        for step, whole in steps.items()
        for each in ([MANIFEST, "a"] if whole else ["a"])
    }
    whole = [step for step in sorted(steps) if steps[step]]
    newest_good = data.draw(st.sampled_from(whole))
    damaged = data.draw(st.sets(st.sampled_from(sorted(steps)))) - {newest_good}
    gone = layout.surplus(listing, newest_good, keep, damaged)

    assert gone == sorted(gone)
    assert all(step < newest_good for step in gone)
    good = [step for step in whole if step <= newest_good and step not in damaged]
    assert [step for step in good if step not in gone] == good[-keep:]
    assert all(step in gone for step in steps if step < newest_good and step not in good)
    after = {
        path: size for path, size in listing.items() if next(iter(layout.by_step({path: 1}))) not in gone
    }
    assert layout.surplus(after, newest_good, keep, damaged) == []
