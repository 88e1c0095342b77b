"""A working directory of its own for each test, and distributions that look installed."""

import importlib
import sys
from pathlib import Path

import pytest


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def cwd(tmp_path, monkeypatch):
    """An empty working directory, without the plugins of this machine."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("NITRO_NO_PLUGINS", "1")
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if name.startswith("_nitro_local_"):
            del sys.modules[name]


@pytest.fixture
def install(tmp_path, monkeypatch, cwd):
    """Installs distributions with entry points: `install("dist", {"Name": "module:Class"}, {"module.py": text})`."""
    monkeypatch.delenv("NITRO_NO_PLUGINS")
    added = set()

    def install(distribution, entries, files=None, metadata=None, raw=None):
        site = tmp_path / f"site-{distribution}"
        info = site / f"{distribution.replace('-', '_')}-1.0.dist-info"
        _write(info / "METADATA", metadata or f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        lines = "\n".join(f"{name} = {value}" for name, value in entries.items())
        _write(info / "entry_points.txt", raw if raw is not None else f"[nitro.experiments]\n{lines}\n")
        for name, text in (files or {}).items():
            _write(site / name, text)
            added.add(name.split("/")[0].removesuffix(".py"))
        monkeypatch.syspath_prepend(str(site))
        importlib.invalidate_caches()
        return site

    yield install
    for name in list(sys.modules):
        if name.split(".")[0] in added:
            del sys.modules[name]
