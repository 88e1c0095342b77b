"""Garbage: not looked for while a command starts, and collected as ever afterwards."""

from __future__ import annotations

import subprocess
import sys

GARBAGE = """
import gc, weakref
from nitro_cli.cli import app

class Node:
    pass

def cycle():
    one = Node()
    one.self = one
    return weakref.ref(one)

app._put_off_collection()
first = cycle()
few = [cycle() for _ in range(1000)]
assert first() is not None
held = [[] for _ in range(app._OBJECTS_OF_A_START)]
assert first() is None
later = cycle()
more = [[] for _ in range(50_000)]
assert later() is None
print(gc.get_threshold(), len(gc.callbacks))
"""


def test_cycles_are_collected_once_the_start_is_over():
    done = subprocess.run([sys.executable, "-c", GARBAGE], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "(20000, 50, 100) 0", done.stderr
