"""Exit codes and messages of everything that can leave a command."""

import contextlib
import errno
import json
import signal
import subprocess
import sys
import textwrap

import pytest

from nitro_cli import errors
from nitro_cli.cli.guard import guarded
from nitro_cli.cli.output import Output
from nitro_cli.errors import ExitCode


def leaves(error):
    def body():
        raise error

    return body


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.PresetError("x"), 2),
        (errors.ExperimentNotFoundError("x"), 3),
        (errors.RunNotFoundError("x"), 3),
        (errors.IncompatibleError("x"), 4),
        (errors.LockedError("x"), 4),
        (errors.IntegrityError("x"), 5),
        (errors.DivergenceError("x"), 6),
        (errors.StorageError("x"), 1),
        (errors.HookError("x"), 1),
        (ZeroDivisionError("x"), 1),
        (MemoryError(), 1),
        (OSError(errno.ENOSPC, "No space left on device"), 1),
        (KeyboardInterrupt(), 1),  # raised by code, not by a signal
        (SystemExit(7), 1),
        (SystemExit("text"), 1),
        (SystemExit(), 1),
    ],
)
def test_an_exception_gives_its_exit_code(error, code):
    assert guarded(leaves(error), Output()) == code


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGUSR1, 143)])
def test_a_stop_signal_gives_its_exit_code_and_one_line(capsys, number, code):
    before = signal.getsignal(number)
    assert guarded(lambda: signal.raise_signal(number) or 0, Output()) == code
    told = capsys.readouterr()
    assert (told.out, len(told.err.splitlines())) == ("", 1)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_that_somebody_swallows_is_looked_at_before_success_is_told(capsys, number, code):
    def body():
        with contextlib.suppress(BaseException):
            signal.raise_signal(number)
        Output().document(done=True)
        return 0

    assert guarded(body, Output()) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert "done" not in told.err

    def silent_body():
        with contextlib.suppress(BaseException):
            signal.raise_signal(number)
        return 0

    assert guarded(silent_body, Output()) == code


def test_a_stop_is_forgotten_once_its_command_is_over(capsys):
    assert guarded(lambda: signal.raise_signal(signal.SIGINT) or 0, Output()) == 130
    Output().text("of the next command")
    assert capsys.readouterr().out == "of the next command\n"


def test_a_stop_that_a_library_makes_another_error_of_is_a_stop(capsys):
    def body():
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException as error:
            raise ImportError("the C extensions could not be loaded") from error

    assert guarded(body, Output()) == 130
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_stop_that_meets_a_finalizer_prints_no_traceback(capsys):
    class Closing:
        def __del__(self):
            signal.raise_signal(signal.SIGTERM)

    def body():
        held = Closing()
        del held
        return 0

    assert guarded(body, Output()) == 143
    assert capsys.readouterr().err == "terminated; there was nothing to save\n"


@pytest.fixture
def broken_library(tmp_path, monkeypatch):
    """A `tensorboardX` whose writer fails inside it."""
    place = tmp_path / "site-packages" / "tensorboardX"
    (place / "proto").mkdir(parents=True)
    (place / "__init__.py").write_text(
        "import json\nclass SummaryWriter:\n    def __init__(self, *a, **k): json.loads('{')\n"
    )
    (place / "proto" / "__init__.py").write_text("")
    (place / "proto" / "summary_pb2.py").write_text("Summary = None\n")
    own = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "tensorboardX"}
    monkeypatch.syspath_prepend(str(place.parent))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboardX"]:
        del sys.modules[name]
    sys.modules.update(own)


def test_a_failure_inside_the_library_of_an_extra_is_that_librarys(tmp_path, broken_library):
    from nitro_cli.cli.failure import classify
    from nitro_cli.experiment import TensorBoardLogger
    from nitro_cli.tracking import open_logger

    with pytest.raises(ValueError, match="property name") as caught:
        open_logger(TensorBoardLogger(), tmp_path / "metrics.jsonl").log_params({})
    error = caught.value
    error.__traceback__ = error.__traceback__.tb_next  # without the frame of this test, which counts as a user's
    failure = classify(error)
    assert (failure.kind, failure.code) == ("library", 1)
    assert failure.error.what.startswith("tensorboardX failed with JSONDecodeError")
    assert "defect" not in str(failure.error)


def test_a_nitro_error_says_what_where_why_nearest_and_fix_without_a_traceback(capsys):
    error = errors.ConfigError(
        "no field 'widht'", where="baseline.toml:3", why="not a field", fix="width = 1", nearest=["width"]
    )
    guarded(leaves(error), Output())
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines() == [
        "error: no field 'widht'",
        "  where: baseline.toml:3",
        "  why: not a field",
        "  nearest: width",
        "  fix: width = 1",
    ]


def test_debug_shows_the_traceback_of_a_nitro_error(capsys):
    guarded(leaves(errors.ConfigError("x")), Output(debug=True))
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_an_error_under_json_is_one_json_line_on_stderr(capsys):
    guarded(leaves(errors.RunNotFoundError("no run", nearest=["a1"])), Output(json=True))
    told = capsys.readouterr()
    assert told.out == ""
    assert json.loads(told.err) == {
        "schema": 1, "error": "RunNotFoundError", "what": "no run", "where": None, "why": None, "fix": None,
        "nearest": ["a1"], "exit_code": 3,
    }  # fmt: skip


