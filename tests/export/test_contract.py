"""Export hooks that do not fit together are refused, and nothing is written."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ExportSpec, Nitro, NitroError, NitroWarning
from nitro_cli.errors import ConfigError, NotFoundError
from nitro_cli.export import backend_names, export
from tests.export.served import SOFTMAX, Scores, Softmaxed, Wired

X = ExportSpec("x", "float32", (1, 6))


def _returns(value: Any) -> Callable[..., Any]:
    return lambda self, *args, **kwargs: value


MISUSES: list[tuple[str, dict[str, Any], str]] = [
    ("no specs", {"export_inputs": []}, "export_inputs` returned"),
    ("not a list", {"export_outputs": "scores"}, "export_outputs` returned"),
    ("not a spec", {"export_inputs": ["x"]}, "str in its list"),
    ("no shape", {"export_inputs": [ExportSpec("x", "float32")]}, "needs a dtype and a shape"),
    ("twice", {"export_inputs": [X, X]}, "more than once"),
    ("an input with a source", {"export_inputs": [ExportSpec("x", "float32", (1, 6), "y")]}, "has a source"),
    ("an echo without a source", {"export_outputs": [ExportSpec("x")]}, "name of an input and no source"),
    ("two names for one array", {"export_outputs": [ExportSpec("a"), ExportSpec("b")]}, "returns one array"),
    ("another dtype", {"export_outputs": [ExportSpec("scores", "float16")]}, "the program gives float32"),
    ("another shape", {"export_outputs": [ExportSpec("scores", "float32", (1, 4))]}, "the program gives"),
    ("an unknown size on the wire", {"export_inputs": [ExportSpec("x", "float32", (1, -1))]}, "any size"),
    (
        "no batch axis",
        {"export_inputs": [ExportSpec("x", "float32", (6,))]},
        r"export_inputs declares: x float32\[batch\]",
    ),
    ("64 bits", {"export_inputs": [ExportSpec("x", "float64", (1, 6))]}, "JAX would make it float32"),
    ("not the batch", {"export_preprocess": {"x": jnp.zeros((5, 6))}}, "the first axis of an output is the batch"),
    ("no batch", {"export_preprocess": jnp.zeros((1, 6))}, "export_preprocess` returned"),
    ("another field", {"export_preprocess": {"z": jnp.zeros((1, 6))}}, "x"),
    ("client outputs alone", {"export_client_outputs": [X]}, "without `export_postprocess`"),
    ("client inputs alone", {"export_client_inputs": [X]}, "without `export_postprocess`"),
    ("a postprocess that is not text", {"export_postprocess": 3}, "returned int"),
    ("a postprocess that is not Python", {"export_postprocess": "def ("}, "not Python"),
    ("a postprocess without its function", {"export_postprocess": "def post_process(o): pass"}, "no function"),
    ("a postprocess that fails", {"export_postprocess": "def postprocess(o): return o['logits']"}, "KeyError"),
    ("a postprocess undeclared", {"export_postprocess": SOFTMAX}, "gives probabilities; declared are scores"),
    ("provenance", {"export_provenance_extra": ["red"]}, "export_provenance_extra` returned list"),
]


@pytest.mark.parametrize(("hooks", "told"), [m[1:] for m in MISUSES], ids=[m[0] for m in MISUSES])
def test_a_misuse_is_refused_before_anything_is_written(tmp_path: Path, hooks: dict[str, Any], told: str) -> None:
    cls = type("Misused", (Scores,), {name: _returns(value) for name, value in hooks.items()})
    nitro = Nitro(cls(), data={})
    with pytest.raises(NitroError, match=told):
        nitro.export(dir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_output_that_forward_does_not_return_names_those_it_does(tmp_path: Path) -> None:
    class Misspelt(Wired):
        def export_outputs(self) -> list[ExportSpec]:
            return [ExportSpec("score")]

    with pytest.raises(ConfigError, match="scores") as caught:
        Nitro(Misspelt(), data={}).export(dir=tmp_path)
    assert caught.value.nearest[0] == "scores"


@pytest.mark.parametrize(
    "words",
    [
        {"batch_sizes": (0,)},
        {"batch_sizes": (True,)},
        {"batch_sizes": ("1",)},
        {"name": "../up"},
        {"name": ".hidden"},
        {"name": " "},
    ],
)
def test_words_that_cannot_be_are_refused(tmp_path: Path, words: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Nitro(Scores(), data={}).export(dir=tmp_path, **words)
    assert list(tmp_path.iterdir()) == []


def test_a_postprocess_whose_library_is_not_here_is_exported_with_a_warning(tmp_path: Path) -> None:
    class Elsewhere(Softmaxed):
        def export_postprocess(self) -> str:
            return "import a_library_of_the_server\n" + SOFTMAX

    with pytest.warns(NitroWarning, match="could not be tried here"):
        path = Nitro(Elsewhere(), data={}).export(dir=tmp_path)
    assert "a_library_of_the_server" in (path / "postprocess.py").read_text()


def test_a_size_that_a_postprocess_chooses_is_declared_as_minus_one(tmp_path: Path) -> None:
    class Longest(Softmaxed):
        def export_client_outputs(self) -> list[ExportSpec]:
            return [ExportSpec("probabilities", "float32", (1, -1))]

    manifest = (Nitro(Longest(), data={}).export(dir=tmp_path) / "manifest.json").read_text().replace(" ", "")
    assert '"shape":[\nnull,\nnull\n]' in manifest


def test_an_unknown_backend_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        Nitro(Scores(), data={}).export("bundel", dir=tmp_path)
    assert caught.value.nearest[0] == "bundle"
    assert {"bundle", "onnx", "safetensors", "savedmodel"} <= set(backend_names())


class Listing:
    """A backend of one method, as a plugin would bring it."""

    suffix = ".txt"

    def write(self, job: Any) -> Path:
        job.target.write_text(",".join(sorted(job.served.weights)))
        return Path(job.target)


def test_a_backend_can_be_an_object_or_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from nitro_cli.export import backends

    nitro = Nitro(Scores(), data={})
    assert "params.head.kernel" in nitro.export(Listing(), dir=tmp_path, name="object").read_text()
    here = EntryPoint("listing", f"{__name__}:Listing", backends.GROUP)
    broken = EntryPoint("broken", "no_such_module:Backend", backends.GROUP)
    monkeypatch.delenv("NITRO_NO_PLUGINS", raising=False)
    monkeypatch.setattr(backends, "entry_points", lambda group: [here, broken] if group == backends.GROUP else [])
    monkeypatch.setattr(EntryPoint, "load", lambda self: Listing if self.name == "listing" else __import__("no_such"))
    assert {"listing", "broken"} <= set(backend_names())
    assert export(nitro, "listing", dir=tmp_path, name="plugin").name == "plugin.txt"
    with pytest.raises(ConfigError, match="'broken' cannot be imported"):
        export(nitro, "broken", dir=tmp_path)
    monkeypatch.setenv("NITRO_NO_PLUGINS", "1")
    assert "listing" not in backend_names()


def test_a_backend_without_the_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no method `write`"):
        Nitro(Scores(), data={}).export(object(), dir=tmp_path)


@pytest.mark.parametrize(("backend", "package"), [("savedmodel", "tensorflow"), ("onnx", "onnxruntime")])
def test_a_backend_whose_packages_are_missing_is_named_as_pip_takes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, package: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(ConfigError) as caught:
        Nitro(Scores(), data={}).export(backend, dir=tmp_path)
    assert caught.value.fix is not None
    assert re.match(rf"pip install .*\b{package}\b", caught.value.fix)
    assert list(tmp_path.iterdir()) == []


def test_the_weights_alone_are_written_under_dotted_names(tmp_path: Path) -> None:
    from safetensors import safe_open

    nitro = Nitro(Scores(), data={})
    path = nitro.export("safetensors", dir=tmp_path)
    with safe_open(path, framework="np") as file:
        assert sorted(file.keys()) == [
            "params.body.bias", "params.body.kernel", "params.head.bias", "params.head.kernel", "state.mean",
        ]  # fmt: skip
        np.testing.assert_array_equal(file.get_tensor("params.head.kernel"), nitro.params["head"]["kernel"])
        assert "tests.export.served:Scores" in file.metadata()["provenance"]
