"""Running a script where only some packages can be imported, as in an environment that holds nothing else."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

BROUGHT_BY = {
    "jax": ("jax", "jaxlib", "ml_dtypes", "opt_einsum", "scipy", "scipy.libs"),
    "numpy": ("numpy", "numpy.libs"),
    "flatbuffers": ("flatbuffers",),
    "safetensors": ("safetensors",),
    "onnxruntime": ("onnxruntime", "google", "flatbuffers", "packaging", "ml_dtypes"),
}
"""What a package installs along with itself."""


def run_alone(folder: Path, script: str, *words: str, packages: tuple[str, ...]) -> str:
    """Run `script` in a process that finds the standard library and `packages` only; return what it prints.

    Args:
        folder: where to put links to the packages; also the working directory.
        script: the Python source; its arguments are in `sys.argv[1:]`.
        words: the arguments.
        packages: keys of `BROUGHT_BY`.
    """
    site = folder / "site"
    site.mkdir(parents=True, exist_ok=True)
    for name in {name for package in packages for name in BROUGHT_BY[package]}:
        if (place := _place(name)) is not None and not (site / name).exists():
            (site / name).symlink_to(place)
    start = f"import sys; sys.path.insert(0, {str(site)!r})\n"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", start + script, *words],
        cwd=folder, capture_output=True, text=True, timeout=300, check=False,
        env={"PATH": "/usr/bin:/bin", "JAX_PLATFORMS": "cpu", "HOME": str(folder)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def _place(name: str) -> Path | None:
    if "." in name:
        found = importlib.util.find_spec(name.split(".")[0])
        assert found is not None
        assert found.origin is not None
        beside = Path(found.origin).parents[1] / name
        return beside if beside.exists() else None
    found = importlib.util.find_spec(name)
    if found is None:
        return None
    locations = list(found.submodule_search_locations or [])
    return Path(locations[0])
