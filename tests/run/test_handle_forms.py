"""What a handle and its history say of themselves: as text, for rich, as HTML."""

import io

import jax
import numpy as np
import pytest
from rich.console import Console

from nitro_cli import EMA, Nitro, register_phase_monitor, unregister_phase_monitor
from tests.tiny import Tiny


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("forms")
    schedules = {"smoothing": {"kind": "linear", "init_value": 0.0, "end_value": 0.1}}
    return Nitro(Tiny(run_dir=run_dir), preset="tutorial", schedules=schedules, ema=EMA(0.9)).train()


def line_of(text, name):
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name}  ")]
    return line.removeprefix(name).strip()


def test_the_text_names_experiment_preset_run_weights_state_and_metrics(trained):
    text = str(trained)
    assert line_of(text, "experiment") == "Tiny"
    assert line_of(text, "preset") == "tutorial"
    assert line_of(text, "run") == f"{trained.run_id} in {trained.run_dir}"
    assert line_of(text, "weights") == (
        "trained from build_model, seed 42 (83 parameters in 4 arrays; evaluation reads their average)"
    )
    assert line_of(text, "state") == "epoch 2 of 2, step 24, completed"
    assert line_of(text, "metrics").startswith(f"acc {trained.metrics['acc']:.6g}, ")
    assert f"best acc {trained.best['score']:.6g} at epoch {trained.best['epoch']}" in line_of(text, "metrics")


def test_the_text_ends_with_what_setup_bound(trained):
    text = str(trained)
    assert text.endswith(str(trained.report))
    assert "\nbindings\n" in text
    assert "smoothing" in text.split("\nbindings\n")[1]


def test_the_other_forms_say_the_same(trained):
    out = io.StringIO()
    Console(file=out, width=200, force_terminal=True, force_jupyter=False, color_system="standard").print(trained)
    plain = Console(file=io.StringIO(), width=200, force_jupyter=False)
    plain.print(trained)
    drawn = [line.rstrip() for line in plain.file.getvalue().splitlines()]
    assert drawn == [line.rstrip() for line in str(trained).splitlines()]
    assert "\x1b[1mexperiment\x1b[0m" in out.getvalue()
    html = trained._repr_html_()
    for value in ("Tiny", "tutorial", trained.run_id, "build_model, seed 42", "step 24, completed", "bindings"):
        assert value in html
    assert repr(trained) == (
        f"<Nitro Tiny, preset tutorial, run {trained.run_id} in {trained.run_dir}, epoch 2 of 2, step 24, completed>"
    )


def test_the_weights_source_is_named(trained, tmp_path):
    loaded = Nitro(Tiny(run_dir=tmp_path), data={}, weights=trained.run_path / "checkpoints" / trained_name(trained))
    assert line_of(str(loaded), "weights").startswith(f"{loaded.checkpoint_source} (83 parameters")
    assert trained_name(trained) in line_of(str(loaded), "weights")
    assert line_of(str(loaded), "run") == "none yet"
    assert line_of(str(loaded), "metrics") == "none yet"
    restored = Nitro(Tiny(run_dir=tmp_path), restore_best=True).train()
    assert restored.restored == restored.checkpoint_source
    assert line_of(str(restored), "weights").startswith(f"{restored.restored}, restored after training")


def trained_name(trained):
    return trained.best["checkpoint"].rpartition("/")[2]


def test_names_of_a_user_are_made_visible_and_escaped():
    shown = Nitro(Tiny(), data={}, preset="a<b>\x1b[2J")
    assert line_of(str(shown), "preset") == r"a<b>\x1b[2J"
    assert r"a&lt;b&gt;\x1b[2J" in shown._repr_html_()


def test_a_handle_in_setup_can_be_printed_too():
    seen = []
    handle = register_phase_monitor(lambda phase, step, epoch, info: seen.append(str(info["nitro"])))
    try:
        Nitro(Tiny(width=5))  # a program of its own, so that the setup has a phase to tell
    finally:
        unregister_phase_monitor(handle)
    assert "<Nitro Tiny, in setup>" in seen


def test_the_history_of_a_handle_has_title_place_and_monitor(trained):
    history = trained.history
    assert history.title == "Tiny"
    assert trained.run_id in history.place
    assert history.monitor == ("acc", "max")
    assert history.columns[:4] == ("epoch", "step", "train_loss", "acc")
    scores = {row["epoch"]: row["acc"] for row in history}
    assert history.best["epoch"] == max(scores, key=scores.get)
    assert str(history).count("*") == 2  # the row, and the note on what the star means
    assert "* best acc (max)" in str(history)


def test_arrays_taken_before_training_are_gone_after_it_and_copies_stay(tmp_path):
    handle = Nitro(Tiny(run_dir=tmp_path, max_epochs=1), ema=EMA(0.9))
    taken = {"params": handle.params, "state": handle.state, "ema": handle.ema, "opt": handle.train_state.opt}
    kept = jax.tree.map(np.array, handle.params)
    handle.train()
    for name, tree in taken.items():
        with pytest.raises(RuntimeError, match="deleted"):
            jax.tree.map(np.array, tree)
        if name != "opt":
            documented = getattr(type(handle), name).__doc__
            assert "train()" in documented
            assert "cop" in documented
    moved = jax.tree.map(lambda new, old: float(np.abs(np.array(new) - old).max()), handle.params, kept)
    assert min(jax.tree.leaves(moved)) > 0
