"""The documentation's code is run, and the commands it shows exist."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import types
from pathlib import Path

import pytest

from nitro_cli.cli.command_table import COMMANDS
from nitro_cli.installation import EXTRAS

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), ROOT / "README.md"])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str) -> list[str]:
    return [code for found, code in FENCE.findall(page.read_text()) if found == language]


@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "python")], ids=lambda p: p.stem)
def test_the_code_of_a_page_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType(f"docs_{page.stem}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for number, code in enumerate(blocks(page, "python"), start=1):
        file = tmp_path / f"{page.stem}_{number}.py"
        file.write_text(code)
        exec(compile(code, str(file), "exec"), module.__dict__)


def commands(page: Path) -> list[list[str]]:
    lines = [line.split("#")[0] for code in blocks(page, "bash") for line in code.splitlines()]
    parts = [part.strip() for line in lines for part in line.split("&&")]
    return [words[1:] for words in map(shlex.split, parts) if words and words[0].split("/")[-1] == "nitro"]


@pytest.mark.parametrize("page", [p for p in PAGES if commands(p)], ids=lambda p: p.stem)
def test_the_commands_of_a_page_exist_with_their_options(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from nitro_cli.cli.app import app

    for words in commands(page):
        assert words[0] in COMMANDS, words
        path = words[:1]
        if len(words) > 1 and words[0] in ("presets", "checkpoint", "cache", "bundle"):
            path = words[:2]
        with pytest.raises(SystemExit) as stop:
            app([*path, "--help"])
        assert stop.value.code == 0, words
        text = capsys.readouterr().out
        for word in words:
            if word.startswith("--"):
                assert word in text, f"{' '.join(words)}: no option {word}"


def test_the_experiment_of_the_readme_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "rings.py").write_text(blocks(ROOT / "README.md", "python")[0])
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "nitro_cli", "train", "Rings", "--json"], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["best"]["score"] > 0.9


def test_the_readme_names_every_extra_of_a_user() -> None:
    text = (ROOT / "README.md").read_text().partition("## Extras")[2].partition("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", "".join(line.split("|")[1] for line in text.splitlines() if "|" in line))) == {
        *EXTRAS,
        "test",
    }


def test_every_page_is_in_the_navigation() -> None:
    named = re.findall(r": (\w[\w-]*\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(named) == sorted(page.name for page in ROOT.glob("docs/*.md"))
