"""Runs on four devices and on one, in a process of its own: XLA counts its host devices once, when it starts.

Called with a folder; prints what it found as one JSON object.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

sys.path.insert(0, str(Path(__file__).parents[2]))
from nitro_cli import EMA, Mean, Nitro, NitroError, Prefetch, set_progress_reporter, setup_devices
from nitro_cli.checkpoints import PartWriter, RecordMeta, read_record
from nitro_cli.checkpoints.record import prepare_record
from nitro_cli.checkpoints.shared_record import begin_shared, commit_shared
from nitro_cli.cli.app import main
from nitro_cli.run.snapshot import own_pieces
from tests.run.masked import Masked, Told, off_by, rows
from tests.tiny import Quick, points

ROOT = Path(sys.argv[1])
TEST = points(21, 3)


class OnDevice(Quick):
    """Metrics inside the program, and the loss beside them."""

    eval_loss = True

    def metrics_residency(self, hook: str) -> str:
        return "device"

    def metrics(self, outputs: Any, *, y: Any) -> dict[str, Any]:
        return {"acc": Mean(jnp.sum(outputs.argmax(-1) == y), y.size)}


class Manual(Quick):
    """The whole step by the experiment."""

    def setup_optimizers(self, model: Any, params: Any, state: Any) -> Any:
        return optax.sgd(1e-2, momentum=0.9).init(params)

    def train_step(self, model: Any, params: Any, opt_state: Any, state: Any, *, x: Any, y: Any) -> Any:
        def objective(p: Any) -> Any:
            outputs, new = model(p, state, x)
            return self.loss(outputs, y=y), new

        (loss, new), grads = jax.value_and_grad(objective, has_aux=True)(params)
        updates, opt_state = optax.sgd(1e-2, momentum=0.9).update(grads, opt_state, params)
        return loss, optax.apply_updates(params, updates), new, opt_state, {}


def numbers(row: Any) -> list[Any]:
    """The numbers of an epoch's row."""
    return [value for name, value in row.items() if name != "monitor"]


def difference(a: Any, b: Any) -> float:
    """The largest difference of two trees' leaves."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return float(max(np.max(np.abs(np.asarray(x, np.float64) - np.asarray(y, np.float64))) for x, y in pairs))


def same(a: Any, b: Any) -> bool:
    """Whether two trees' leaves are equal bit for bit."""
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.asarray(x).tobytes() == np.asarray(y).tobytes() for x, y in pairs)


def refusal(make: Any) -> str:
    """What an error says."""
    try:
        make()
    except NitroError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was refused"


def trained(name: str, kind: type = Quick, **words: Any) -> Nitro:
    """A run in a folder of its own."""
    return Nitro(kind(run_dir=ROOT / name, **words)).train()


def replicated() -> dict[str, Any]:
    one, four = trained("one", OnDevice, n_devs=1, width=16), trained("four", Streamed, width=16)
    program = four.programs["train"].compiled
    batches = program.input_shardings[0][2].fields
    batch = {"x": TEST["x"][:5], "y": TEST["y"][:5]}
    before = four.evaluate("test")
    misses = len(four.programs)
    four.set_device(smoothing=0.5)
    return {
        "params": difference(one.params, four.params),
        "state": difference(one.state, four.state),
        "history": [difference(numbers(a), numbers(b)) for a, b in zip(one.history, four.history, strict=True)],
        "test": [one.evaluate("test"), before],
        "batch_specs": sorted({str(s.spec) for s in jax.tree.leaves(batches)}),
        "rows_in_program": "f32[2,6]" in program.as_text() and "f32[8,6]" not in program.as_text(),
        "sums_gradients": "all-reduce" in program.as_text(),
        "devices": len(jax.tree.leaves(four.params)[0].sharding.device_set),
        "predict": difference(one.predict(batch), four.predict(batch)),
        "predicted": list(four.predict(batch).shape),
        "smoothed": [one.set_device(smoothing=0.5).evaluate("test")["loss"], four.evaluate("test")["loss"]],
        "device_value": four.device_value("smoothing"),
        "new_programs": len(four.programs) - misses,
        "report": str(four.report),
    }


