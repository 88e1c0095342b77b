"""Patterns of paths: what stays within a level, what crosses levels, and that a tree means all below it."""

from __future__ import annotations

import pytest

from nitro_cli.text import path_matches


@pytest.mark.parametrize(
    ("pattern", "matched", "others"),
    [
        ("encoder", ["encoder", "encoder/layers/0/kernel"], ["encoder2", "body/encoder"]),
        ("*/bias", ["head/bias"], ["bias", "body/head/bias", "head/biases"]),
        ("**/bias", ["bias", "head/bias", "body/head/bias", "bias/inner"], ["head/kernel"]),
        ("head/**", ["head/kernel", "head/out/bias"], ["head", "body/head/kernel"]),
        ("enc/**/bias", ["enc/bias", "enc/a/b/bias"], ["bias", "enc/a"]),
        ("layer_?/k*", ["layer_1/kernel"], ["layer_12/kernel", "layer_/kernel"]),
        ("layer_[0-2]", ["layer_0/kernel", "layer_2"], ["layer_3"]),
        ("[!ab]/w", ["c/w"], ["a/w", "b/w"]),
        ("a.b[", ["a.b["], ["axb["]),
        ("**", ["a", "a/b"], []),
    ],
)
def test_a_pattern_means_these_paths(pattern: str, matched: list[str], others: list[str]) -> None:
    assert [path for path in [*matched, *others] if path_matches(pattern, path)] == matched
