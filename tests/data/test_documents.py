"""Documents from files, and rows of them."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nitro_cli.data.language import TextDocument, pydoc_documents, read_documents, without_doubles
from nitro_cli.data.language.packing import IGNORED, EncodedDocument, packed
from nitro_cli.errors import DataError, NotFoundError

IDS = {"pad": 1, "bos": 2, "eos": 3}


def documents(*sizes, unscored=0):
    """Documents of different ids, from 10 on."""
    starts = np.cumsum([10, *sizes])
    return [EncodedDocument(list(range(a, a + n)), min(unscored, n), n) for a, n in zip(starts, sizes, strict=False)]


def test_files_are_read_in_the_order_of_globs_and_names_once(tmp_path):
    for name, text in {"b.md": "bee", "a.txt": "ay", "c.md": " \n", "deep/d.md": "dee"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = read_documents([f"{tmp_path}/*.md", f"{tmp_path}/a.txt", f"{tmp_path}/**/*.md"])
    assert [document.text for document in found] == ["bee", "ay", "dee"]


def test_a_paragraph_ends_at_a_blank_line(tmp_path):
    (tmp_path / "a.md").write_text("one\ntwo\n\n  three\n \t\n\nfour\n")
    found = read_documents([f"{tmp_path}/a.md"], "paragraph")
    assert [document.text for document in found] == ["one\ntwo", "  three", "four\n"]


def test_lines_of_json_have_a_text_or_a_prompt_and_a_response(tmp_path):
    rows = [{"text": "a\u2028b"}, {"prompt": "p", "response": "r", "id": 7}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n")
    assert read_documents([f"{tmp_path}/a.jsonl"]) == [TextDocument("a\u2028b"), TextDocument("r", "p")]


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"text": 1}', '{"prompt": "a"}', '{"text": "a", "response": "b"}', '{"text": "\\ud800"}']
)
def test_a_line_that_is_no_document_is_refused_by_its_number(tmp_path, line):
    (tmp_path / "a.jsonl").write_text(f'{{"text": "x"}}\n{line}\n')
    with pytest.raises(DataError) as error:
        read_documents([f"{tmp_path}/a.jsonl"])
    assert error.value.where.endswith("a.jsonl, line 2")


def test_what_is_no_utf8_is_refused_with_file_and_offset(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"ab\xe9c")
    with pytest.raises(DataError, match=r"a\.txt is no UTF-8: byte 0xe9 at offset 2"):
        read_documents([f"{tmp_path}/a.txt"])


def test_a_glob_without_a_file_and_a_file_of_another_kind_are_refused(tmp_path):
    (tmp_path / "a.pdf").write_text("x")
    with pytest.raises(NotFoundError, match="no file is called like"):
        read_documents([f"{tmp_path}/*.md"])
    with pytest.raises(DataError, match=r"a\.pdf is no kind"):
        read_documents([f"{tmp_path}/*"])


def test_the_reference_of_python_has_paragraphs_and_doubles_go():
    found = pydoc_documents()
    assert len(found) > 2000
    assert len(without_doubles(found)) < len(found)
    assert without_doubles([TextDocument("a"), TextDocument("b"), TextDocument("a"), TextDocument("a", "p")]) == [
        TextDocument("a"),
        TextDocument("b"),
        TextDocument("a", "p"),
    ]


# Rows


def test_a_stream_is_cut_every_block_and_its_last_row_filled():
    found = packed(documents(2, 3), "stream", 4, IDS).arrays  # 3 | 10 11 3 | 12 13 14 3
    assert found["tokens"].tolist() == [[3, 10, 11, 3], [12, 13, 14, 1]]
    assert found["label"].tolist() == [[10, 11, 3, 12], [13, 14, 3, IGNORED]]
    assert found["ended_bytes"].tolist() == [2, 3]
    assert found["tokens"].dtype == found["label"].dtype == np.int32


def test_whole_documents_stand_in_a_row_as_long_as_they_fit():
    found = packed(documents(1, 2, 1), "documents", 5, IDS).arrays
    assert found["tokens"].tolist() == [[2, 10, 2, 11, 12], [2, 13, 1, 1, 1]]
    assert found["label"].tolist() == [[10, 3, 11, 12, 3], [13, 3, IGNORED, IGNORED, IGNORED]]
    assert found["segment"].tolist() == [[1, 1, 2, 2, 2], [1, 1, 0, 0, 0]]
    assert found["position"].tolist() == [[0, 1, 0, 1, 2], [0, 1, 0, 0, 0]]


def test_a_document_longer_than_a_row_is_cut_into_pieces_that_overlap_by_a_token():
    found = packed(documents(5), "documents", 4, IDS).arrays
    assert found["tokens"].tolist() == [[2, 10, 11, 12], [13, 14, 1, 1]]
    assert found["label"].tolist() == [[10, 11, 12, 13], [14, 3, IGNORED, IGNORED]]
    assert found["ended_bytes"].tolist() == [0, 5]


def test_a_document_a_row_is_filled_up_and_what_is_cut_is_counted():
    found = packed(documents(1, 4), "pad", 3, IDS)
    assert found.arrays["tokens"].tolist() == [[2, 10, 1], [2, 11, 12]]
    assert found.arrays["label"].tolist() == [[10, 3, IGNORED], [11, 12, 13]]
    assert found.cut == 1


@pytest.mark.parametrize("packing", ["stream", "documents", "pad"])
def test_of_a_prompt_and_a_response_the_response_and_its_end_are_scored(packing):
    found = packed(documents(4, unscored=3), packing, 8, IDS).arrays
    assert found["label"][found["label"] != IGNORED].tolist() == [13, 3]


@settings(deadline=None, max_examples=80)
@given(sizes=st.lists(st.integers(0, 20), min_size=1, max_size=12), block=st.integers(1, 9))
def test_every_target_stands_in_exactly_one_row_and_follows_its_token(sizes, block):
    held = documents(*sizes)
    flat = [*(id for document in held for id in [*document.ids, IDS["eos"]])]
    for packing in ("stream", "documents"):
        found = packed(held, packing, block, IDS).arrays
        scored = found["label"] != IGNORED
        assert found["label"][scored].tolist() == flat
        assert found["ended_bytes"].sum() == sum(sizes)
        before = [IDS["eos"], *flat][:-1] if packing == "stream" else None
        if before is not None:
            assert found["tokens"][scored].tolist() == before
        inside = found["label"][scored] != IDS["eos"]
        follows = found["label"][scored] - found["tokens"][scored]
        opening = np.isin(found["tokens"][scored], [IDS["bos"], IDS["eos"]])
        assert (follows[inside & ~opening] == 1).all()
