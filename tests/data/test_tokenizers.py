"""Tokenizers: text comes back as it was, specials are not made of text, and a file says all of one."""

import hashlib
import json
import subprocess
import sys

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli.data.language import BPE, SPECIALS, ByteTokenizer, TokenizerFile, read_codec
from nitro_cli.errors import ConfigError, DataError, MissingExtraError, NotFoundError

TEXTS = ["the cat sat on the mat, and the cat <eos> ate\n", "naïve café 你好 the mat " * 3, "  indented\n\tcode = 1\n"]
UNICODE = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
TRAINED = BPE(vocab_size=320).trained(TEXTS)


@pytest.mark.parametrize("codec", [ByteTokenizer().trained([]), TRAINED], ids=["bytes", "bpe"])
@settings(deadline=None, max_examples=150)
@given(before=UNICODE, after=UNICODE)
def test_every_text_comes_back_and_the_name_of_a_special_in_it_is_text(codec, before, after):
    text = f"{before}<eos>{after}<unk><pad>"
    ids = codec.encode(text)
    assert codec.decode(ids) == text
    assert not set(ids) & set(codec.ids.values())
    assert all(0 <= id < codec.vocab_size for id in ids)


@pytest.mark.parametrize("codec", [ByteTokenizer().trained([]), TRAINED], ids=["bytes", "bpe"])
def test_a_special_is_one_where_it_is_asked_for(codec):
    ids = codec.encode("a<eos>", specials=True)
    assert ids == [*codec.encode("a"), 3]
    assert codec.decode(ids) == "a"
    assert codec.decode(ids, specials=True) == "a<eos>"


def test_bytes_are_260_ids_the_specials_first():
    codec = ByteTokenizer().trained([])
    assert codec.vocab_size == 260
    assert codec.ids == {"unk": 0, "pad": 1, "bos": 2, "eos": 3}
    assert codec.encode("A\u00e9") == [4 + 0x41, 4 + 0xC3, 4 + 0xA9]


def test_half_a_character_decodes_to_what_stands_for_it():
    assert ByteTokenizer().trained([]).decode([4 + 0xC3]) == "\ufffd"


@settings(deadline=None, max_examples=100)
@given(text=UNICODE)
def test_the_library_reads_the_file_of_bytes_and_says_the_same(text):
    codec = ByteTokenizer().trained([])
    library = tokenizers.Tokenizer.from_str(codec.content.decode())
    library.encode_special_tokens = True
    assert library.encode(text).ids == codec.encode(text)
    assert library.decode(codec.encode(text)) == text
    assert library.to_str(pretty=True).encode() == codec.content


def test_ids_are_those_of_the_library_itself():
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    library.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=320,
        min_frequency=2,
        special_tokens=list(SPECIALS.values()),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library.train_from_iterator(TEXTS, trainer)
    assert library.to_str(pretty=True).encode() == TRAINED.content
    assert library.encode("the cat is").ids == TRAINED.encode("the cat is")


def test_the_same_texts_give_the_same_file_in_another_process():
    program = (
        "import sys, json\n"
        "from nitro_cli.data.language import BPE\n"
        "print(BPE(vocab_size=320).trained(json.load(sys.stdin)).digest)"
    )
    told = subprocess.run([sys.executable, "-c", program], input=json.dumps(TEXTS), capture_output=True, text=True)
    assert told.stdout.strip() == TRAINED.digest, told.stderr
    assert TRAINED.digest == f"sha256:{hashlib.sha256(TRAINED.content).hexdigest()}"


def test_the_bound_of_ids_holds_and_few_texts_need_fewer():
    assert BPE(vocab_size=262).trained(TEXTS).vocab_size == 262
    assert BPE(vocab_size=100_000).trained(TEXTS).vocab_size < 400


