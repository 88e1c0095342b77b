"""ONNX files: each primitive against JAX's own value in onnxruntime, at several batch sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from nitro_cli import ExportSpec, Nitro, NitroWarning
from nitro_cli.errors import ConfigError
from nitro_cli.export.contract import WireContract
from nitro_cli.export.onnx.conversion import onnx_model
from nitro_cli.export.program import Served
from tests.export.alone import run_alone
from tests.export.served import Scores, Softmaxed, Wired, inputs

runtime = pytest.importorskip("onnxruntime")
lax = jax.lax
WEIGHT = np.random.default_rng(1).normal(size=(4, 5)).astype(np.float32)
KERNEL = np.random.default_rng(2).normal(size=(3, 3, 2, 4)).astype(np.float32)
TABLE = np.random.default_rng(3).normal(size=(7, 3)).astype(np.float32)
ROW, IMAGE, INDEX = ("float32", (4,)), ("float32", (6, 6, 2)), ("int32", (3,))


def _conv(**words: Any) -> Callable[[Any], Any]:
    dims = ("NHWC", "HWIO", "NHWC")
    return lambda x: lax.conv_general_dilated(
        x, KERNEL, **{"window_strides": (1, 1), "padding": "SAME", **words}, dimension_numbers=dims
    )


def _window(initial: float, monoid: Any, strides: int, padding: str) -> Callable[[Any], Any]:
    return lambda x: lax.reduce_window(x, initial, monoid, (1, 3, 2, 1), (1, strides, strides, 1), padding)


def _recurrent(x: Any) -> Any:
    step = lambda h, row: (jnp.tanh(h * 0.5 + row.sum()), h * 2)  # noqa: E731
    return jax.vmap(lambda row: jnp.append(*lax.scan(step, 0.0, row[:, None])))(x)


CASES: dict[str, tuple[tuple[str, tuple[int, ...]], Callable[[Any], Any]]] = {
    "exp log1p expm1": (ROW, lambda x: jnp.log1p(jnp.exp(x)) + jnp.expm1(x * 1e-3) + jnp.log1p(jnp.abs(x) * 1e-4)),
    "trigonometry": (ROW, lambda x: jnp.sin(x) + jnp.cos(x) * jnp.tanh(x) - jnp.arctan(x)),
    "roots and powers": (ROW, lambda x: lax.rsqrt(x**2 + 1) + jnp.sqrt(jnp.abs(x)) + x**3 + (x * x + 1) ** -2),
    "cbrt exp2": (ROW, lambda x: jnp.cbrt(x) + jnp.exp2(x) + jnp.square(x)),
    "rounding": (ROW, lambda x: jnp.round(x * 2) + jnp.floor(x) - jnp.ceil(x) + jnp.sign(x) + jnp.trunc(x)),
    "remainders": (ROW, lambda x: jnp.fmod(x, 0.7) + jnp.mod(x, 0.7)),
    "comparisons": (ROW, lambda x: ((x > 0) & (x < 1) | ~(x >= -1) ^ (x != 0.5)).astype(jnp.float32)),
    "selection": (ROW, lambda x: jnp.where(jnp.isfinite(x), jnp.clip(x, -0.5, 0.5), 0) + jnp.maximum(x, 0)),
    "activations": (ROW, lambda x: jax.nn.gelu(x) + jax.nn.silu(x) + jax.nn.softplus(x) + jax.nn.elu(x)),
    "exact gelu": (ROW, lambda x: jax.nn.gelu(x, approximate=False) + lax.erfc(x)),
    "softmax": (ROW, lambda x: jax.nn.log_softmax(x) + jax.nn.softmax(x) + jax.nn.logsumexp(x, -1, keepdims=True)),
    "layer norm": (ROW, lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)),
    "over the batch": (ROW, lambda x: x - x.mean(0) + x.shape[0]),
    "products": (ROW, lambda x: jnp.tanh(x @ WEIGHT) @ WEIGHT.T),
    "attention": (IMAGE, lambda x: jnp.einsum("bijc,bkjc->bikj", x, x) + jnp.einsum("bijc,bkjd->bikj", x, x)),
    "outer": (ROW, lambda x: x[:, :, None] * x[:, None, :]),
    "reductions": (IMAGE, lambda x: x.max((1, 2)) - x.min((1, 2)) + x.prod((1, 2)) + x.sum((1, 2))),
    "logical reductions": (IMAGE, lambda x: ((x > -3).all((1, 2)) & (x > 1).any((1, 2))).astype(jnp.int32)),
    "arguments": (IMAGE, lambda x: jnp.argmax(x, 1) + jnp.argmin(x, 1)),
    "cumulative": (IMAGE, lambda x: jnp.cumsum(x, 1) + lax.cumsum(x, 2, reverse=True)),
    "top k": (ROW, lambda x: lax.top_k(x, 2)[0] + lax.top_k(x, 2)[1]),
    "shapes": (IMAGE, lambda x: x.reshape(x.shape[0], -1, 4).transpose(0, 2, 1)[:, ::2, 1:-1]),
    "merging with the batch": (IMAGE, lambda x: (x.reshape(-1, 4) @ WEIGHT).reshape(x.shape[0], 18, 5)),
    "joining": (ROW, lambda x: jnp.concatenate([x, x[:, ::-1], jnp.zeros((x.shape[0], 2))], 1)),
    "padding": (IMAGE, lambda x: jnp.pad(x, ((0, 0), (1, 2), (0, 1), (0, 0)), constant_values=3)),
    "splitting": (ROW, lambda x: sum(p * i for i, p in enumerate(jnp.split(x, 2, axis=1)))),
    "slicing at an index": (IMAGE, lambda x: lax.dynamic_slice_in_dim(x, x.shape[1] - 2, 3, axis=1)),
    "iota": (ROW, lambda x: x + lax.broadcasted_iota(jnp.float32, x.shape, 0) + jnp.arange(4)),
    "convolution": (IMAGE, _conv()),
    "strided convolution": (IMAGE, _conv(window_strides=(2, 2), padding=((1, 0), (0, 2)))),
    "dilated convolution": (IMAGE, _conv(rhs_dilation=(2, 2))),
    "transposed convolution": (IMAGE, lambda x: lax.conv_transpose(x, KERNEL, (2, 2), "SAME")),
    "depthwise convolution": (
        IMAGE, lambda x: lax.conv_general_dilated(
            x, KERNEL[:, :, :1], (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2),
    ),
    "max pooling": (IMAGE, _window(-jnp.inf, lax.max, 2, "SAME")),
    "min pooling": (IMAGE, _window(jnp.inf, lax.min, 1, "VALID")),
    "sum pooling": (IMAGE, _window(0.0, lax.add, 2, "SAME")),
    "pooling of rows": (ROW, lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 2), (1, 2), "VALID")),
    "embedding": (INDEX, lambda i: jnp.asarray(TABLE)[i]),
    "embedding out of range": (INDEX, lambda i: jnp.nan_to_num(jnp.take(TABLE, i * 4, axis=0), nan=9)),
    "embedding along another axis": (INDEX, lambda i: jnp.moveaxis(jnp.take(TABLE.T, i % 7, axis=1), 0, -1)),
    "single elements": (IMAGE, lambda x: x[:, 0] + x[:, -1, 1:2] * x[:, 2, 3, None]),
    "slices": (IMAGE, lambda x: x[:, 1:-1, None, 2:4, 1] + x[..., ::-1][:, 1:5:1, None, :2, 0]),
    "strides over two axes": (IMAGE, lambda x: x[:, ::2, 1::3]),
    "lookups over two axes": (INDEX, lambda i: jnp.asarray(KERNEL)[i % 3, i[:, ::-1] % 3]),
    "integers": (INDEX, lambda i: i // 2 + i % 3 - jnp.abs(i - 2) + jnp.minimum(i, 1)),
    "a loop": (ROW, _recurrent),
    "calls": (ROW, lambda x: jax.checkpoint(jax.jit(jax.nn.relu))(x) + jax.nn.relu6(x)),
}  # fmt: skip


def _served(spec: tuple[str, tuple[int, ...]], function: Callable[[Any], Any]) -> Served:
    contract = WireContract(
        (ExportSpec("given", spec[0], (1, *spec[1])),), (ExportSpec("found"),), None, None, None
    )  # fmt: skip
    two = jax.eval_shape(function, jax.ShapeDtypeStruct((2, *spec[1]), spec[0]))
    outputs = (ExportSpec("found", two.dtype, (1, *two.shape[1:])),)
    whole = WireContract(contract.inputs, outputs, None, None, None)
    return Served(lambda weights, given: {"found": function(given)}, {}, whole, lambda *wire: {}, {})


@pytest.mark.parametrize("name", CASES)
def test_a_primitive_gives_what_jax_gives(name: str) -> None:
    (dtype, shape), function = CASES[name]
    model = onnx_model(_served((dtype, shape), function), {})
    session = runtime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    for size in (1, 7):
        rng = np.random.default_rng(size)
        given = (
            rng.integers(0, 7, (size, *shape)).astype(dtype)
            if dtype == "int32"
            else rng.normal(size=(size, *shape)).astype(dtype)
        )
        wanted = np.asarray(function(given))
        (found,) = session.run(["found"], {"given": given})
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (lambda x: jnp.sort(x, -1), "the primitive sort cannot be written"),
        (lambda x: lax.while_loop(lambda v: (v < 9).all(), lambda v: v + 1, x), "the primitive while"),
        (lambda x: x * 2 if x.shape[0] > 3 else x, "cannot be traced at an unknown batch size"),
        (lambda x: lax.scan(lambda c, _: (c + 1, None), x, None, length=1000)[0], "1000 turns"),
    ],
)
def test_what_cannot_be_written_is_named(function: Callable[[Any], Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        onnx_model(_served(ROW, function), {})


def test_what_the_outputs_do_not_depend_on_is_left_out() -> None:
    def function(x: Any) -> Any:
        jnp.sort(x, -1)
        return x * 2

    model = onnx_model(_served(ROW, function), {})
    assert [node.op_type for node in model.graph.node] == ["Mul", "Identity"]


RUN = """
import sys
import numpy as np
import onnxruntime
for name in ("jax", "nitro_cli", "onnx"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise SystemExit(name + " can be imported here")
session = onnxruntime.InferenceSession(sys.argv[1], providers=["CPUExecutionProvider"])
given = np.load(sys.argv[2])
np.savez(sys.argv[3], **{key: session.run(["scores"], {"x": given[key]})[0] for key in given.files})
"""


def test_a_file_gives_what_predict_gives_with_onnxruntime_alone(tmp_path: Path) -> None:
    nitro = Nitro(Scores(), data={})
    wanted = {str(size): nitro.predict({"x": inputs(size)}) for size in (32, 7, 1)}
    np.savez(tmp_path / "given.npz", **{size: inputs(int(size)) for size in wanted})
    path = nitro.export("onnx", dir=tmp_path)
    out = tmp_path / "out.npz"
    run_alone(
        tmp_path / "alone", RUN, str(path), str(tmp_path / "given.npz"), str(out), packages=("numpy", "onnxruntime")
    )
    with np.load(out) as found:
        for size, value in wanted.items():
            np.testing.assert_allclose(found[size], value, rtol=1e-5, atol=1e-5)


def test_a_file_names_its_tensors_and_says_where_it_comes_from(tmp_path: Path) -> None:
    import onnx

    path = Nitro(Wired(), data={}).export("onnx", dir=tmp_path, provenance={"ticket": 42})
    model = onnx.load(path)
    assert [value.name for value in model.graph.input] == ["number", "levels"]
    assert [value.name for value in model.graph.output] == ["best", "number", "scores"]
    session = runtime.InferenceSession(path)
    given = {"number": np.arange(3, dtype=np.int32), "levels": np.zeros((3, 6), np.uint8)}
    np.testing.assert_array_equal(session.run(["number"], given)[0], given["number"])
    assert {"params.body.kernel", "params.head.bias"} <= {value.name for value in model.graph.initializer}
    assert json.loads({p.key: p.value for p in model.metadata_props}["provenance"])["ticket"] == 42


def test_a_postprocess_stays_behind_and_that_is_said(tmp_path: Path) -> None:
    with pytest.warns(NitroWarning, match="the program's own outputs, scores"):
        Nitro(Softmaxed(), data={}).export("onnx", dir=tmp_path)
