"""Makes `llama.npz`: what Hugging Face's `LlamaForCausalLM` computes. Run with PyTorch and transformers installed.

Cases `kv<n>`: arrays of the model by nitro's paths, ids, what the logits are weighed with, the logits, the gradient of
the weighed sum by path; the losses of twenty steps of AdamW from there; and the ids of 200 greedy tokens behind a
prompt. Rotary pairs are neighbours in nitro and halves of a head in Llama, so its queries and keys are permuted.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

VOCAB, WIDTH, DEPTH, HEADS, INNER, LENGTH = 61, 32, 2, 4, int(2 * 4 * 32 / 3), 256
HEAD = WIDTH // HEADS
STEPS, RATE, DECAY = 20, 3e-3, 0.01


def rotary(kernel: torch.Tensor) -> torch.Tensor:
    """The columns of a kernel (in, heads * d) in Llama's order: of each head first the even ones, then the odd ones."""
    split = kernel.reshape(kernel.shape[0], -1, HEAD // 2, 2)
    return split.transpose(2, 3).reshape(kernel.shape[0], -1)


def unrotary(kernel: torch.Tensor) -> torch.Tensor:
    """The other way round."""
    return kernel.reshape(kernel.shape[0], -1, 2, HEAD // 2).transpose(2, 3).reshape(kernel.shape[0], -1)


def leaves(model: LlamaForCausalLM) -> dict[str, tuple[torch.Tensor, str]]:
    """The parameters by nitro's paths, each with how it is turned: `same`, `turned`, `rotary`."""
    found = {"embed/table": (model.model.embed_tokens.weight, "same"), "norm/scale": (model.model.norm.weight, "same")}
    for number, layer in enumerate(model.model.layers):
        at = f"blocks/{number}"
        attention, mlp = layer.self_attn, layer.mlp
        found |= {
            f"{at}/attention_norm/scale": (layer.input_layernorm.weight, "same"),
            f"{at}/ffn_norm/scale": (layer.post_attention_layernorm.weight, "same"),
            f"{at}/attention/query/kernel": (attention.q_proj.weight, "rotary"),
            f"{at}/attention/key/kernel": (attention.k_proj.weight, "rotary"),
            f"{at}/attention/value/kernel": (attention.v_proj.weight, "turned"),
            f"{at}/attention/out/kernel": (attention.o_proj.weight, "turned"),
            f"{at}/ffn/gate/kernel": (mlp.gate_proj.weight, "turned"),
            f"{at}/ffn/up/kernel": (mlp.up_proj.weight, "turned"),
            f"{at}/ffn/down/kernel": (mlp.down_proj.weight, "turned"),
        }
    return found


def out(value: torch.Tensor, how: str) -> np.ndarray:
    """A parameter or gradient in nitro's form."""
    value = value.detach()
    if how == "same":
        return value.numpy().copy()
    return (unrotary(value.T) if how == "rotary" else value.T).numpy().copy()


def case(rng: np.random.Generator, kv_heads: int) -> dict[str, np.ndarray]:
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=WIDTH, intermediate_size=INNER, num_hidden_layers=DEPTH,
        num_attention_heads=HEADS, num_key_value_heads=kv_heads, max_position_embeddings=LENGTH, rms_norm_eps=1e-6,
        rope_theta=10_000.0, tie_word_embeddings=True, attention_bias=False, bos_token_id=None, eos_token_id=None,
        pad_token_id=None, attn_implementation="eager",
    )  # fmt: skip
    model = LlamaForCausalLM(config).float()
    found: dict[str, np.ndarray] = {}
    held = leaves(model)
    with torch.no_grad():
        for path, (leaf, how) in held.items():
            shape = tuple(leaf.shape) if how == "same" else tuple(leaf.shape[::-1])
            scale = 0.3 if "table" in path else 1.0 if "scale" in path else 1.5 / np.sqrt(shape[0])
            values = torch.from_numpy((rng.normal(size=shape) * scale + ("scale" in path)).astype(np.float32))
            found[f"params/{path}"] = values.numpy().copy()
            leaf.copy_(values if how == "same" else (rotary(values) if how == "rotary" else values).T)
    ids = torch.from_numpy(rng.integers(0, VOCAB, (3, 17)))
    weights = torch.from_numpy(rng.normal(size=(3, 17, VOCAB)).astype(np.float32) / 50)
    logits = model(ids).logits
    (logits * weights).sum().backward()
    found |= {"ids": ids.numpy().astype(np.int32), "weights": weights.numpy(), "logits": logits.detach().numpy()}
    found |= {f"gradient/params/{path}": out(leaf.grad, how) for path, (leaf, how) in held.items()}
    model.zero_grad()
    prompt = torch.from_numpy(rng.integers(0, VOCAB, (1, 7)))
    made = model.generate(prompt, max_new_tokens=200, do_sample=False, attention_mask=torch.ones_like(prompt))
    found |= {"prompt": prompt.numpy().astype(np.int32), "generated": made[0, 7:].numpy().astype(np.int32)}
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    losses = []
    for _ in range(STEPS):
        loss = model(ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    found |= {"losses": np.array(losses), "rate": np.array(RATE), "decay": np.array(DECAY)}
    return found


def main() -> None:
    rng = np.random.default_rng(0)
    arrays = {f"kv{n}|{name}": array for n in (1, 2, 4) for name, array in case(rng, n).items()}
    np.savez_compressed(Path(__file__).with_name("llama.npz"), **arrays)


if __name__ == "__main__":
    main()
