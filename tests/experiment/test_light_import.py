"""The room works where JAX cannot be imported, and selectors without pydantic and numpy."""

from __future__ import annotations

import subprocess
import sys

BLOCK = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {blocked!r}:
            raise ImportError('blocked: ' + name)
sys.meta_path.insert(0, Blocked())
"""


def run(blocked: tuple[str, ...], code: str) -> str:
    source = BLOCK.format(blocked=blocked) + code
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_selectors_are_read_without_pydantic_numpy_or_jax():
    code = "from nitro_cli.experiment import parse_selector; print(parse_selector('best(5, among=last(20))'))"
    assert run(("pydantic", "numpy", "jax"), code) == "best(5, among=last(20))"


def test_every_public_name_and_an_experiment_need_no_jax():
    code = """
import nitro_cli.experiment as room
for name in room.__all__:
    getattr(room, name)
class E(room.Experiment):
    rate: room.Device[float] = 0.5
room.compile_view(E(rate=0.25))
room.graphconst_fingerprint(E())
room.config_metadata(E)
print(E().rate)
"""
    assert run(("jax", "jaxlib"), code) == "0.5"


def test_an_experiment_imported_from_the_package_finds_its_presets(tmp_path):
    folder = tmp_path / "presets" / "Small"
    folder.mkdir(parents=True)
    (folder / "baseline.toml").write_text("[fields]\nwidth = 7\n")
    code = f"""
import os
os.chdir({str(tmp_path)!r})
from nitro_cli import Experiment, GraphConst
class Small(Experiment):
    width: GraphConst[int] = 1
    depth: int = 1
e = Small.from_preset("baseline", depth=3)
print(e.width, e.depth)
"""
    assert run(("jax", "jaxlib"), code) == "7 3"
