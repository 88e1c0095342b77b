"""Setting up and compiling a model of very many arrays: nitro beside a jitted step written by hand.

Half of the arrays are 4 x 4 matrices, half vectors of 4, in a chain of small layers; both sides take nitro's default
optimizer with weight decay, and one step. Each measurement is a process of its own without a program cache; seconds of
the processor from before the parameters are built to after the first step, since those do not depend on other work.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys

BOTH = """
import os, sys
os.environ["NITRO_CACHE_DIR"] = "off"
import jax, jax.numpy as jnp, numpy as np, optax

LEAVES = int(sys.argv[1])
x = np.ones((8, 4), np.float32)

def spent():
    times = os.times()
    return times.user + times.system

def layer(i):
    return {"kernel": jnp.full((4, 4), 0.01 * (i % 7)), "bias": jnp.zeros(4)}

def build():
    return {f"layer{i:05d}": layer(i) for i in range(LEAVES // 2)}

def model(params, state, x):
    for layer in params.values():
        x = x + 0.01 * jnp.tanh(x @ layer["kernel"] + layer["bias"])
    return x, state
"""

HAND = """
before = spent()
optimizer = optax.chain(optax.scale_by_radam(), optax.add_decayed_weights(1e-4), optax.scale_by_learning_rate(1e-3))
params = jax.jit(build)()
opt = jax.jit(optimizer.init)(params)

@jax.jit
def step(params, opt, x):
    loss, grads = jax.value_and_grad(lambda p: jnp.mean(model(p, {}, x)[0] ** 2))(params)
    updates, opt = optimizer.update(grads, opt, params)
    return optax.apply_updates(params, updates), opt, loss

jax.block_until_ready(step(params, opt, x))
print(spent() - before)
"""

NITRO = """
from nitro_cli import ArrayBatches, Experiment, Nitro, set_progress_reporter
set_progress_reporter(None)

class Many(Experiment):
    max_epochs = 1
    logger = None
    checkpointer = None
    weight_decay = 1e-4

    def build_data(self, dist):
        return {"train": ArrayBatches({"x": x}, 8)}

    def build_model(self, rng):
        return model, build(), {}

    def forward(self, model, params, state, *, x):
        return model(params, state, x)

    def loss(self, outputs):
        return jnp.mean(outputs**2)

before = spent()
Nitro(Many()).train()
print(spent() - before)
"""


def measured(script: str, leaves: int) -> float:
    """Seconds of one process."""
    command = [sys.executable, "-W", "ignore", "-c", BOTH + script, str(leaves)]
    env = os.environ | {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure in turn and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--leaves", type=int, nargs="+", default=[100, 1000])
    words = parser.parse_args()
    print("| arrays | by hand | nitro | ratio |\n| --- | --- | --- | --- |")
    for leaves in words.leaves:
        pairs = [(measured(HAND, leaves), measured(NITRO, leaves)) for _ in range(words.repeats)]
        hand, nitro = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(b / a for a, b in pairs)
        print(f"| {leaves:,} | {hand:.1f} | {nitro:.1f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