def without_data() -> dict[str, Any]:
    batch = {"x": TEST["x"][:5]}
    one = Nitro(Quick(width=16), n_devs=1, data={}, weights=f"{ROOT / 'four'}/{_only(ROOT / 'four')}")
    four = Nitro(Quick(width=16), data={}, weights=f"{ROOT / 'four'}/{_only(ROOT / 'four')}")
    return {"difference": difference(one.predict(batch), four.predict(batch)), "shape": list(four.predict(batch).shape)}


class Streamed(OnDevice):
    """Fed from the host."""

    def build_data(self, dist: Any) -> dict[str, Any]:
        return {name: Prefetch(source) for name, source in super().build_data(dist).items()}


def resident() -> dict[str, Any]:
    """Data that stays on every device, beside the same on one and the same streamed to four."""
    words: dict[str, Any] = {"width": 16, "accum": 2}
    one, four = trained("kept1", OnDevice, n_devs=1, **words), trained("kept4", OnDevice, **words)
    streamed = trained("streamed4", Streamed, **words)
    half = trained("kept4-half", OnDevice, **words, max_epochs=1)
    again = Nitro(OnDevice(run_dir=half.run_dir, **words), resume="latest:latest").train()
    fsdp = trained("kept-fsdp", OnDevice, sharding="fsdp", **words)
    program = four.programs["train"].compiled
    order = program.input_shardings[0][3]["order"]
    return {
        "one": difference(one.params, four.params),
        "streamed": difference(streamed.params, four.params),
        "fsdp": difference(fsdp.params, four.params),
        "resumed": same(again.train_state, four.train_state),
        "order": str(order.spec),
        "rows_in_program": "f32[2,6]" in program.as_text() and "f32[8,6]" not in program.as_text(),
        "report": str(four.report),
    }


def _only(root: Path) -> str:
    return str(next(root.glob("*/checkpoints/*")).relative_to(root))


def other_steps() -> dict[str, Any]:
    found = {}
    for name, kind, words in (("accum", Quick, {"accum": 2}), ("manual", Manual, {})):
        one, four = (trained(f"{name}{n}", kind, n_devs=n, max_epochs=1, **words) for n in (1, 4))
        found[name] = difference(one.params, four.params)
    return found


