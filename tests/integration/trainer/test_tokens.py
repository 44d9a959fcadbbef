"""Token files: the tokens of a sample, and the errors for missing, damaged and unsupported files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.integration.trainer.conftest import ROOT
from trainer.contract import Exit, TrainerError
from trainer.workloads import MODELS, gpt, has_tokens, load
from trainer.workloads.gpt import TokenFile

pytestmark = pytest.mark.trainer

CORPUS = ROOT / "trainer" / "corpus"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """nanoGPT's two files, without a meta.json."""
    random = np.random.default_rng(0)
    for name, count in (("train.bin", 1000), ("val.bin", 200)):
        random.integers(0, 50257, count).astype("<u2").tofile(tmp_path / name)
    return tmp_path


def load_error(data: Path | str, model: str | None = None, sequence: int | None = 64) -> tuple[Exit, str]:
    with pytest.raises(TrainerError) as caught:
        load(str(data), model, sequence)
    assert "\n" not in str(caught.value)
    return caught.value.code, str(caught.value)


@given(st.integers(1, 300), st.integers(1, 40))
def test_every_token_after_the_first_is_a_target_once(more: int, sequence: int) -> None:
    count = sequence + more
    file = TokenFile(Path("train.bin"), np.arange(count, dtype="<u2"), 340, sequence)
    rows = file.rows(np.arange(file.samples))
    assert file.samples == (count - 1) // sequence
    assert rows[:, 1:].flatten().tolist() == list(range(1, file.samples * sequence + 1))
    assert (rows[:, :-1] + 1 == rows[:, 1:]).all()


def test_batch_has_the_samples_of_its_indices(tokens: Path) -> None:
    workload = load(str(tokens), "gpt-tiny")
    raw = np.fromfile(tokens / "train.bin", "<u2").astype(int)
    inputs, targets = workload.batch(np.array([14, 0, 14]), "train")
    for row, index in enumerate((14, 0, 14)):
        assert inputs[row].tolist() == raw[index * 64 : index * 64 + 64].tolist()
        assert targets[row].tolist() == raw[index * 64 + 1 : index * 64 + 65].tolist()
    assert inputs.is_contiguous()
    assert targets.is_contiguous()
    assert (workload.train_samples, workload.test_samples, workload.units_per_sample) == (15, 3, 64)
    assert workload.describe() == {
        "source": str(tokens),
        "sha256": workload.digest,
        "train": 15,
        "test": 3,
        "sequence": 64,
        "vocabulary": 50257,
    }


def test_batch_beyond_the_last_sample_raises(tokens: Path) -> None:
    with pytest.raises(IndexError):
        load(str(tokens), "gpt-tiny").batch(np.array([15]), "train")


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32"])
def test_token_type_is_that_of_meta_json(tmp_path: Path, dtype: str) -> None:
    numbers = np.arange(130) % 100
    for name in ("train.bin", "val.bin"):
        numbers.astype(gpt.DTYPES[dtype]).tofile(tmp_path / name)
    (tmp_path / "meta.json").write_text(json.dumps({"dtype": dtype, "vocabulary": 100, "source": "a count"}))
    workload = load(str(tmp_path), "gpt-tiny")
    assert workload.batch(np.array([1]), "test")[1].tolist() == [numbers[65:129].tolist()]
    assert workload.model().embedding.weight.shape[0] == 128  # type: ignore[union-attr]


def test_meta_json_without_vocabulary_allows_gpt2s_tokens(tokens: Path) -> None:
    for dtype, vocabulary in (("uint8", 256), ("uint16", 50257), ("uint32", 50257)):
        (tokens / "meta.json").write_text(json.dumps({"dtype": dtype}))
        np.zeros(65, gpt.DTYPES[dtype]).tofile(tokens / "train.bin")
        np.zeros(65, gpt.DTYPES[dtype]).tofile(tokens / "val.bin")
        assert load(str(tokens), "gpt-tiny").describe()["vocabulary"] == vocabulary


