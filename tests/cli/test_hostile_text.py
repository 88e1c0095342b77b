"""Names and texts with characters that a stream lacks, or that would act on a terminal."""

from __future__ import annotations

import io
import json
import sys
import textwrap
import unicodedata
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from nitro_cli.cli.app import app
from nitro_cli.cli.guard import guarded
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.tables import table
from nitro_cli.display.live import LiveReporter
from nitro_cli.display.plain import PlainReporter
from nitro_cli.errors import ConfigError
from nitro_cli.run import SetupReport

from .conftest import write_probe

NAME = "größe\x1b[2J[red]\u202e\r\x9b"
SHOWN = r"größe\x1b[2J[red]\u202e\r\x9b"
IN_ASCII = r"gr\xf6\xdfe\x1b[2J[red]\u202e\r\x9b"

HOSTILE = textwrap.dedent(
    f'''
    from nitro_cli import Host, Mean, progress_note

    from .probe import Probe


    class Hostile(Probe):
        """About \\x1b[2J it."""

        tag: Host[str] = ""

        max_epochs = 1
        monitor = ({NAME!r}, "min")

        def metrics(self, outputs, *, y):
            return {{{NAME!r}: Mean(((outputs - y) ** 2).sum(), len(y))}}
    '''
)
PRESET = f"description = {json.dumps(NAME)}\n[fields]\ntag = {json.dumps(NAME)}\n"