def terms() -> dict[str, float]:
    """How far off a step of masked micro-batches is, by their number and that of the devices."""
    found = {}
    for count, parts in ((1, 6), (2, 1), (2, 3), (4, 1), (4, 2), (4, 3), (4, 6)):
        e = Masked(rows=24, batch_size=24 // parts, accum=parts, n_devs=count, run_dir=ROOT / f"terms{count}{parts}")
        found[f"{count} {parts}"] = off_by(Nitro(e).train(), rows(24))
    for count in (2, 4):
        e = Told(rows=10, batch_size=4, accum=4, n_devs=count, run_dir=ROOT / f"told{count}")
        found[f"{count} padded"] = off_by(Nitro(e).train(), rows(10))
    return found


def resumed() -> dict[str, Any]:
    found: dict[str, Any] = {}
    whole = trained("whole", n_devs=4)
    for devices in (1, 4):
        trained(f"half-{devices}", n_devs=devices, max_epochs=1)
    for name, first, second in (("4 to 1", 4, 1), ("1 to 4", 1, 4), ("4 to 4", 4, 4)):
        root = shutil.copytree(ROOT / f"half-{first}", ROOT / name.replace(" ", "-"))
        again = Nitro(Quick(run_dir=root, n_devs=second), resume=("latest", "latest")).train()
        found[name] = [
            difference(again.params, whole.params),
            same(again.train_state, whole.train_state),
            again.step,
            whole.step,
        ]
    return found


def fsdp() -> dict[str, Any]:
    words: dict[str, Any] = {"width": 2048, "ema": EMA(beta=0.9), "max_epochs": 1, "gradient_clip_norm": 1.0}
    one = trained("fsdp1", n_devs=1, **words)
    four = trained("fsdp4", sharding="fsdp", **words)
    root = ROOT / "fsdp4"
    onto_one = Nitro(Quick(run_dir=root, n_devs=1, **words), weights=("latest", "latest"))
    words["max_epochs"] = 2
    straight = Nitro(Quick(run_dir=ROOT / "fsdp2", sharding="fsdp", **words)).train()
    back = Nitro(Quick(run_dir=root, sharding="fsdp", **words), resume=("latest", "latest")).train()
    return {
        "params": difference(one.params, four.params),
        "opt": difference(one.train_state.opt, four.train_state.opt),
        "ema": difference(one.ema, four.ema),
        "metrics": [one.evaluate("test"), four.evaluate("test")],
        "shares": {name: _shares(getattr(four.train_state, name)) for name in ("params", "opt", "ema", "state")},
        "record": same(onto_one.params, four.params),
        "resumed": same(back.train_state, straight.train_state),
        "report": str(four.report),
        "odd": _shares(Nitro(Quick(width=2047), sharding="fsdp", data={}).params),
    }


def _shares(tree: Any) -> list[list[int]]:
    """Of each leaf: its elements, and those on the first device."""
    leaves = jax.tree.leaves(tree)
    return [[leaf.size, next(s.data.size for s in leaf.addressable_shards if s.device.id == 0)] for leaf in leaves]


def pieces() -> dict[str, Any]:
    """A record of arrays over four devices, as two processes of two devices each would write it."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(2, 2), ("a", "b"))
    specs = {"split": ("a", "b"), "columns": (None, ("b", "a")), "copied over b": ("a",), "copied over a": ("b",)}
    values = {name: np.arange(64, dtype=np.float32).reshape(8, 8) * i for i, name in enumerate(specs, 1)}
    arrays = {
        name: jax.device_put(values[name], jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*spec)))
        for name, spec in specs.items()
    }

    def share(process: int) -> dict[str, Any]:
        devices = set(jax.devices()[2 * process : 2 * process + 2])
        return {
            name: own_pieces(array, [shard for shard in array.addressable_shards if shard.device in devices])
            for name, array in arrays.items()
        }

    shares = [share(0), share(1)]
    jax.tree.map(lambda array: array.delete(), arrays)
    path = ROOT / "pieces"
    temporary = begin_shared(path)
    parts: list[Any] = []
    writer = PartWriter(1)
    writer.write(temporary, shares[1], parts.append)
    writer.wait()
    commit_shared(path, temporary, prepare_record(RecordMeta(), shares[0], {}), lambda: parts)
    return {
        "counts": {name: [len(one[name].pieces) for one in shares] for name in specs},
        "same": {name: same(array, values[name]) for name, array in read_record(path).arrays.items()},
    }


def _command(*words: str) -> Any:
    sys.argv = ["nitro", *words]
    told = io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.suppress(SystemExit):
        main()
    return json.loads(told.getvalue())


def refused() -> dict[str, str]:
    return {
        "divide": refusal(lambda: Nitro(Quick(n_devs=3))),
        "too many": refusal(lambda: Nitro(Quick(n_devs=5))),
        "backend": refusal(lambda: setup_devices(backend="tpu")),
    }


def pinned() -> dict[str, Any]:
    before = setup_devices()
    after = setup_devices(n_devs=2)
    nitro = Nitro(Quick(), data={})
    return {
        "before": [before.n_devs, before.pinned, len(before.visible)],
        "after": [after.n_devs, after.pinned, len(after.visible)],
        "used": nitro.plan.placement.count,
        "command": _command("devices", "--json"),
    }


if __name__ == "__main__":
    set_progress_reporter(None)
    scenarios = (replicated, resident, without_data, other_steps, terms, resumed, fsdp, pieces, refused, pinned)
    chosen = [s for s in scenarios if len(sys.argv) < 3 or s.__name__ in sys.argv[2:]]
    print("\n" + json.dumps({scenario.__name__: scenario() for scenario in chosen}, default=float))
