"""Batch fields go to hooks by the names of their keyword-only parameters."""

from __future__ import annotations

import pytest

from nitro_cli.errors import RoutingError
from nitro_cli.experiment import Experiment, HookTable, compile_view, resolve_routing


class Routed(Experiment):
    def forward(self, model, params, state, *, image):
        return image, state

    def loss(self, outputs, *, label, weight=None):
        return (outputs, label, weight)

    def metrics(self, outputs, *, label, name):
        return {"label": label, "name": name}


class TakesAll(Experiment):
    def forward(self, model, params, state, *, image, **fields):
        return image, fields


BATCH = {"name": ["a"], "image": 1, "label": 2, "unused": 3}


def test_each_hook_receives_the_fields_it_declares():
    routing = resolve_routing(HookTable(Routed()), BATCH, traced=("forward", "loss"), host=("metrics",))
    assert routing.fields_for("forward") == ("image",)
    assert routing.fields_for("loss") == ("label",)
    assert routing.fields_for("metrics") == ("name", "label")
    assert routing.kwargs("metrics", BATCH) == {"label": 2, "name": ["a"]}
    assert routing.kwargs("forward", BATCH) == {"image": 1}


def test_only_fields_of_traced_hooks_are_device_fields():
    routing = resolve_routing(HookTable(Routed()), BATCH, traced=("forward", "loss"), host=("metrics",))
    assert routing.device_fields == {"image", "label"}
    assert resolve_routing(HookTable(Routed()), BATCH, traced=("forward",), host=("metrics",)).device_fields == {
        "image"
    }


def test_a_keyword_with_a_default_is_optional():
    with_weight = {**BATCH, "weight": 9}
    routing = resolve_routing(HookTable(Routed()), with_weight, traced=("loss",))
    assert routing.device_fields == {"label", "weight"}
    assert routing.kwargs("loss", with_weight) == {"label": 2, "weight": 9}
    assert resolve_routing(HookTable(Routed()), BATCH, traced=("loss",)).kwargs("loss", BATCH) == {"label": 2}
    assert routing.kwargs("loss", BATCH) == {"label": 2}


def test_var_keywords_receive_the_whole_batch():
    routing = resolve_routing(HookTable(TakesAll()), BATCH, traced=("forward",))
    assert routing.device_fields == set(BATCH)
    late = {**BATCH, "late": 4}
    assert routing.kwargs("forward", late) == late


def test_a_missing_required_keyword_names_hook_keyword_fields_and_nearest():
    with pytest.raises(RoutingError) as caught:
        resolve_routing(HookTable(Routed()), {"img": 1, "labels": 2}, traced=("forward", "loss"))
    text = str(caught.value)
    assert "forward" in text
    assert "'image'" in text
    assert "img, labels" in text
    with pytest.raises(RoutingError) as caught:
        resolve_routing(HookTable(Routed()), {"image": 1, "labels": 2}, traced=("forward", "loss"))
    assert caught.value.nearest == ("labels",)


def test_a_prediction_batch_needs_only_the_fields_of_forward():
    routing = resolve_routing(HookTable(Routed()), BATCH, traced=("forward", "loss"), host=("metrics",))
    assert routing.kwargs("forward", {"image": 5}) == {"image": 5}
    with pytest.raises(RoutingError, match="loss"):
        routing.kwargs("loss", {"image": 5})


def test_a_view_routes_like_its_experiment():
    view = compile_view(Routed())
    routing = resolve_routing(HookTable(view), BATCH, traced=("forward",))
    assert routing.kwargs("forward", BATCH) == {"image": 1}


def test_a_batch_field_taken_by_position_is_refused_with_the_signature_to_write():
    class Positional(Experiment):
        def loss(self, outputs, label):
            return 0

    with pytest.raises(RoutingError, match="'label' by position") as caught:
        HookTable(Positional()).fields("loss")
    assert "def loss(self, outputs, *, <batch fields>)" in caught.value.fix


def test_too_few_positional_parameters_are_refused():
    class Short(Experiment):
        def forward(self, model, *, image):
            return 0

    with pytest.raises(RoutingError, match="called with 3"):
        HookTable(Short()).fields("forward")


def test_a_hook_that_is_not_written_or_not_routed_is_refused():
    with pytest.raises(RoutingError, match="does not define the hook 'metrics'"):
        resolve_routing(HookTable(TakesAll()), BATCH, host=("metrics",))
    with pytest.raises(RoutingError, match="'los' is not routed"):
        resolve_routing(HookTable(Routed()), BATCH, traced=("loss",)).fields_for("los")