def test_corpus_is_the_book_with_the_documented_sizes() -> None:
    page = (CORPUS / "README.md").read_text()
    parts = {name: (CORPUS / name).read_bytes() for name in ("train.bin", "val.bin")}
    for name, text in parts.items():
        assert f"`{name}`, {len(text):,} bytes" in page.replace("\n", " ")
        assert text.isascii()
        assert b"\r" not in text
    chapters = re.findall(rb"^CHAPTER ([IVX]+)\. ", b"".join(parts.values()), re.MULTILINE)
    assert chapters == [b"I", b"II", b"III", b"IV", b"V", b"VI", b"VII", b"VIII", b"IX", b"X", b"XI", b"XII"]
    assert parts["val.bin"].startswith(b"CHAPTER XI. ")
    assert b"Gutenberg" not in b"".join(parts.values())
    workload = load("corpus")
    assert (workload.name, workload.source, workload.unit) == ("gpt-tiny", "corpus", "tokens")
    inputs, _ = workload.batch(np.array([0]), "train")
    assert bytes(inputs[0].tolist()).startswith(b"CHAPTER I. Down the Rabbit-Hole\n\nAlice was beginning")


def test_documented_code_for_a_text_as_bytes_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "workloads.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    text = "Grüße, world! " * 100
    (tmp_path / "text.txt").write_text(text)
    monkeypatch.chdir(tmp_path)
    exec(code)  # noqa: S102 - the page's code
    workload = load(str(tmp_path), "gpt-tiny")
    assert bytes(workload.batch(np.array([0]), "train")[0][0].tolist()) == text.encode()[:64]
    assert (workload.train_samples, workload.test_samples) == (1439 // 64, 159 // 64)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("train.bin", None, "train.bin is missing"),
        ("val.bin", None, "val.bin is missing"),
        ("train.bin", b"", "has 0 tokens; it must have at least 65, one sample of 64 and the token after it"),
        ("val.bin", bytes(128), "val.bin has 64 tokens; it must have at least 65"),
        ("train.bin", bytes(131), "is damaged: 131 bytes is not a multiple of 2, the size of uint16"),
        (
            "val.bin",
            bytes(198) + b"\x51\xc4" + bytes(100),
            "val.bin has the token 50257 at position 99; it must be 0 to 50256",
        ),
        ("meta.json", b"{", "meta.json is not JSON: Expecting property name"),
        ("meta.json", b"\xff", "meta.json is not JSON: "),
        ("meta.json", b"[]", 'meta.json must be an object such as {"dtype": "uint16", "vocabulary": 50257}'),
        ("meta.json", b'{"dtype": "int8"}', "dtype is 'int8'; it must be uint8, uint16, uint32"),
        ("meta.json", b'{"dtype": ["uint8"]}', "dtype is ['uint8']; it must be uint8, uint16, uint32"),
        (
            "meta.json",
            b'{"vocabulary": 65537}',
            "vocabulary is 65537; it must be 2 to 65536 for uint16",
        ),
        ("meta.json", b'{"vocabulary": true}', "vocabulary is True; it must be 2 to 65536"),
        ("meta.json", b'{"vocabulary": 1}', "vocabulary is 1; it must be 2 to 65536"),
        ("meta.json", b'{"vocabulary": 9}', "it must be 0 to 8"),
    ],
)
def test_damaged_file_is_named_with_found_and_expected(
    tokens: Path, file: str, content: bytes | None, reason: str
) -> None:
    (tokens / file).unlink(missing_ok=True)
    if content is not None:
        (tokens / file).write_bytes(content)
    code, message = load_error(tokens, "gpt-tiny")
    assert code == Exit.DATA
    assert message.startswith(f"data: {tokens}/")
    assert reason in message