def test_words_lose_white_space_and_what_is_unseen_is_unknown():
    codec = BPE(vocab_size=200, form="words", specials=("<pad>", "<eos>")).trained(["abc abd", "abc\n xyz"])
    assert codec.ids == {"pad": 0, "eos": 1, "unk": 2}
    assert codec.encode("abc\n\t abc") == codec.encode("abc abc")
    assert codec.encode("Q") == [2]


@pytest.mark.parametrize(("texts", "told"), [([], "no text"), (["a", " \n"], "text 1 is empty")])
def test_nothing_to_train_on_is_refused(texts, told):
    with pytest.raises(DataError, match=told):
        BPE().trained(texts)


def test_a_bound_below_specials_and_alphabet_is_refused_with_the_numbers():
    with pytest.raises(ConfigError, match="vocab_size = 259 is below 4 specials and an alphabet of 256"):
        BPE(vocab_size=259).trained(TEXTS)
    with pytest.raises(ConfigError, match="vocab_size = 6 is below 4 specials and an alphabet of 3"):
        BPE(vocab_size=6, form="words").trained(["ab c"])


@pytest.mark.parametrize("form", ["bytes", "words"])
def test_a_special_that_a_text_could_spell_is_refused(form):
    with pytest.raises(ConfigError, match="'END' could be a word of a text"):
        BPE(specials=("END",), form=form).trained(TEXTS)


@pytest.mark.parametrize("values", [{"vocab_size": 0}, {"min_frequency": True}, {"specials": ("<a>", "<a>")}])
def test_values_that_cannot_be_are_refused(values):
    with pytest.raises(ConfigError):
        BPE(**values)


def test_half_a_surrogate_pair_is_no_text():
    for codec in (ByteTokenizer().trained([]), TRAINED):
        with pytest.raises(DataError, match="no Unicode text"):
            codec.encode("a\ud800")


def test_an_id_that_there_is_not_is_refused():
    with pytest.raises(DataError, match="no id 260"):
        ByteTokenizer().trained([]).decode([260])


# Files


def test_a_file_is_read_again_with_the_switch_that_the_library_leaves_out(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(TRAINED.content)
    codec = TokenizerFile(path).trained([])
    assert codec.digest == TRAINED.digest
    assert codec.encode("<eos>") == TRAINED.encode("<eos>") != [3]


def test_what_a_file_calls_its_specials_is_said_by_fields(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(BPE(vocab_size=300, specials=("<|end|>",)).trained(TEXTS).content)
    assert TokenizerFile(path, eos="<|end|>").trained([]).needed("eos") == (0,)
    with pytest.raises(ConfigError, match="has no <eos>"):
        TokenizerFile(path).trained([]).needed("eos")


def test_a_file_that_spells_a_word_like_a_special_is_found_out(tmp_path):
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<eos>": 0, "a": 1}, unk_token="a"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.save(str(tmp_path / "words.json"))
    codec = TokenizerFile(tmp_path / "words.json").trained([])
    with pytest.raises(DataError, match="makes its special '<eos>' of the text 0"):
        codec.encode("a <eos>")


def test_a_file_never_cuts_or_fills_a_text(tmp_path):
    library = tokenizers.Tokenizer.from_str(TRAINED.content.decode())
    library.enable_truncation(2)
    library.enable_padding(length=9)
    codec = read_codec(library.to_str().encode())
    assert codec.encode("the cat sat on") == TRAINED.encode("the cat sat on")


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe", b"[1]"])
def test_a_file_that_is_none_is_refused_by_its_path(tmp_path, content):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(DataError, match="no file of the library") as error:
        TokenizerFile(path).trained([])
    assert error.value.where == str(path)


def test_a_missing_file_is_not_found(tmp_path):
    with pytest.raises(NotFoundError, match=r"no tokenizer gone\.json"):
        TokenizerFile(tmp_path / "gone.json").trained([])


def test_bytes_need_no_library(monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    plain = ByteTokenizer().trained([])
    assert read_codec(plain.content).encode("a") == [101]
    with pytest.raises(MissingExtraError, match="needs the package tokenizers"):
        BPE().trained(TEXTS)
