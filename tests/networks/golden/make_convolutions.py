"""Makes `convolutions.npz`: what PyTorch computes for convolution blocks with a head. Run with PyTorch installed.

As `make_perceptrons.py`; images are (B, H, W, C), kernels (k, k, in, out), and rows are flattened in that order.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import nn

CASES = {
    "plain": {"image": (12, 12, 1), "channels": [3, 4], "kernel": 3, "stride": 1, "padding": 1, "pool": 2},
    "odd": {"image": (13, 9, 2), "channels": [4], "kernel": 5, "stride": 1, "padding": 0, "pool": 2},
    "strided": {"image": (15, 11, 3), "channels": [3, 2], "kernel": 3, "stride": 2, "padding": 2, "pool": 1},
    "pooled": {"image": (11, 17, 2), "channels": [2], "kernel": 2, "stride": 1, "padding": 0, "pool": 3},
}


def case(rng: np.random.Generator, image: tuple[int, ...], channels: list[int], **sizes: int) -> dict[str, np.ndarray]:
    words = {"kernel_size": sizes["kernel"], "stride": sizes["stride"], "padding": sizes["padding"]}
    convolutions = [nn.Conv2d(i, o, **words) for i, o in zip([image[2], *channels], channels, strict=False)]
    x = torch.from_numpy(rng.normal(size=(4, *image)).astype(np.float32)).requires_grad_()

    def features() -> torch.Tensor:
        held = x.permute(0, 3, 1, 2)
        for convolution in convolutions:
            held = nn.functional.max_pool2d(nn.functional.leaky_relu(convolution(held), 0.01), sizes["pool"])
        return held.permute(0, 2, 3, 1).reshape(4, -1)

    head = nn.Linear(features().shape[1], 3)
    found: dict[str, np.ndarray] = {name: np.array(value) for name, value in sizes.items()}
    leaves = {f"conv/{i}/kernel": (c.weight, (2, 3, 1, 0)) for i, c in enumerate(convolutions)}
    leaves |= {f"conv/{i}/bias": (c.bias, (0,)) for i, c in enumerate(convolutions)}
    leaves |= {"head/kernel": (head.weight, (1, 0)), "head/bias": (head.bias, (0,))}
    with torch.no_grad():
        for path, (leaf, order) in leaves.items():
            leaf.copy_(torch.from_numpy((rng.normal(size=tuple(leaf.shape)) * 0.3).astype(np.float32)))
            found[f"params/{path}"] = leaf.permute(order).numpy().copy()
    weights = torch.from_numpy(rng.normal(size=(4, 3)).astype(np.float32))
    outputs = head(features())
    (outputs * weights).sum().backward()
    found |= {"x": x.detach().numpy(), "weights": weights.numpy(), "outputs": outputs.detach().numpy()}
    found |= {"gradient/x": x.grad.numpy(), "channels": np.array(channels)}
    found |= {f"gradient/params/{path}": leaf.grad.permute(order).numpy() for path, (leaf, order) in leaves.items()}
    return found


def main() -> None:
    rng = np.random.default_rng(0)
    arrays = {f"{n}|{key}": value for n, words in CASES.items() for key, value in case(rng, **words).items()}  # type: ignore[arg-type]
    np.savez_compressed(Path(__file__).with_name("convolutions.npz"), **arrays)


if __name__ == "__main__":
    main()