def test_out_of_memory_and_a_full_disk_are_recognised(capsys):
    class XlaRuntimeError(RuntimeError):
        pass

    guarded(leaves(XlaRuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes.")), Output())
    assert capsys.readouterr().err.startswith("error: out of memory on the device")
    guarded(leaves(OSError(errno.ENOSPC, "No space left on device", "runs/x")), Output())
    told = capsys.readouterr().err
    assert told.startswith("error: the disk is full\n  where: runs/x")
    assert "Traceback" not in told


def test_the_users_exception_keeps_its_traceback_with_the_frameworks_frames_folded(tmp_path, capsys):
    hook = tmp_path / "my_hook.py"
    hook.write_text(
        "import jax\n\ndef loss(x):\n    return jax.jit(inner)(x)\n\ndef inner(x):\n    raise ValueError('bad batch')\n"
    )
    import importlib.util

    spec = importlib.util.spec_from_file_location("my_hook", hook)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert guarded(lambda: module.loss(1.0), Output()) == 1
    told = capsys.readouterr().err
    assert "in loss" in told
    assert "return jax.jit(inner)(x)" in told
    assert "raise ValueError('bad batch')" in told
    assert "ValueError: bad batch" in told
    assert "of nitro …" in told
    assert "site-packages/jax" not in told
    assert "nitro_cli/cli/guard.py" not in told
    assert told.splitlines()[-2:] == ["error: inner raised ValueError: bad batch", f"  where: {hook}:7"]


def test_a_defect_of_nitro_says_so(capsys):
    guarded(lambda: int("x"), Output())  # raised below this test, which counts as a user
    capsys.readouterr()
    from nitro_cli.cli.failure import classify

    try:
        json.loads("{")
    except ValueError as error:
        error.__traceback__ = error.__traceback__.tb_next  # without the frame of this test
        failure = classify(error)
    assert failure.kind == "internal"
    assert "--debug" in failure.error.fix


def test_a_warning_of_nitro_is_one_line_and_others_stay_quiet(capsys):
    import warnings

    def body():
        warnings.warn("fell back", errors.NitroWarning, stacklevel=1)
        warnings.warn("old api", DeprecationWarning, stacklevel=1)
        return 0

    guarded(body, Output())
    assert capsys.readouterr().err == "warning: fell back\n"
    guarded(body, Output(json=True))
    assert json.loads(capsys.readouterr().err) == {"schema": 1, "warning": "fell back"}


@pytest.fixture
def script(environment):
    """Start Python on a text, its streams piped."""

    def start(text, **keywords):
        return subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text)],
            env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **keywords,
        )  # fmt: skip

    return start


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_with_nothing_to_save_ends_with_143(script, number):
    child = script(
        """
        import sys, threading
        from nitro_cli.cli.guard import guarded
        from nitro_cli.cli.output import Output

        def body():
            print("ready", flush=True)
            while True:
                threading.Event().wait(0.05)

        sys.exit(guarded(body, Output()))
        """,
    )
    assert child.stdout.readline() == "ready\n"
    child.send_signal(number)
    _, err = child.communicate(timeout=300)
    assert child.returncode == ExitCode.TERMINATED
    assert "nothing to save" in err


def test_a_closed_pipe_ends_quietly_and_successfully(script):
    child = script(
        """
        import sys
        from nitro_cli.cli.guard import guarded
        from nitro_cli.cli.output import Output

        def body():
            sys.stdin.readline()
            output = Output()
            for _ in range(100_000):
                output.text("a line of data")
            return 0

        sys.exit(guarded(body, Output()))
        """,
        stdin=subprocess.PIPE,
    )
    child.stdout.close()
    child.stdin.write("go\n")
    child.stdin.close()
    assert child.wait(timeout=300) == 0
    assert child.stderr.read() == ""


def test_a_pipe_closed_with_data_still_buffered_is_quiet_at_interpreter_shutdown(script):
    child = script(
        """
        import sys
        from nitro_cli.cli.guard import guarded
        from nitro_cli.cli.output import Output

        def body():
            sys.stdin.readline()
            sys.stdout.reconfigure(write_through=False)
            sys.stdout.write("buffered")
            return 0

        sys.exit(guarded(body, Output()))
        """,
        stdin=subprocess.PIPE,
    )
    child.stdout.close()
    child.stdin.write("go\n")
    child.stdin.close()
    assert child.wait(timeout=300) == 0
    assert child.stderr.read() == ""


def test_a_hook_that_prints_into_a_closed_pipe_is_quiet_too(script):
    child = script(
        """
        import sys
        from nitro_cli.cli.guard import guarded
        from nitro_cli.cli.output import Output

        def body():
            sys.stdin.readline()
            while True:
                print("from a hook", flush=True)

        sys.exit(guarded(body, Output()))
        """,
        stdin=subprocess.PIPE,
    )
    child.stdout.close()
    child.stdin.write("go\n")
    child.stdin.close()
    assert child.wait(timeout=300) == 1
    assert child.stderr.read() == ""


def test_help_into_a_closed_stdout_does_not_crash(environment):
    words = ["sh", "-c", 'exec "$0" -m nitro_cli --help >&-', sys.executable]
    done = subprocess.run(words, env=environment(), stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0
    assert done.stderr == ""
