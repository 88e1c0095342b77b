"""Parts: frozen models in fields of an experiment, which supply hooks that it does not write."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from nitro_cli.errors import ConfigError, HostFieldError, RoutingError
from nitro_cli.experiment import (
    BatchField,
    Device,
    Experiment,
    FieldKind,
    GraphConst,
    Hook,
    HookTable,
    Host,
    Part,
    Private,
    check_graphconst,
    check_hooks,
    compile_view,
    device_names,
    field_value,
    graphconst_fingerprint,
    host_view,
    part_fields,
)
from nitro_cli.text import Catalogue

SCORES: Catalogue[Any] = Catalogue("score", "nitro.scores_of_a_test")


class Score(Part):
    """A family of parts."""

    catalogue = SCORES
    precedence = 5


@SCORES.register("scaled")
class Scaled(Score):
    """Supplies `loss` and `metrics`."""

    size: int = 2
    factor: Device[float] = 0.5
    note: Host[str] = "told"
    target: str | tuple[str, ...] = "label"

    def loss(self, outputs: Any, *, target: Any) -> Any:
        return self.factor * outputs + target + self.size

    def metrics(self, outputs: Any, *, label: Any, weight: Any = 1) -> Any:
        return {"sum": outputs + label * weight}

    def hooks(self) -> dict[str, Hook]:
        return {"loss": Hook(self.loss, {"target": self.target}), "metrics": Hook(self.metrics)}


@SCORES.register("scaled", version=2)
class Weighted(Scaled):
    weight: Device[float] = 1.0


class Scheduler(Part):
    """Supplies what it takes the experiment for."""

    share: float = 0.5

    def rate(self, e: Any, group: str) -> float:
        return e.learning_rate * self.share

    def hooks(self) -> dict[str, Hook]:
        return {"group_learning_rate": Hook(self.rate, with_experiment=True)}


class Written(Experiment):
    def build_data(self, dist: Any) -> Any: ...
    def build_model(self, rng: Any) -> Any: ...
    def forward(self, model: Any, params: Any, state: Any, *, x: Any) -> Any: ...


class Scored(Written):
    score = Scaled(size=3)


def test_a_part_supplies_what_the_class_does_not_write_and_the_class_wins():
    table = HookTable(Scored())
    assert table.owners() == {
        "build_data": "Written",
        "build_model": "Written",
        "forward": "Written",
        "loss": "score (scaled)",
        "metrics": "score (scaled)",
    }
    check_hooks(table, Scored())
    assert table.call(Scored(), "loss", 10.0, batch={"label": 1.0}) == 9.0

    class Own(Scored):
        def loss(self, outputs: Any, *, label: Any) -> Any:
            return -self.score.loss(outputs, target=label)

    table = HookTable(Own())
    assert (table.owner("loss"), table.owner("metrics")) == ("Own", "score (scaled)")
    assert table.call(Own(), "loss", 10.0, batch={"label": 1.0}) == -9.0


def test_a_field_without_annotation_takes_any_part_of_the_family():
    assert Scored(score={"kind": "scaled", "version": 2, "weight": 2.0}).score == Weighted(weight=2.0)
    assert Scored(score={"kind": "scaled", "factor": 1}).score == Scaled(factor=1.0)
    assert Scored(score=Weighted()).score.identity() == {"kind": "scaled", "version": 2}


@pytest.mark.parametrize(
    ("value", "message", "nearest"),
    [
        ({"kind": "scald"}, r"Scored.score: there is no score scald; there are: scaled", ("scaled",)),
        ({"kind": "scaled", "version": 3}, "version 3; scaled has the versions 1, 2", ()),
        ({"factor": 1.0}, "the table needs a `kind`; there are: scaled", ()),
        ({"kind": "scaled", "factr": 1.0}, "score.factr: unknown name", ("factor",)),
        ({"kind": "scaled", "factor": "x"}, r"Scored.score.factor: should be a valid number, got 'x'", ()),
        ({"kind": "scaled", "size": 2.5}, "score.size: should be a valid integer", ()),
        ({"kind": 3}, "`kind` should be text", ()),
        (Scheduler(), "valid dictionary or instance of Score", ()),
    ],
)
def test_what_is_no_such_part_is_refused_at_its_place(value, message, nearest):
    with pytest.raises(ConfigError, match=message) as refused:
        Scored(score=value)
    assert refused.value.nearest == nearest


def test_structure_is_graphconst_by_content_and_device_and_host_fields_are_no_part_of_it():
    e = Scored()
    assert Scored.__nitro_kinds__["score"] is FieldKind.GRAPHCONST
    assert e.graphconst_items() == {"score": {"kind": "scaled", "size": 3, "target": "label"}}
    check_graphconst(e)
    same = e.replace(score=Scaled(size=3, factor=0.9, note="other"))
    assert graphconst_fingerprint(same) == graphconst_fingerprint(e)
    assert graphconst_fingerprint(Scored(score=Scaled(size=4))) != graphconst_fingerprint(e)
    assert graphconst_fingerprint(Scored(score=Weighted(size=3))) != graphconst_fingerprint(e)


def test_device_fields_are_known_by_dotted_names():
    e = Scored()
    assert device_names(e) == ("score.factor",)
    assert field_value(e, "score.factor") == 0.5
    changed = e.replace(**{"score.factor": 2, "score.size": 7})
    assert (changed.score.factor, changed.score.size, e.score.factor) == (2.0, 7, 0.5)
    assert changed.model_fields_set == {"score"}
    assert [(f.path, f.kind.value) for f in part_fields(e)] == [
        ("score.size", "graphconst"),
        ("score.factor", "device"),
        ("score.note", "host"),
        ("score.target", "graphconst"),
    ]
    with pytest.raises(ConfigError) as refused:
        e.replace(**{"score.facter": 1.0})
    assert refused.value.nearest == ("score.factor",)
    with pytest.raises(ConfigError, match=r"Scaled.factor: should be a valid number"):
        e.replace(**{"score.factor": "x"})


def test_a_number_in_an_array_is_the_number_that_it_holds():
    e = Scored().replace(**{"score.factor": np.float32(0.25), "score.size": np.int64(5)})
    assert (type(e.score.factor), e.score.factor, type(e.score.size)) == (float, 0.25, int)
    assert Scaled(factor=jax.numpy.asarray(0.5)).factor == 0.5


def test_a_view_traces_device_fields_of_a_part_and_strips_its_host_fields():
    e = Scored()
    table = HookTable(e)

    def loss(factor: Any) -> Any:
        return table.call(compile_view(e, {"score.factor": factor}), "loss", 10.0, batch={"label": 1.0})

    assert float(jax.jit(loss)(2.0)) == 24.0
    assert float(jax.grad(loss)(2.0)) == 10.0
    view = compile_view(e)
    assert view.score.size == 3
    with pytest.raises(HostFieldError, match=r"score\.note"):
        str(view.score.note)
    held = host_view(e, {"score.factor": np.float32(4)})
    assert (held.score.factor, held.score.note) == (4.0, "told")
    with pytest.raises(ConfigError, match=r"'score\.size' is no Device field"):
        compile_view(e, {"score.size": 3})


def test_the_batch_fields_of_a_part_are_those_that_it_names_in_data():
    table = HookTable(Scored(score=Scaled(target=("labels", "y"))))
    signature = table.fields("loss")
    assert signature.keywords == {"target": BatchField(("labels", "y"))}
    assert signature.fields_for(["x", "y"]) == ("y",)
    assert signature.arguments({"x": 1, "y": 2, "labels": 3}) == {"target": 3}
    assert table.fields("metrics").arguments({"label": 1, "x": 0}) == {"label": 1}
    with pytest.raises(RoutingError, match="declares 'labels' or 'y'") as refused:
        signature.fields_for(["x", "label"])
    assert refused.value.nearest == ("label",)


def test_two_parts_that_supply_one_hook_are_refused_and_the_stronger_kind_wins():
    class Twice(Written):
        first: Scaled = Scaled()
        second: Scaled = Scaled()

    with pytest.raises(ConfigError, match="two parts supply the hook loss") as refused:
        HookTable(Twice())
    assert refused.value.where == "first (scaled) and second (scaled)"

    class Stronger(Part):
        precedence = 6
        offset: float = 0.0

        def hooks(self) -> dict[str, Hook]:
            return {"loss": Hook(lambda outputs: outputs)}

    class Mixed(Written):
        score: Score = Scaled()
        other: Stronger = Stronger()

    assert HookTable(Mixed()).owner("loss") == "other (Stronger)"
    assert HookTable(Mixed()).owner("metrics") == "score (scaled)"


def test_a_part_of_which_nothing_is_used_is_refused():
    class Overridden(Scored):
        def loss(self, outputs: Any) -> Any: ...
        def metrics(self, outputs: Any) -> Any: ...

    with pytest.raises(ConfigError, match=r"the part score \(scaled\) of Overridden is not used") as refused:
        HookTable(Overridden())
    assert "loss by Overridden, metrics by Overridden" in refused.value.why

    class Nothing(Part):
        pass

    class Empty(Written):
        thing: Nothing = Nothing()

    with pytest.raises(ConfigError, match="thing") as refused:
        HookTable(Empty())
    assert refused.value.why == "it supplies no hook"


def test_a_part_that_supplies_what_is_no_hook_is_refused():
    class Wrong(Part):
        def hooks(self) -> dict[str, Hook]:
            return {"los": Hook(lambda outputs: outputs)}

    class Holds(Written):
        thing: Wrong = Wrong()

    with pytest.raises(ConfigError, match="there is no hook 'los'") as refused:
        HookTable(Holds())
    assert refused.value.nearest == ("loss",)
    assert refused.value.where == "thing (Wrong)"


def test_a_hook_may_take_the_experiment():
    class Rated(Scored):
        rates: Scheduler = Scheduler()

    e = Rated(learning_rate=0.2)
    assert HookTable(e).call(e, "group_learning_rate", "head") == 0.1


def test_parts_in_a_tuple_and_inside_a_part_are_named_by_their_kind():
    class Holder(Part):
        scores: tuple[Score, ...] = (Scaled(),)

        def hooks(self) -> dict[str, Hook]:
            return {"loss": Hook(lambda outputs: self.scores[0].factor * outputs)}

    class Nested(Written):
        holder: Holder = Holder()

    e = Nested().replace(**{"holder.scores.scaled.factor": 3.0})
    assert device_names(e) == ("holder.scores.scaled.factor",)
    assert e.holder.scores[0].factor == 3.0
    view = compile_view(e, {"holder.scores.scaled.factor": 4.0})
    assert HookTable(e).call(view, "loss", 2.0) == 8.0

    class Several(Written):
        parts: tuple[Part, ...] = (Scaled(), Scheduler())

    assert HookTable(Several()).owner("loss") == "parts.scaled"


def test_two_parts_of_one_name_are_refused():
    class Pair(Written):
        scores: tuple[Score, ...] = (Scaled(), Scaled())

    for asked in (device_names, HookTable):
        with pytest.raises(ConfigError, match=r"two parts of Pair are both called scores\.scaled"):
            asked(Pair())


@pytest.mark.parametrize("marker", [GraphConst, Device, Host])
def test_a_field_that_holds_a_part_has_no_kind_of_its_own(marker):
    with pytest.raises(ConfigError, match="holds a part and is marked"):
        type(Written)("Marked", (Written,), {"__module__": __name__, "__annotations__": {"score": marker[Score]}})


def test_a_field_of_a_part_has_one_kind_around_its_type():
    with pytest.raises(ConfigError, match=r"Device\[\.\.\.\] inside its type"):

        class Inside(Part):
            rates: tuple[Device[float], ...] = ()

    with pytest.raises(ConfigError, match="'token' of the part Secret is Private"):

        class Secret(Part):
            token: Private[str] = ""

    with pytest.raises(ConfigError, match="called like the key that names parts in tables"):

        class Named(Score):
            kind: str = "x"


def test_parts_are_declared_and_their_tables_read_without_jax(tmp_path: Path):
    from tests.installed_tasks import install_tasks

    program = """
import sys
sys.modules["jax"] = sys.modules["jaxlib"] = None
sys.path.insert(0, sys.argv[1])
from nitro_cli.experiment import Experiment, HookTable, device_names
from nitro_cli.tasks import TASKS, Task
assert [(e.id, e.version, e.distribution) for e in TASKS.entries() if e.distribution] == [
    ("soft", 1, "soft-tasks"), ("soft", 2, "soft-tasks")
]
assert "soft_tasks" not in sys.modules
class E(Experiment):
    task: Task
e = E(task={"kind": "soft", "smoothing": 0.2})
print(device_names(e), HookTable(e).owner("loss"))
"""
    import nitro_cli

    root = str(Path(nitro_cli.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program, str(install_tasks(tmp_path))], cwd=root, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "('task.smoothing',) task (soft)"


def test_a_class_with_two_fields_of_one_family_reads_tables_and_names_in_both():
    class Outer(Part):
        first: tuple[Score, ...] = ()
        second: tuple[Score, ...] = ()

    assert Outer(first=["scaled"], second=[{"kind": "scaled", "size": 3}]) == Outer(
        first=(Scaled(),), second=(Scaled(size=3),)
    )
