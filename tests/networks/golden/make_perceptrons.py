"""Makes `perceptrons.npz`: what PyTorch computes for perceptrons, values and gradients. Run with PyTorch installed.

Per case the arrays of the model by path, an input, what the outputs are weighed with, the outputs, and the gradient of
the weighed sum by path. Kernels are (in, out), so those of PyTorch are turned.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

ACTIVATIONS = {
    "leaky_relu": nn.LeakyReLU(0.01), "elu": nn.ELU(), "selu": nn.SELU(), "tanh": nn.Tanh(), "relu": nn.ReLU(),
    "softmax": nn.Softmax(-1), "sigmoid": nn.Sigmoid(), "softplus": nn.Softplus(), "gelu": nn.GELU(), "silu": nn.SiLU(),
    "identity": nn.Identity(),
}  # fmt: skip
NORMS = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}


def perceptron(widths: list[int], activations: list[str], norm: str) -> tuple[nn.Sequential, dict[str, nn.Module]]:
    """The model, and its layers by the paths that nitro gives them."""
    layers: list[nn.Module] = []
    named: dict[str, nn.Module] = {}
    for number, activation in enumerate(activations):
        named[f"hidden/{number}"] = nn.Linear(widths[number], widths[number + 1])
        layers.append(named[f"hidden/{number}"])
        if norm != "none":
            named[f"hidden/{number}/norm"] = NORMS[norm](widths[number + 1])
            layers.append(named[f"hidden/{number}/norm"])
        layers.append(ACTIVATIONS[activation])
    named["head"] = nn.Linear(widths[-2], widths[-1])
    return nn.Sequential(*layers, named["head"]), named


def case(rng: np.random.Generator, activations: list[str], norm: str) -> dict[str, np.ndarray]:
    widths = [6, *[5, 4, 3][: len(activations)], 2]
    model, named = perceptron(widths, activations, norm)
    found: dict[str, np.ndarray] = {}
    leaves: dict[str, tuple[torch.Tensor, bool]] = {}
    for path, layer in named.items():
        turned = isinstance(layer, nn.Linear)
        leaves[f"{path}/{'kernel' if turned else 'scale'}"] = (layer.weight, turned)
        leaves[f"{path}/bias"] = (layer.bias, False)
    with torch.no_grad():
        for path, (leaf, turned) in leaves.items():
            leaf.copy_(torch.from_numpy(rng.normal(size=tuple(leaf.shape)).astype(np.float32)))
            found[f"params/{path}"] = leaf.numpy().T.copy() if turned else leaf.numpy().copy()
    x = torch.from_numpy(rng.normal(size=(7, 6)).astype(np.float32)).requires_grad_()
    weights = torch.from_numpy(rng.normal(size=(7, 2)).astype(np.float32))
    outputs = model.train()(x)
    (outputs * weights).sum().backward()
    found |= {"x": x.detach().numpy(), "weights": weights.numpy(), "outputs": outputs.detach().numpy()}
    found["gradient/x"] = x.grad.numpy()
    for path, (leaf, turned) in leaves.items():
        found[f"gradient/params/{path}"] = leaf.grad.numpy().T if turned else leaf.grad.numpy()
    return found


def main() -> None:
    rng = np.random.default_rng(0)
    cases = {f"{name} none": ([name, "tanh"], "none") for name in ACTIVATIONS}
    cases |= {"linear none": ([], "none"), "three layer": (["gelu", "relu", "elu"], "layer")}
    cases |= {"two batch": (["tanh", "silu"], "batch")}
    arrays: dict[str, np.ndarray] = {}
    for name, (activations, norm) in cases.items():
        made = case(rng, activations, norm)
        made["activations"] = np.array(activations or [""])
        arrays |= {f"{name}|{key}": value for key, value in made.items()}
    np.savez_compressed(Path(__file__).with_name("perceptrons.npz"), **arrays)


if __name__ == "__main__":
    main()