@pytest.mark.parametrize("call", ["memmap", "fromfile"])
def test_unreadable_file_is_named(tokens: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    def denied(file: Path, *_: Any, **__: Any) -> None:
        raise PermissionError(
            13, "Permission denied", str(file)
        )  # root is never denied, so the test raises it

    monkeypatch.setattr(np, call, denied)
    reason = f"data: [Errno 13] Permission denied: '{tokens}/train.bin'"
    assert load_error(tokens) == (Exit.DATA, reason)


def test_digest_changes_with_any_token_and_with_the_type(tokens: Path) -> None:
    before = load(str(tokens), "gpt-tiny").digest
    raw = (tokens / "val.bin").read_bytes()
    (tokens / "val.bin").write_bytes(raw[:-2] + b"\x07\x00")
    assert (changed := load(str(tokens), "gpt-tiny").digest) != before
    (tokens / "val.bin").write_bytes(raw)
    assert load(str(tokens), "gpt-tiny", 32).digest == before
    (tokens / "meta.json").write_text('{"dtype": "uint8", "vocabulary": 256}')
    assert load(str(tokens), "gpt-tiny").digest not in (before, changed)


def test_large_file_is_checked_in_blocks_and_where_used(
    tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpt, "BLOCK_BYTES", 64)
    monkeypatch.setattr(gpt, "BLOCKS", 4)  # 32 tokens from 0, 322, 645 and 968
    original = np.fromfile(tokens / "train.bin", "<u2")
    before = load(str(tokens), "gpt-tiny").digest

    def change(position: int, token: int) -> None:
        changed = original.copy()
        changed[position] = token
        changed.tofile(tokens / "train.bin")

    for position in (0, 322, 999):
        change(position, 50256 - int(original[position]))
        assert load(str(tokens), "gpt-tiny").digest != before
        change(position, 60000)
        assert f"has the token 60000 at position {position};" in load_error(tokens, "gpt-tiny")[1]
    change(200, 60000)
    workload = load(str(tokens), "gpt-tiny")
    assert workload.digest == before
    with pytest.raises(TrainerError, match="the token 60000 at position 200;") as caught:
        workload.batch(np.array([0, 3]), "train")
    assert caught.value.code == Exit.DATA
    np.concatenate([original, original[:1]]).tofile(tokens / "train.bin")  # one token longer than before
    assert load(str(tokens), "gpt-tiny").digest != before


def test_file_larger_than_memory_is_read_on_demand(tokens: Path) -> None:
    samples = 2**30
    with (tokens / "train.bin").open(
        "wb"
    ) as file:  # 128 GiB, sparse: the file system stores only the last block
        file.seek(samples * 64 * 2)
        file.write(b"\x2a\x00")
    workload = load(str(tokens), "gpt-tiny")
    assert workload.train_samples == samples
    targets = workload.batch(np.array([0, samples - 1]), "train")[1]
    assert targets.flatten().tolist() == [0] * 127 + [42]


def test_data_select_the_default_model(tokens: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    assert load(str(tokens), None, 64).name == "gpt-124M"
    assert load(str(tokens), "gpt-350M", 64).name == "gpt-350M"
    assert load("digits").name == "convnet"
    assert load("digits", "convnet").unit == "samples"
    (tokens / "train.bin").unlink()  # the remaining files are still token files
    assert has_tokens(str(tokens))
    assert not has_tokens(str(tmp_path_factory.mktemp("images")))


BAD_SETTINGS = Exit.CONFIGURATION


@pytest.mark.parametrize(
    ("data", "model", "sequence", "code", "reason"),
    [
        ("digits", "gpt-124M", None, BAD_SETTINGS, "model: 'gpt-124M' cannot learn from 'digits', which has"),
        ("corpus", "convnet", None, BAD_SETTINGS, f"has tokens. Use {' or '.join(MODELS[1:])}"),
        ("corpus", "gpt-9000M", None, BAD_SETTINGS, "model: 'gpt-9000M' cannot learn from 'corpus'"),
        ("digits", None, 64, BAD_SETTINGS, "sequence length: 64 is set, but 'digits' has images"),
        ("corpus", None, 22049, Exit.DATA, "val.bin has 22049 tokens; it must have at least 22050"),
        (
            "absent",
            None,
            None,
            Exit.DATA,
            "data: absent is not a directory; it must be 'digits', 'corpus', or",
        ),
    ],
)
def test_incompatible_settings_are_refused_in_one_line(
    data: str, model: str | None, sequence: int | None, code: Exit, reason: str
) -> None:
    found, message = load_error(data, model, sequence)
    assert found == code
    assert reason in message


def test_unreadable_directory_is_refused_in_one_line() -> None:
    """A name that is too long raises an OSError, as an unreachable file system does."""
    found, message = load_error("/" + "a" * 300)
    assert found == Exit.DATA
    assert re.fullmatch(r"data: /a{300} cannot be read: File name too long; it must be 'digits', .*", message)
