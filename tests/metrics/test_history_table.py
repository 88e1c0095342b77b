"""How a history is drawn: in a terminal, in a file, in a notebook."""

import io
import math

import pytest
from rich.console import Console

from nitro_cli.metrics import History


def history(n, extra=0, **keywords):
    rows = [
        {
            "epoch": e,
            "step": 100 * e,
            "train_loss": 1 / e,
            "acc": -((e - 7) ** 2) / 100,
            **{f"metric_{i}": 0.5 + i for i in range(extra)},
        }
        for e in range(1, n + 1)
    ]
    return History(rows, **{"monitor": ("acc", "max"), "title": "MnistMLP", "place": "runs/mnist", **keywords})


def drawn(h, width=100, height=24, terminal=True):
    out = io.StringIO()
    Console(file=out, width=width, height=height, force_terminal=terminal, color_system=None).print(h)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def epochs(lines):
    return [
        int(line.split()[0]) for line in lines if line.split() and line.split()[0].isdigit() and "epochs" not in line
    ]


@pytest.mark.parametrize("height", [14, 17, 24, 50])
@pytest.mark.parametrize("n", [3, 25, 1000])
def test_the_table_fits_the_height_and_keeps_first_best_and_last(n, height):
    lines = drawn(history(n), height=height)
    assert len(lines) < height
    assert {1, min(n, 7), n} <= set(epochs(lines))
    assert any("⋮" in line for line in lines) == (len(epochs(lines)) < n)


def test_a_gap_is_said_in_numbers():
    lines = drawn(history(100), height=24)
    shown = len(epochs(lines))
    assert f"{shown} of 100 epochs" in lines[0]
    assert any(f"{100 - shown} of 100 epochs thinned" in line for line in lines)


def test_the_best_row_and_no_other_is_starred():
    starred = [line for line in drawn(history(20)) if line.endswith("*")]
    assert epochs(starred) == [7]


@pytest.mark.parametrize("width", [50, 60, 80, 120])
def test_columns_are_dropped_from_the_right_until_the_table_fits(width):
    lines = drawn(history(5, extra=12), width=width)
    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines[1:])
    head = lines[2].split()
    assert head[:2] == ["epoch", "step"]
    assert "acc" in head
    kept = [name for name in head if name.startswith("metric_")]
    assert kept == [f"metric_{i}" for i in range(len(kept))]
    text = " ".join(" ".join(lines).split())
    assert f"{12 - len(kept)} columns left out for width: metric_{len(kept)}" in text


def test_a_very_narrow_terminal_keeps_the_epoch_and_the_monitored_metric():
    head = drawn(history(5), width=24)[2].split()
    assert head == ["epoch", "acc"]


def test_off_a_terminal_every_row_is_drawn():
    assert epochs(drawn(history(100), terminal=False)) == list(range(1, 101))


def test_metrics_that_are_no_scalars_are_named_under_the_table():
    h = History([{"epoch": 1, "step": 1, "confusion": [[1, 0], [0, 1]]}])
    assert any("not tabulated: confusion" in line for line in drawn(h))


def test_small_values_do_not_round_to_nothing():
    h = History([{"epoch": 1, "step": 1, "lr": 1e-7, "acc": 0.98765}, {"epoch": 2, "step": 2, "lr": math.nan}])
    text = "\n".join(drawn(h))
    assert "1e-07" in text
    assert "0.9877" in text
    assert "nan" in text


def test_an_empty_history_says_so():
    assert "no epoch yet" in str(History(title="MnistMLP"))
    assert "no epoch yet" in History()._repr_html_()


def test_the_text_form_is_the_table():
    assert "history of MnistMLP" in str(history(3))
    assert "\x1b" not in str(history(3))


def test_the_html_form_has_every_row_and_escapes_names():
    h = history(60, title="<b>x</b>")
    page = h._repr_html_()
    assert page.count("<tr") == 61
    assert page.count("★") == 1
    assert "<b>x</b>" not in page
    assert "&lt;b&gt;x" in page
