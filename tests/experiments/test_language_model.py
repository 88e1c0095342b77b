"""Language models from text files: presets, packing, what an evaluation says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.language_model import LanguageModel
from nitro_cli import Dist, Nitro, load_bundle
from nitro_cli.data.language import ByteCodec
from nitro_cli.data.sets import Text
from nitro_cli.networks import Transformer
from tests.experiments.witten_bell import witten_bell_bits

REPOSITORY = Path(__file__).parents[2]
QUIET: dict[str, Any] = {"logger": None, "checkpointer": None}


def preset(name: str, monkeypatch: pytest.MonkeyPatch, **fields: Any) -> Any:
    monkeypatch.chdir(REPOSITORY)
    return LanguageModel.from_preset(name, **fields)


def texts_of(data: Any, split: str) -> list[str]:
    labels = data[split].arrays["label"].ravel()
    return ByteCodec().decode(labels[labels >= 0], specials=True).split("<eos>")[:-1]


@pytest.mark.parametrize("name", sorted(path.stem for path in (REPOSITORY / "presets/LanguageModel").glob("*.toml")))
def test_every_preset_says_text_network_and_task(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    e = preset(name, monkeypatch)
    built = e.data.build(Dist(), None, 0)
    assert built.declared.vocab_size == {"pydoc": 1024}.get(name, 260)
    assert built.declared.length <= e.network.max_seq_len


def test_a_preset_trains_and_says_what_it_is_worth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = Nitro(preset("smoke", monkeypatch), run_dir=tmp_path).train()
    found = handle.evaluate("test")
    assert found["nll"] < np.log(260)
    assert found["perplexity"] == pytest.approx(np.exp(found["nll"]))
    assert handle.history[-1]["tokens_seen"] == 64 * 32
    assert (handle.run_path / "tokenizer.json").read_bytes() == ByteCodec().content


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for number in range(20):
        words = rng.choice(["one", "two", "three", "four"], rng.integers(2, 9))
        (tmp_path / f"{number:02}.txt").write_text(f"{number} {' '.join(words)}")
    return tmp_path


def judged(**words: Any) -> dict[str, Any]:
    data = Text(files=("*.txt",), **{"block": 64, "batch_size": 4, **words})
    network = Transformer(width=16, depth=1, heads=2, max_seq_len=64)
    return Nitro(LanguageModel(data=data, network=network), **QUIET).evaluate("val")


def test_the_loss_of_packed_documents_is_that_of_a_document_a_row(files: Path) -> None:
    packed, alone = judged(packing="documents"), judged(packing="pad")
    assert packed["count"] == alone["count"]
    assert packed["nll"] == pytest.approx(alone["nll"], abs=1e-5)
    assert packed["bits_per_byte"] == pytest.approx(alone["bits_per_byte"], abs=1e-5)


def test_loss_and_perplexity_know_no_batch_size(files: Path) -> None:
    whole, other = (judged(block=16, batch_size=size) for size in ("full", 3))
    assert other["count"] == whole["count"]
    assert other["nll"] == pytest.approx(whole["nll"], abs=1e-5)


def test_bits_per_byte_are_the_loss_over_the_bytes_of_the_texts(files: Path) -> None:
    found = judged()
    data = Text(files=("*.txt",), block=64).build(Dist(), None, 0)
    size = sum(len(text.encode()) for text in texts_of(data, "val"))
    assert found["count"] == size + 3  # and the ends of three documents
    assert found["bits_per_byte"] == pytest.approx(found["nll"] * found["count"] / np.log(2) / size)


@pytest.mark.slow
def test_ten_minutes_are_worth_more_than_counting_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    e = preset("pydoc", monkeypatch)
    data = Text(source="pydoc").build(Dist(), None, e.seed)
    handle = Nitro(e, run_dir=tmp_path, restore_best=True, max_time=600).train()
    counted = witten_bell_bits(texts_of(data, "train"), texts_of(data, "test"))
    assert handle.evaluate("test")["bits_per_byte"] < counted


def test_it_is_exported_for_any_number_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nitro = Nitro(preset("smoke", monkeypatch), run_dir=tmp_path, **QUIET)
    tokens = np.arange(96, dtype=np.int32).reshape(3, 32)
    given = load_bundle(nitro.export())(tokens)
    np.testing.assert_allclose(given["outputs"], nitro.predict({"tokens": tokens}), atol=1e-5)
