"""`weights` and `resume` through the handle: what is refused, what is warned of, what is compatible."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest

from nitro_cli import EMA, Average, Checkpointer, EarlyStopping, GraphConst, Last, Nitro
from nitro_cli.checkpoints import average, read_manifest, read_record, resolve_source, runs
from nitro_cli.errors import IncompatibleError, NitroWarning
from tests.faults.outcome import assert_equal, outcome
from tests.faults.subject import Subject
from tests.faults.test_kill_matrix import ROOT
from tests.tiny import Light


def bits(tree: Any) -> list[bytes]:
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(tree)]


def params_of(path: Path, prefix: str = "params/") -> list[bytes]:
    arrays = read_record(path).arrays
    return [arrays[name].tobytes() for name in sorted(arrays) if name.startswith(prefix)]


@pytest.fixture
def root(uninterrupted: Path, tmp_path: Path) -> Path:
    """A copy of a finished run: its best is epoch 1, its last is epoch 2."""
    shutil.copytree(uninterrupted / ROOT, tmp_path / ROOT)
    return tmp_path / ROOT


def handle(root: Path, e: Subject | None = None, **words: Any) -> Nitro:
    return Nitro(e if e is not None else Subject(), run_dir=str(root), **words)


class Deeper(Subject):
    def build_model(self, rng: Any) -> Any:
        network, params, state = super().build_model(rng)
        wide = {"kernel": np.zeros((self.width, 4), np.float32), "bias": params["head"]["bias"]}
        return network, {"body": params["body"], "head": wide, "extra": np.zeros(2, np.float32)}, state

    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any:
        head = {**params["head"], "kernel": params["head"]["kernel"][:, :3]}
        return super().forward(model, {"body": params["body"], "head": head}, state, x=x)


@pytest.mark.parametrize("word", ["resume", "weights"])
def test_another_parameter_tree_is_refused_naming_the_leaves_with_both_shapes(root: Path, word: str) -> None:
    with pytest.raises(IncompatibleError, match="parameters") as caught:
        handle(root, Deeper(), **{word: ("latest", "latest")})
    why = caught.value.why or ""
    assert "params/head/kernel: float32[8, 4] here, float32[8, 3] in the checkpoint" in why
    assert "params/extra: float32[2] here, not in the checkpoint" in why


class Adaptive(Subject):
    def optimizer(self, group: Any = None) -> Any:
        return optax.adam


def test_another_optimizer_layout_is_refused_naming_a_leaf(root: Path) -> None:
    with pytest.raises(IncompatibleError, match="optimizer state") as caught:
        handle(root, Adaptive(), resume="auto")
    assert "opt/" in (caught.value.why or "")


class Anchored(Subject):
    weight_decay = 0.1
    start: float = 0.0

    def build_model(self, rng: Any) -> Any:
        network, params, state = super().build_model(rng)
        return network, jax.tree.map(lambda leaf: leaf + self.start, params), state

    def decay_anchor(self, group: str) -> Any:
        return "w0"


class Pulled(Light):
    weight_decay = 0.1
    start: float = 0.0

    def build_model(self, rng: Any) -> Any:
        network, params, state = super().build_model(rng)
        return network, jax.tree.map(lambda leaf: leaf + self.start, params), state

    def decay_anchor(self, group: str) -> Any:
        return "w0"


def test_another_anchor_is_refused_naming_the_group(tmp_path: Path) -> None:
    Nitro(Pulled(run_dir=tmp_path)).train()
    Nitro(Pulled(run_dir=tmp_path), resume="auto", max_epochs=2)
    with pytest.raises(IncompatibleError, match="decay anchor of group default"):
        Nitro(Pulled(run_dir=tmp_path, start=1e-3), resume="auto", max_epochs=2)


def test_the_seed_is_the_records_with_a_warning(root: Path, uninterrupted: Path) -> None:
    newest = max(read_manifest(root).entries, key=lambda entry: entry.step)
    shutil.rmtree(root / newest.path)
    with pytest.warns(NitroWarning, match="the seed is the checkpoint's, 42, not 7"):
        handle(root, seed=7, resume="auto").train()
    assert_equal(outcome(root), outcome(uninterrupted / ROOT))


class Later(Subject):
    heads: GraphConst[int] = 1


def test_a_field_that_the_record_predates_is_compatible_at_its_default_only(root: Path) -> None:
    handle(root, Later(), resume="auto")
    with pytest.raises(IncompatibleError, match="GraphConst") as caught:
        handle(root, Later(heads=2), resume="auto")
    assert "heads: 2 here" in (caught.value.why or "")


class Tabled(Subject):
    table: GraphConst[np.ndarray] = np.zeros(3000)


def test_graphconst_values_are_compared_by_content_not_by_their_text(tmp_path: Path) -> None:
    table = np.zeros(3000)
    e = Tabled(table=table, max_epochs=1)
    handle(tmp_path, e).train()
    handle(tmp_path, e, resume="auto", max_epochs=2)
    with pytest.raises(IncompatibleError, match="GraphConst"):
        handle(tmp_path, e.replace(table=np.where(np.arange(3000) == 1500, 1.0, table)), resume="auto", max_epochs=2)


def test_a_weights_load_warns_about_graphconst_differences_and_a_host_field_may_change(root: Path) -> None:
    with pytest.warns(NitroWarning, match="heads: 2 here"):
        handle(root, Later(heads=2), weights=("latest", "best"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        handle(root, Subject(samples=80), weights=("latest", "best"))


def test_a_finished_run_trains_nothing_says_what_to_change_and_is_left_as_it_was(root: Path) -> None:
    before = outcome(root)
    with pytest.warns(NitroWarning, match="raise max_epochs to go on"):
        nitro = handle(root, resume="auto").train()
    assert nitro.stop_reason == "completed"
    assert nitro.step == 10
    assert_equal(outcome(root), before)
    (summary,) = runs(root)
    assert (nitro.run_id, summary.status) == (summary.id, "completed")
    with pytest.warns(NitroWarning, match="raise max_epochs"):
        handle(root, resume="auto", max_epochs=1).train()
    assert_equal(outcome(root), before)


def test_a_branch_that_would_train_nothing_leaves_no_empty_run(root: Path) -> None:
    with pytest.warns(NitroWarning, match="raise max_epochs"):
        nitro = handle(root, resume=("latest", "best"), max_epochs=1).train()
    assert nitro.stop_reason == "completed"
    assert nitro.run_id is None
    assert len(runs(root)) == 1


def test_a_run_stopped_early_trains_nothing_under_the_same_rule_and_goes_on_under_more_patience(tmp_path: Path) -> None:
    rule = EarlyStopping(patience=1, min_delta=2.0)
    e = Subject(max_epochs=9, early_stop=rule)
    assert handle(tmp_path, e).train().stop_reason == "early_stop"
    at = runs(tmp_path)[0].epochs[-1]
    with pytest.warns(NitroWarning, match="early_stop.patience"):
        nitro = handle(tmp_path, e, resume="auto").train()
    assert (nitro.stop_reason, nitro.epoch) == ("early_stop", at)
    more = EarlyStopping(patience=3, min_delta=2.0)
    nitro = handle(tmp_path, e, early_stop=more, resume="auto").train()
    # The counter goes on where it was: two more bad epochs use up the new patience.
    assert (nitro.stop_reason, nitro.epoch) == ("early_stop", at + 2)


def test_resuming_the_best_branches_with_its_parent_and_overwrites_nothing(root: Path) -> None:
    (first,) = runs(root)
    kept = outcome(root, first.id)
    best = min(read_manifest(root).entries, key=lambda entry: entry.step)
    nitro = handle(root, resume=("latest", "best")).train()
    assert nitro.run_id != first.id
    branch = next(summary for summary in runs(root) if summary.id == nitro.run_id)
    assert branch.parent == best.path
    assert_equal(outcome(root, first.id), kept)
    # The branch went on from epoch 1 under the same settings: it ends where the first run did.
    assert outcome(root, nitro.run_id).arrays["params/head/kernel"].tobytes() == (
        kept.arrays["params/head/kernel"].tobytes()
    )
    assert [row["epoch"] for row in outcome(root, nitro.run_id).history] == [1, 2]


def test_restore_optimizer_takes_the_optimizer_state_and_nothing_else(root: Path) -> None:
    path = root / max(read_manifest(root).entries, key=lambda entry: entry.step).path
    plain = handle(root, weights=str(path))
    restored = handle(root, weights=str(path), restore_optimizer=True)
    held = sorted(array.tobytes() for name, array in read_record(path).arrays.items() if name.startswith("opt/"))
    assert sorted(bits(restored.train_state.opt)) == held
    assert sorted(bits(plain.train_state.opt)) != held
    assert (restored.step, restored.epoch) == (0, 0)


def test_load_ema_takes_the_average_for_the_weights_and_is_refused_without_one(root: Path, tmp_path: Path) -> None:
    path = root / max(read_manifest(root).entries, key=lambda entry: entry.step).path
    assert sorted(bits(handle(root, weights=str(path), load_ema=True).params)) == sorted(params_of(path, "ema/"))
    assert sorted(bits(handle(root, weights=str(path)).params)) == sorted(params_of(path))
    bare = handle(tmp_path / "bare", ema=None, max_epochs=1).train()
    with pytest.raises(IncompatibleError, match="no EMA"):
        handle(bare.run_dir, weights=("latest", "latest"), load_ema=True)


def test_restore_best_ends_with_the_best_weights_or_an_average_and_refuses_to_train_on(tmp_path: Path) -> None:
    keep = Checkpointer(keep=(Last(3),))
    nitro = handle(tmp_path, checkpointer=keep, max_epochs=3, restore_best=True).train()
    assert nitro.best is not None
    assert sorted(bits(nitro.params)) == sorted(params_of(Path(nitro.best["checkpoint"])))
    with pytest.raises(IncompatibleError, match="resume="):
        nitro.train()
    wanted = Average(Last(2))
    averaged = handle(tmp_path, checkpointer=keep, max_epochs=3, restore_best=wanted).train()
    expected = average(resolve_source((averaged.run_id, wanted), tmp_path)).arrays  # type: ignore[arg-type]
    assert sorted(bits(averaged.params)) == sorted(
        array.tobytes() for name, array in expected.items() if name.startswith("params/")
    )


@pytest.mark.parametrize("w0", ["build_model", "weights", "tree"])
def test_w0_is_what_build_model_made_the_loaded_weights_or_a_tree(root: Path, w0: str) -> None:
    fresh = handle(root / "none", Anchored()).params
    tree = jax.tree.map(lambda leaf: np.full(leaf.shape, 0.5, np.float32), fresh)
    nitro = handle(root, Anchored(), weights=("latest", "latest"), w0=tree if w0 == "tree" else w0)
    expected = {"build_model": fresh, "weights": nitro.params, "tree": tree}[w0]
    anchors = {np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(nitro.plan.optim.anchors) if np.ndim(leaf) == 2}
    assert anchors == {np.asarray(expected[name]["kernel"]).tobytes() for name in ("body", "head")}


def test_weights_start_a_new_run_and_a_live_handle_is_a_source(root: Path) -> None:
    first = handle(root, weights=("latest", "best"))
    assert (first.step, first.epoch) == (0, 0)
    second = handle(root, weights=first)
    assert bits(second.params) == bits(first.params)
    with pytest.raises(IncompatibleError, match="no EMA"):
        handle(root, weights=handle(root / "x", ema=None), load_ema=True)
    assert EMA(beta=0.9) == first.experiment.ema


def test_two_resumes_of_the_same_stop_come_to_the_same_end(tmp_path: Path, uninterrupted: Path) -> None:
    stopped = handle(tmp_path)
    stopped.request_stop()
    stopped.train()
    assert (stopped.stop_reason, stopped.state_saved, stopped.step) == ("requested", True, 1)
    # The same handle may go on as well; it must not stop again for the old request.
    stopped.train()
    assert stopped.stop_reason == "completed"
    assert_equal(outcome(tmp_path), outcome(uninterrupted / ROOT))
