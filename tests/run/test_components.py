"""Components: what has a state of its own is in every checkpoint, and a resume gives it back whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import EarlyStopping, Nitro, checkpoint_info
from nitro_cli.errors import ComponentError, ConfigError, HookError, NitroWarning
from tests.tiny import Light, stop_after


class Counter:
    """Counts the epochs that it is shown, and keeps an array beside."""

    def __init__(self, count: int = 0) -> None:
        self.count = count
        self.table: Any = np.arange(3.0)
        self.loaded: list[Any] = []

    def state(self) -> Any:
        return {"count": self.count, "of": [1, float("inf")], "table": {"a/b": self.table}}

    def load_state(self, state: Any, version: int) -> None:
        self.loaded.append((state, version))
        self.count, self.table = state["count"], state["table"]["a/b"]


class Optional(Counter):
    required = False


class Versioned(Counter):
    version = 3

    def check_state(self, state: Any, version: int) -> list[str]:
        return [f"{state['count']} of version {version} is too many"] if state["count"] > 9 else []


class Stubborn(Counter):
    def load_state(self, state: Any, version: int) -> None:
        super().load_state(state, version)
        if state["count"] == 5:
            raise ValueError("five is not for me")


def handle(run_dir: Path, resume: Any = None, *, epochs: int = 1, **components: Any) -> Nitro:
    class Counted(Light):
        def components(self) -> Any:
            return components

    return Nitro(Counted(), run_dir=run_dir, resume=resume, max_epochs=epochs)


def test_every_checkpoint_has_its_state_and_a_resume_gives_it_back(tmp_path: Path) -> None:
    kept = Counter(7)
    first = handle(tmp_path, counter=kept)
    assert (first.resume_status.kind, first.resume_status.fresh) == ("fresh", ("monitor", "counter"))
    first.train()
    kept.count = 8  # in memory alone
    kept.table[:] = 0
    again = Counter()
    resumed = handle(tmp_path, "auto", epochs=2, counter=again)
    assert again.count == 7
    np.testing.assert_array_equal(again.table, [0.0, 1.0, 2.0])
    (((state, version),)) = again.loaded
    assert (state["of"], version) == ([1, float("inf")], 1)
    status = resumed.resume_status
    assert (status.kind, status.epoch, status.step, status.restored) == ("resumed", 1, 2, ("monitor", "counter"))
    assert status.source is not None
    resumed.train()
    assert resumed.run_path is not None
    told = json.loads((resumed.run_path / "run.json").read_text())["resume"]
    assert (told["kind"], told["restored"]) == ("resumed", ["monitor", "counter"])


def test_a_resume_point_inside_an_epoch_has_it_too(tmp_path: Path) -> None:
    nitro = handle(tmp_path, counter=Counter(4))
    stop_after(nitro, 1)
    nitro.train()
    again = Counter()
    handle(tmp_path, "auto", counter=again)
    assert again.count == 4


def test_weights_alone_leave_components_fresh(tmp_path: Path) -> None:
    handle(tmp_path, counter=Counter(4)).train()
    kept = Counter(1)

    class Counted(Light):
        def components(self) -> Any:
            return {"counter": kept}

    nitro = Nitro(Counted(), run_dir=tmp_path, weights=("latest", "latest"))
    assert (nitro.resume_status.kind, nitro.resume_status.restored, kept.loaded) == ("weights", (), [])


def test_one_error_lists_all_that_a_resume_cannot_give_back_and_nothing_is_touched(tmp_path: Path) -> None:
    handle(tmp_path, same=Counter(2), gone=Counter(), newer=Versioned(), checked=Counter(12)).train()
    same, newer = Counter(), Counter()
    with pytest.raises(ComponentError) as refused:
        handle(tmp_path, "auto", epochs=2, same=same, added=Counter(), newer=newer, checked=Versioned())
    told = str(refused.value)
    for problem in (
        "added: not in the checkpoint",
        "gone: in the checkpoint, and this run has no such component",
        "newer: version 3 in the checkpoint, 1 here",
        "checked: 12 of version 1 is too many",
    ):
        assert problem in told
    assert refused.value.exit_code == 4
    assert same.loaded == newer.loaded == []


def test_optional_ones_may_be_missing_on_either_side_and_that_is_said(tmp_path: Path) -> None:
    handle(tmp_path, old=Optional(3)).train()
    with pytest.warns(NitroWarning) as told:
        nitro = handle(tmp_path, "auto", epochs=2, new=Optional(1))
    texts = [str(w.message) for w in told]
    assert any("no state of the component 'new': it starts fresh" in text for text in texts)
    assert any("has the component 'old', which this run has not" in text for text in texts)
    assert nitro.resume_status.fresh == ("new",)


def test_if_one_does_not_take_its_state_all_get_theirs_back(tmp_path: Path) -> None:
    handle(tmp_path, first=Counter(2), second=Counter(5), third=Counter(1)).train()
    first, second, third = Counter(70), Stubborn(80), Counter(90)
    with pytest.raises(ComponentError, match="'second' does not take its state back") as refused:
        handle(tmp_path, "auto", epochs=2, first=first, second=second, third=third)
    assert "five is not for me" in str(refused.value)
    assert (first.count, second.count, third.count) == (70, 80, 90)
    assert (len(first.loaded), len(second.loaded), len(third.loaded)) == (2, 2, 0)


class Silent:
    def state(self) -> Any:
        return {}


@pytest.mark.parametrize(
    ("returned", "error", "told"),
    [
        ([Counter()], HookError, "returned list"),
        ({"a b": Counter()}, HookError, "names one 'a b'"),
        ({"x": Silent()}, HookError, r"'x' has no load_state\(\)"),
        ({"monitor": Counter()}, ConfigError, "a component of nitro's"),
    ],
)
def test_what_is_no_component_is_refused_at_setup(tmp_path: Path, returned: Any, error: Any, told: str) -> None:
    class Wrong(Light):
        def components(self) -> Any:
            return returned

    with pytest.raises(error, match=told):
        Nitro(Wrong(), run_dir=tmp_path)


def test_a_state_that_no_record_can_hold_fails_the_run_naming_its_place(tmp_path: Path) -> None:
    kept = Counter()
    kept.state = lambda: {"deep": [{1: 2}]}  # type: ignore[method-assign]
    with pytest.raises(HookError, match="component 'counter' cannot be kept") as refused:
        handle(tmp_path, counter=kept).train()
    assert refused.value.where == "components.counter.deep[0]"


def test_early_stopping_is_a_component_among_them(tmp_path: Path, log_lines: Callable[..., Any]) -> None:
    rule = EarlyStopping(patience=9)
    Nitro(Light(), run_dir=tmp_path, early_stop=rule).train()
    nitro = Nitro(Light(), run_dir=tmp_path, early_stop=rule, resume="auto", max_epochs=2)
    assert nitro.resume_status.restored == ("early_stop", "monitor")
    meta = checkpoint_info(Path(str(nitro.resume_status.source))).meta
    assert meta.rules.early_stop["wait"] == 0
    without = Nitro(Light(), run_dir=tmp_path, resume="auto", max_epochs=2)
    assert without.resume_status.restored == ("monitor",)
