"""A byte model of order 3 with Witten and Bell's smoothing (IEEE Transactions on Information Theory 37, 1991)."""

import math
from collections import defaultdict

END = 256


def witten_bell_bits(train, test, order=3):
    """Bits per byte of texts, their ends predicted too, by a model of other texts.

    Args:
        train, test: texts.
        order: the bytes of a context.
    """
    seen = defaultdict(lambda: defaultdict(int))
    for text in train:
        symbols = [*text.encode(), END]
        for at, symbol in enumerate(symbols):
            for length in range(min(order, at) + 1):
                seen[tuple(symbols[at - length : at])][symbol] += 1

    def probability(context, symbol):
        lower = 1 / 257 if not context else probability(context[1:], symbol)
        counts = seen.get(context)
        if counts is None:
            return lower
        kinds, total = len(counts), sum(counts.values())
        return (counts.get(symbol, 0) + kinds * lower) / (total + kinds)

    bits = size = 0
    for text in test:
        symbols = [*text.encode(), END]
        size += len(symbols) - 1
        for at, symbol in enumerate(symbols):
            bits -= math.log2(probability(tuple(symbols[max(0, at - order) : at]), symbol))
    return bits / size