@pytest.fixture(scope="module")
def hostile_once(tmp_path_factory):
    """A folder with a run whose metric, preset and fields are named so, and what its training told."""
    folder = tmp_path_factory.mktemp("hostile")
    write_probe(folder)
    (folder / "experiments" / "hostile.py").write_text(HOSTILE)
    (folder / "presets" / "Hostile").mkdir()
    (folder / "presets" / "Hostile" / "named.toml").write_text(PRESET)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("NITRO_NO_PLUGINS", "1")
        patch.setenv("NITRO_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "programs"))
        result = CliRunner(charset="ascii").invoke(app, ["train", "Hostile", "--preset", "named"], prog_name="nitro")
    assert result.exit_code == 0, result.output
    return folder, result


@pytest.fixture
def hostile(hostile_once, monkeypatch):
    folder, _ = hostile_once
    monkeypatch.chdir(folder)
    return folder


def acting(text):
    """The characters that a terminal would not just draw."""
    return {c for c in text if c not in "\n" and unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"}}


def test_training_tells_its_progress_and_history_on_an_ascii_stream(hostile_once):
    _, trained = hostile_once
    assert IN_ASCII in trained.stdout
    assert "epoch 1/1" in trained.stderr
    assert IN_ASCII in trained.stderr
    assert not acting(trained.output)


@pytest.mark.parametrize(
    "words",
    [
        ["runs", "runs/Hostile"],
        ["history", "runs/Hostile"],
        ["history", "runs/Hostile", "--csv"],
        ["checkpoint", "info", "runs/Hostile:latest:best"],
        ["show", "Hostile", "--preset", "named"],
        ["presets", "show", "Hostile", "named"],
        ["evaluate", "runs/Hostile", "--split", "val"],
        ["train", "Hostile", "--dry-run"],
    ],
)
def test_every_command_shows_names_without_acting_on_a_terminal(hostile, words, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    for charset, shown in (
        ("utf-8", SHOWN),
        ("ascii", IN_ASCII),
        ("latin-1", IN_ASCII.replace(r"gr\xf6\xdfe", "größe")),
    ):
        result = CliRunner(charset=charset).invoke(app, words, prog_name="nitro")
        assert result.exit_code == 0, (words, charset, result.output)
        assert not acting(result.output), (words, charset)
        if words[0] != "show":
            assert shown in result.stdout, (words, charset)


@pytest.mark.parametrize("words", [["history", "runs/Hostile"], ["runs", "runs/Hostile"], ["show", "Hostile"]])
def test_a_document_is_ascii_and_says_the_name_as_it_is(hostile, words):
    result = CliRunner().invoke(app, [*words, "--json"], prog_name="nitro")
    assert result.stdout.isascii()
    assert not acting(result.stdout)
    made = json.loads(result.stdout)
    if words[0] == "history":
        assert NAME in made["rows"][0]
    if words[0] == "runs":
        assert made["runs"][0]["best"]["metric"] == NAME


def test_a_word_of_the_command_line_comes_back_visible(hostile, nitro):
    for words in (
        ["train", "Hostile", "--set", f"{NAME}=1"],
        ["train", NAME],
        ["runs", NAME],
        [NAME],
        ["runs", f"--{NAME}"],
    ):
        result = CliRunner(charset="ascii").invoke(app, words, prog_name="nitro")
        assert result.exit_code in (2, 3), words
        assert not acting(result.output), words


def test_a_line_break_in_the_name_of_a_file_forges_no_line(probe, nitro):
    (probe / "experiments" / "a\nerror: forged.py").write_text("x = (")
    (probe / "presets" / "Probe" / "b\nerror: forged.toml").write_text("[fields]\nnone = 1\n")
    for words in (["list"], ["presets", "check"], ["show", "Probe"], ["runs", "c\nerror: forged"]):
        result = nitro(*words)
        assert "forged" in result.output, words
        forged = [line for line in result.output.splitlines() if line.startswith("error: forged")]
        assert not forged, words


@pytest.mark.parametrize("error", [ConfigError(NAME, where=NAME, why=NAME, fix=NAME, nearest=[NAME]), ValueError(NAME)])
def test_errors_and_warnings_are_told_on_any_stream(monkeypatch, error):
    def body():
        import warnings

        from nitro_cli.errors import NitroWarning

        warnings.warn(NAME, NitroWarning, stacklevel=1)
        raise error

    for encoding, shown in (("ascii", IN_ASCII), ("utf-8", SHOWN)):
        raw = io.BytesIO()
        monkeypatch.setattr(sys, "stderr", io.TextIOWrapper(raw, encoding=encoding, write_through=True))
        assert guarded(body, Output()) in (1, 2)
        told = raw.getvalue().decode(encoding)
        assert f"warning: {shown}" in told
        assert told.count(shown) >= 2
        assert not acting(told)


def test_the_display_of_a_terminal_reads_no_markup_and_no_control_in_names_and_notes():
    drawn = io.StringIO()
    live = LiveReporter(Console(file=drawn, force_terminal=True, color_system=None, width=200))
    live.begin(NAME, 10, 1, 2)
    live.step(1, {NAME: 1.0})
    live.note(NAME)
    live.line(f"kept {NAME}")
    live.end({NAME: 2.0})
    live.done(NAME)
    told = drawn.getvalue()
    assert f"kept {SHOWN}" in told
    assert told.count(SHOWN) > 3
    assert "\u202e" not in told
    assert "\x9b" not in told
    assert "\x1b[2J[red]" not in told


def test_plain_progress_keeps_a_note_on_its_line():
    lines = []
    plain = PlainReporter(lines.append, heartbeat=False)
    plain.line(f"{NAME}\nerror: not so")
    assert lines == [rf"{SHOWN}\nerror: not so"]


def test_headings_cells_and_titles_of_a_table_are_text():
    drawn = io.StringIO()
    made = table(["[red]", NAME], [["[bold]x", NAME]], title="[blue]")
    Console(file=drawn, width=200, force_terminal=True, color_system=None).print(made)
    assert {"[red]", "[bold]x", "[blue]"} <= set(drawn.getvalue().split())
    assert drawn.getvalue().count(SHOWN) == 2


def test_the_setup_report_is_text():
    report = SetupReport()
    report.add("parameters", [{"path": NAME, "shape": [1]}])
    assert SHOWN in str(report)
    assert not acting(str(report))
    assert not acting(report._repr_html_())


def test_an_error_in_a_terminal_breaks_between_words(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    words = [f"word{i:03d}" for i in range(40)]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys, "stderr", Terminal())

    def body():
        raise ConfigError(" ".join(words), fix="`nitro show B lists` " + " ".join(words))

    guarded(body, Output())
    lines = sys.stderr.getvalue().splitlines()
    assert len(lines) > 8
    assert max(map(len, lines)) <= 80
    assert [w for w in " ".join(lines).split() if w.startswith("word")] == words * 2


def test_a_stream_keeps_its_own_way_with_characters_after_the_command(monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", errors="strict")
    monkeypatch.setattr(sys, "stdout", stream)
    guarded(lambda: Output().text("é") or 0, Output())
    assert stream.errors == "strict"
    assert stream.buffer.getvalue() == b"\\xe9\n"


def test_a_run_directory_that_is_no_utf8_is_refused_at_the_start(probe, nitro):
    raw = b"r\xff".decode("utf-8", "surrogateescape")
    result = nitro("train", "Probe", "--run-dir", raw)
    assert result.exit_code == 2
    assert r"r\udcff is not UTF-8" in result.stderr
    assert sorted(p.name for p in probe.iterdir()) == ["experiments", "presets"]


def test_a_working_directory_that_is_no_utf8_is_refused_at_the_start(probe, process):
    inside = Path(probe, b"w\xff".decode("utf-8", "surrogateescape"))
    inside.mkdir()
    done = process("train", f"{probe}/experiments/probe.py:Probe", "--run-dir", str(probe / "there"), cwd=inside)
    assert done.returncode == 2, done.stderr
    assert "is not UTF-8" in done.stderr
    assert not (probe / "there").exists()
