"""From process start to the first finished step with a warm program cache: `nitro train` beside a hand-written script.

Both train the small MLP on made data and keep compiled programs in a persistent cache of their own, filled by a
first run that is not counted. Seconds, run in turn.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HAND = """
import os, sys, time
import numpy as np
import jax, jax.numpy as jnp, optax
jax.config.update("jax_compilation_cache_dir", os.environ["CACHE"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
sys.path.insert(0, os.environ["BENCHMARKS"])
rng = np.random.default_rng(0)
image = rng.random((20000, 784), dtype=np.float32)
label = rng.integers(0, 10, 20000).astype(np.int32)

def initial(key):
    a, b = jax.random.split(key)
    return {"in": {"kernel": jax.random.normal(a, (784, 128)) * 0.05, "bias": jnp.zeros(128)},
            "out": {"kernel": jax.random.normal(b, (128, 10)) * 0.05, "bias": jnp.zeros(10)}}

def loss_of(params, image, label):
    hidden = jax.nn.relu(image @ params["in"]["kernel"] + params["in"]["bias"])
    logits = hidden @ params["out"]["kernel"] + params["out"]["bias"]
    return optax.softmax_cross_entropy_with_integer_labels(logits, label).mean()

adam = optax.adam(1e-3)

@jax.jit
def init(key):
    params = initial(key)
    return params, adam.init(params)

@jax.jit
def step(params, opt, image, label):
    loss, grads = jax.value_and_grad(loss_of)(params, image, label)
    updates, opt = adam.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, loss

params, opt = init(jax.random.key(0))
params, opt, loss = step(params, opt, image[:100], label[:100])
float(loss)
print(time.time() - float(os.environ["STARTED"]))
"""

NITRO = """
import os, time
from small_mlp import SmallMLP
from nitro_cli.run.progress import Progress

def first(n, values=None):
    os.write(1, f"{time.time() - float(os.environ['STARTED'])}\\n".encode())
    os._exit(0)

Progress.units = staticmethod(first)

class Timed(SmallMLP):
    pass
"""


def seconds(script: str, folder: Path, name: str) -> float:
    """One run of a script in a process of its own."""
    file = folder / f"{name}.py"
    file.write_text(script)
    here = str(Path(__file__).resolve().parent)
    env = {**os.environ, "CACHE": str(folder / "hand"), "NITRO_CACHE_DIR": str(folder / "nitro"), "BENCHMARKS": here}
    # Installed packages are there as bytecode; so is nitro after its first run.
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    env |= {"NITRO_RUN_DIR": str(folder / "runs"), "STARTED": str(time.time()), "PYTHONPATH": here}
    words = [str(file)] if name == "by_hand" else ["-m", "nitro_cli", "train", f"{file}:Timed", "--quiet"]
    done = subprocess.run([sys.executable, *words], env=env, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Fill the caches, then run in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        scripts = {"by hand": HAND, "nitro train": NITRO}
        cold = {name: seconds(script, folder, name.replace(" ", "_")) for name, script in scripts.items()}
        warm: dict[str, list[float]] = {name: [] for name in scripts}
        for _ in range(options.repeats):
            for name, script in scripts.items():
                warm[name].append(seconds(script, folder, name.replace(" ", "_")))
    hand = statistics.median(warm["by hand"])
    print(f"{'':14}{'cold':>8}{'warm min':>10}{'median':>9}{'max':>8}{'above by hand':>15}   seconds")
    for name, found in warm.items():
        median = statistics.median(found)
        print(f"{name:14}{cold[name]:8.2f}{min(found):10.2f}{median:9.2f}{max(found):8.2f}{median - hand:15.2f}")


if __name__ == "__main__":
    main()
