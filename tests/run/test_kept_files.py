"""Files that a run keeps, such as its tokenizer: written once, taken from there, checked."""

import hashlib
import json
from pathlib import Path

import pytest

from nitro_cli import Experiment, Nitro, checkpoint_info
from nitro_cli.data.language import BPE
from nitro_cli.data.sets import DataSet, Text
from nitro_cli.errors import ConfigError, IncompatibleError, IntegrityError
from nitro_cli.export import BundleError, verify_bundle
from nitro_cli.networks import Network, Transformer
from nitro_cli.optim import Optim
from nitro_cli.tasks import Categorical, Task

WORDS = "the cat sat on the mat and the dog sat on the cat "


class Reader(Experiment):
    """A small language model over files of the working directory."""

    data: DataSet = Text(files=("*.txt",), block=8, batch_size=4, tokenizer=BPE(vocab_size=270))
    network: Network = Transformer(width=8, depth=1, heads=2, max_seq_len=8)
    task: Task = Categorical(270, ignore_index=-100, metrics=(), train_metrics=())
    optim: Optim = Optim("adam")
    eval_loss = True
    logger = None
    max_epochs = 1


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run of `Reader`: its handle, and its directory."""
    monkeypatch.chdir(tmp_path)
    for number in range(8):
        (tmp_path / f"{number}.txt").write_text(f"{number} {WORDS * 2}")
    handle = Nitro(Reader()).train()
    return handle, Path(handle.run_dir) / handle.run_id


def other(**words):
    data = Reader().data
    return data.replace(tokenizer=data.tokenizer.replace(**words))


def test_a_run_keeps_its_tokenizer_and_says_its_digest_everywhere(run):
    _, path = run
    digest = f"sha256:{hashlib.sha256((path / 'tokenizer.json').read_bytes()).hexdigest()}"
    assert json.loads((path / "run.json").read_text())["kept"] == {"tokenizer.json": digest}
    (record,) = (path / "checkpoints").iterdir()
    assert checkpoint_info(record).meta.derived["data.tokenizer_digest"] == digest


def test_nothing_trains_it_again(run, monkeypatch):
    handle, path = run
    before = (path / "tokenizer.json").read_bytes()

    def trained(self, texts):
        raise AssertionError("trained again")

    monkeypatch.setattr(BPE, "trained", trained)
    resumed = Nitro(Reader(max_epochs=2), resume=(handle.run_id, "latest")).train()
    assert (Path(resumed.run_dir) / resumed.run_id / "tokenizer.json").read_bytes() == before
    new = Nitro(Reader(), weights=(handle.run_id, "latest")).train()
    assert new.run_id != handle.run_id
    assert (Path(new.run_dir) / new.run_id / "tokenizer.json").read_bytes() == before
    served = Nitro(Reader(), weights=(handle.run_id, "latest"), data={})
    assert served.plan.settings.kept["tokenizer.json"] == before


@pytest.mark.parametrize("damage", [lambda file: file.write_bytes(file.read_bytes() + b" "), Path.unlink])
def test_a_damaged_or_missing_one_is_refused(run, damage):
    handle, path = run
    damage(path / "tokenizer.json")
    for words in ({"resume": (handle.run_id, "latest")}, {"weights": (handle.run_id, "best")}):
        with pytest.raises(IntegrityError, match=r"tokenizer\.json"):
            Nitro(Reader(max_epochs=2), **words)


def test_another_one_is_refused_naming_both(run):
    handle, _ = run
    data = other(vocab_size=269)
    with pytest.raises(IncompatibleError, match=r"data\.tokenizer is another than the run's") as error:
        Nitro(Reader(data=data, max_epochs=2), resume=(handle.run_id, "latest"))
    assert "data.tokenizer.vocab_size 269 here, 270 in the run" in error.value.why


def test_rows_longer_than_the_network_takes_are_refused(run):
    with pytest.raises(ConfigError, match="rows of 9 tokens are longer than max_seq_len = 8"):
        Nitro(Reader(data=Reader().data.replace(block=9)))


def test_a_live_handle_gives_what_its_run_keeps(run):
    handle, path = run
    served = Nitro(Reader(), weights=handle, data={}, checkpointer=None)
    assert served.plan.settings.kept["tokenizer.json"] == (path / "tokenizer.json").read_bytes()


def test_a_bundle_carries_it_and_checks_it(run, tmp_path):
    handle, path = run
    content = (path / "tokenizer.json").read_bytes()
    made = handle.export("bundle", dir=tmp_path / "out")
    assert (made / "tokenizer.json").read_bytes() == content
    assert json.loads((made / "provenance.json").read_text())["kept"]["tokenizer.json"].startswith("sha256:")
    verify_bundle(made)
    (made / "tokenizer.json").write_bytes(content + b" ")
    with pytest.raises(BundleError, match=r"tokenizer\.json"):
        verify_bundle(made)
