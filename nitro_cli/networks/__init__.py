"""Networks: the parts that say what a model is, in data.

Works without JAX: what a network computes is imported where it is called.
"""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from .conv import Conv
    from .hidden import HiddenLayers, LayerStack
    from .layers import ACTIVATIONS, Activation, tap
    from .mlp import MLP
    from .moe_mlp import MoEMLP, load_balance
    from .network import NETWORKS, Network, register_network
    from .transformer import Transformer
    from .vit import ViT
