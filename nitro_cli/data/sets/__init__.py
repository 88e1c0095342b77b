"""Data sets: parts that supply `build_data`, what a batch goes through before `forward`, and what other parts ask of
data. Works without JAX: `prepare` imports it where a program is traced.
"""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from .arrays_set import Arrays
    from .augment import AUGMENTS, Augment, Crop, Flip, Shift, register_augment
    from .built_set import BuiltSet
    from .data_set import DATA_SETS, DataSet, register_data
    from .idx import read_idx
    from .mnist import MNIST_FILES, Mnist
    from .sklearn_set import Sklearn
    from .text_set import KEPT_TOKENIZER, TEXT_BYTES, UNCOUNTED, Text
