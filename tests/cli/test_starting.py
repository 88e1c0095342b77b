"""Ctrl-C while a command starts: one line and 130, whichever import it meets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap

import pytest

INTERRUPT = textwrap.dedent(
    """
    import os, signal, sys

    class Interrupt:
        def find_spec(self, name, path=None, target=None):
            if name == os.environ["INTERRUPT_AT"]:
                signal.raise_signal(signal.SIGINT)

    sys.meta_path.insert(0, Interrupt())
    """
)


@pytest.fixture
def interrupted(probe, environment):
    """Run a command that gets a Ctrl-C right before it imports a module."""

    def call(module, *words):
        (probe / "sitecustomize.py").write_text(INTERRUPT)
        env = environment() | {"INTERRUPT_AT": module}
        env["PYTHONPATH"] = f"{probe}:{env['PYTHONPATH']}"
        return subprocess.run(
            [sys.executable, "-m", "nitro_cli", *words],
            cwd=probe,
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    return call


@pytest.mark.parametrize("module", ["nitro_cli.cli.app", "typer", "nitro_cli.cli.commands.train", "jax", "optax"])
def test_one_line_and_its_code(interrupted, probe, module):
    done = interrupted(module, "train", "Probe")
    assert (done.returncode, done.stdout) == (130, "")
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert "interrupted by Ctrl-C" in done.stderr
    assert not (probe / "runs").exists()


@pytest.mark.parametrize("module", ["typer", "jax"])
def test_one_line_of_json(interrupted, module):
    done = interrupted(module, "train", "Probe", "--json")
    assert (done.returncode, done.stdout) == (130, "")
    told = json.loads(done.stderr)
    assert (told["error"], told["exit_code"], told["schema"]) == ("KeyboardInterrupt", 130, 1)


def test_an_experiments_module_that_is_interrupted_is_no_broken_experiment(probe, process):
    file = probe / "experiments" / "slow.py"
    file.write_text(
        "import signal\nsignal.raise_signal(signal.SIGINT)\n" + (probe / "experiments" / "probe.py").read_text()
    )
    done = process("train", f"{file}:Probe", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert done.returncode == 130
    assert len(done.stderr.splitlines()) == 1
