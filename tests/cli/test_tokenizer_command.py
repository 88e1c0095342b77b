"""`nitro tokenizer`: trained from files, looked into, tried."""

import json


def test_a_tokenizer_is_trained_written_and_tried(nitro, nitro_json, tmp_path):
    (tmp_path / "a.md").write_text("the cat and the mat and the cat\n")
    words = ["a.md", "--vocab-size", "270", "--special", "<user>"]
    made = nitro_json("tokenizer", "train", *words, "--out", "tok.json")
    assert made["vocab_size"] == 270
    assert made["specials"] == {"<unk>": 0, "<pad>": 1, "<bos>": 2, "<eos>": 3}
    assert json.loads((tmp_path / "tok.json").read_text())["added_tokens"][4]["content"] == "<user>"
    told = nitro_json("tokenizer", "info", "tok.json")
    assert told["digest"] == made["digest"]
    ids = nitro("tokenizer", "encode", "tok.json", "cats <eos>").stdout.split()
    assert nitro("tokenizer", "decode", "tok.json", *ids).stdout == "cats <eos>\n"
    assert nitro("tokenizer", "decode", "tok.json", input=" ".join(ids)).stdout == "cats <eos>\n"
    assert nitro_json("tokenizer", "encode", "tok.json", "<eos>", "--specials")["ids"] == [3]


def test_a_file_that_is_there_stays_unless_forced(nitro, tmp_path):
    (tmp_path / "a.md").write_text("the cat")
    (tmp_path / "tokenizer.json").write_text("mine")
    assert nitro("tokenizer", "train", "a.md").exit_code == 2
    assert (tmp_path / "tokenizer.json").read_text() == "mine"
    assert nitro("tokenizer", "train", "a.md", "--force").exit_code == 0


def test_what_is_wrong_ends_with_its_exit_code(nitro, tmp_path):
    (tmp_path / "a.md").write_text("the cat")
    assert nitro("tokenizer", "train", "gone.md").exit_code == 3
    assert nitro("tokenizer", "train", "a.md", "--vocab-size", "9").exit_code == 2
    assert nitro("tokenizer", "train", "a.md", "--form", "letters").exit_code == 2
    assert nitro("tokenizer", "info", "gone.json").exit_code == 3
    assert nitro("tokenizer", "encode", "a.md", "x").exit_code == 2
    assert nitro("tokenizer", "train", "a.md").exit_code == 0
    assert nitro("tokenizer", "decode", "tokenizer.json", "-1").exit_code != 0
    assert nitro("tokenizer", "decode", "tokenizer.json", input="x").exit_code == 2
