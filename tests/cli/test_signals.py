"""A real process, real signals: what a scheduler and a person at a terminal see."""

import json
import signal
import subprocess
import sys

import pytest

from nitro_cli.errors import ExitCode


@pytest.fixture
def start(probe, environment):
    """Start `nitro` in the background; `until(text)` waits for a line of its stderr."""
    children = []

    def call(*words, interrupt=signal.SIG_DFL):
        command = [sys.executable, "-m", "nitro_cli", *words]
        child = subprocess.Popen(
            command,
            cwd=probe,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, interrupt),  # a shell's background job ignores it
        )
        children.append(child)

        def until(text):
            seen = []
            for line in child.stderr:
                seen.append(line)
                if text in line:
                    return child
            raise AssertionError(f"{text!r} was not written:\n{''.join(seen)}")

        return until

    yield call
    for child in children:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGTERM, ExitCode.STOPPED), (signal.SIGUSR1, ExitCode.STOPPED), (signal.SIGINT, ExitCode.INTERRUPTED)],
)
def test_a_signal_in_training_saves_and_ends_with_its_code(start, probe, number, code):
    child = start("train", "Probe", "--max-epochs", "1000000")("epoch 1/1000000")
    child.send_signal(number)
    _, told = child.communicate(timeout=300)
    assert child.returncode == code, told
    assert "the state is saved" in told
    manifest = json.loads((probe / "runs" / "Probe" / "manifest.json").read_text())
    assert [run["status"] for run in manifest["runs"].values()] == ["requested"]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGUSR1, 143), (signal.SIGINT, 130)])
def test_a_signal_in_setup_leaves_with_nothing_behind(start, probe, number, code):
    child = start("train", "Probe", "--set", "trouble=wait")("a hook prints")
    child.send_signal(number)
    out, told = child.communicate(timeout=300)
    assert child.returncode == code, told
    assert "nothing" in told
    assert "Traceback" not in told
    assert out == ""
    assert not (probe / "runs").exists()


def test_an_ignored_signal_stays_ignored_and_the_others_are_served(start, probe):
    child = start("train", "Probe", "--max-epochs", "1000000", interrupt=signal.SIG_IGN)("epoch 1/1000000")
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGTERM)
    _, told = child.communicate(timeout=300)
    assert child.returncode == ExitCode.STOPPED, told
    assert "stopped by SIGTERM" in told
