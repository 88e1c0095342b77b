"""A language model whose text, network and task are parts."""

from __future__ import annotations

from typing import Any

from nitro_cli import Experiment
from nitro_cli.data.sets import DataSet, Text
from nitro_cli.data.splits import SplitPlan
from nitro_cli.networks import Network, Transformer
from nitro_cli.optim import Optim
from nitro_cli.tasks import CausalLM, Task

__all__ = ["LanguageModel"]


class LanguageModel(Experiment):
    """The next token of a text: from files to a trained model, without Python."""

    data: DataSet = Text(source="pydoc", block=128, batch_size=32)
    """The text, such as `{ kind = "text", files = ["notes/*.md"], tokenizer = { kind = "bpe", vocab_size = 4096 } }`;
    unset, Python's own reference by the byte."""

    split: SplitPlan | None = None
    """How documents are split; unset, 0.7, 0.15, 0.15."""

    network: Network = Transformer(width=192, depth=4, heads=6, max_seq_len=256)
    """The network, such as `{ kind = "transformer", width = 256, depth = 6, heads = 8, max_seq_len = 512 }`."""

    task: Task = CausalLM()
    """What outputs mean: `causal_lm`."""

    optim: Optim = Optim("adamw", b2=0.95)
    """The optimizer."""

    monitor: Any = ("nll", "min")
