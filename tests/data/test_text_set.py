"""The data set `text`: splits by document, a tokenizer of train alone, rows."""

import json

import numpy as np
import pytest

from nitro_cli import Dist
from nitro_cli.data.language import BPE, ByteTokenizer, TokenizerFile, read_codec
from nitro_cli.data.sets import TEXT_BYTES, Text
from nitro_cli.data.splits import GroupSplit
from nitro_cli.errors import ConfigError, DataError, IncompatibleError, NotFoundError, SplitError

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(20):
        text = " ".join(np.random.default_rng(number).choice(WORDS, 12))
        (tmp_path / f"{number:02}.txt").write_text(f"{number} {text}")


def built(data, split=None):
    return data.build(Dist(), split, 0)


def text_of(source, codec):
    """What the rows of a stream say, in order."""
    labels = source.arrays["label"].ravel()
    return codec.decode(labels[labels >= 0], specials=True).split("<eos>")[:-1]


def test_splits_hold_whole_documents_and_no_document_twice(tmp_path):
    (tmp_path / "double.txt").write_text((tmp_path / "03.txt").read_text())
    data = built(Text(files=("*.txt",), block=16))
    codec = ByteTokenizer().trained([])
    found = {name: text_of(source, codec) for name, source in data.items()}
    assert {name: len(texts) for name, texts in found.items()} == {"train": 14, "val": 3, "test": 3}
    everything = [text for texts in found.values() for text in texts]
    assert sorted(everything) == sorted((tmp_path / f"{n:02}.txt").read_text() for n in range(20))
    assert data.told["equal documents left out"] == 1
    for name, source in data.items():
        assert source.arrays[TEXT_BYTES].sum() == sum(map(len, found[name]))


def test_the_tokenizer_knows_train_alone_in_its_order():
    tokenizer = BPE(vocab_size=300)
    data = built(Text(files=("*.txt",), tokenizer=tokenizer))
    train = text_of(data["train"], read_codec(data.kept["tokenizer.json"]))
    assert tokenizer.trained(train).content == data.kept["tokenizer.json"]
    assert tokenizer.trained([*train, "val val val val"]).content != data.kept["tokenizer.json"]
    assert data.declared.vocab_size <= 300
    assert data.declared.length == 256
    assert (data.declared.inputs, data.declared.target) == (("tokens",), "label")


def test_a_plan_of_the_experiment_splits_the_documents():
    data = built(Text(files=("*.txt",)), GroupSplit(proportions=(0.5, 0.5, 0.0), seed=1))
    assert set(data) == {"train", "val"}


def test_what_a_run_kept_is_used_and_not_trained_again():
    kept = BPE(vocab_size=270).trained(["other words altogether " * 3])
    data = Text(files=("*.txt",), tokenizer=BPE(vocab_size=300)).with_kept({"tokenizer.json": kept.content})
    assert built(data).kept["tokenizer.json"] == kept.content
    assert built(data).declared.vocab_size == kept.vocab_size


def test_the_digest_that_is_written_has_to_be_the_tokenizers():
    data = Text(files=("*.txt",), tokenizer_digest="sha256:0")
    made = built(data)
    with pytest.raises(IncompatibleError, match=r"data\.tokenizer_digest is sha256:0"):
        data.fills(made, {}, made.declared)


def test_of_prompts_the_responses_alone_are_scored_and_bytes_say_nothing(tmp_path):
    rows = [{"prompt": f"q{n}?", "response": f"a{n}"} for n in range(8)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    data = built(Text(files=("a.jsonl",), packing="pad", block=8), GroupSplit(proportions=(0.5, 0.5, 0), seed=0))
    labels = data["train"].arrays["label"]
    codec = ByteTokenizer().trained([])
    assert all(codec.decode(row[row >= 0], specials=True).startswith("a") for row in labels)
    assert (data["train"].arrays[TEXT_BYTES] == -1).all()


def test_why_bytes_say_nothing_is_told():
    cut = built(Text(files=("*.txt",), packing="pad", block=8))
    assert (cut["val"].arrays[TEXT_BYTES] == -2).all()
    assert cut.told["documents cut"]["val"] == 3
    assert (built(Text(files=("*.txt",), limit=2, block=8))["val"].arrays[TEXT_BYTES] == -3).all()


@pytest.mark.parametrize("packing", ["documents", "pad"])
def test_a_document_goes_from_its_beginning_to_its_end(packing):
    tokens = built(Text(files=("*.txt",), packing=packing, block=128))["train"].arrays["tokens"]
    assert (tokens == 2).sum() == 14
    assert (tokens == 3).sum() == 0


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(NotFoundError, match=r"called like '\*\.md'"):
        built(Text(files=("*.md",)))
    (tmp_path / "blank.md").write_text("\n \n")
    with pytest.raises(DataError, match="there is no document"):
        built(Text(files=("*.md",)))
    (tmp_path / "one.md").write_text("one")
    with pytest.raises(SplitError):
        built(Text(files=("*.md",)))
    kept = BPE(vocab_size=270, specials=("<eos>",)).trained(["a b"])
    (tmp_path / "tok.json").write_bytes(kept.content)
    with pytest.raises(ConfigError, match="has no <pad>"):
        built(Text(files=("*.txt",), tokenizer=TokenizerFile("tok.json")))


@pytest.mark.parametrize(
    "words", [{}, {"files": ("a",), "source": "pydoc"}, {"files": ()}, {"files": ("a",), "block": 0}]
)
def test_what_says_no_text_or_no_row_is_refused(words):
    with pytest.raises(ConfigError):
        Text(**words)
