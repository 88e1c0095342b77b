"""Run every benchmark and print its table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPTS = (
    "step_overhead.py",
    "small_mlp.py",
    "startup.py",
    "light_commands.py",
    "analyze.py",
    "checkpoint_cost.py",
    "bundle_call.py",
    "growth.py",
    "many_leaves.py",
    "peers.py",
)


def main() -> None:
    """One process per benchmark, in the order above; `--repeats N` is passed on."""
    folder = Path(__file__).resolve().parent
    for script in SCRIPTS:
        if (folder / script).exists():
            print(f"\n== {script}", flush=True)
            subprocess.run([sys.executable, str(folder / script), *sys.argv[1:]], check=True)


if __name__ == "__main__":
    main()
