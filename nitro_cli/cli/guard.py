"""What stands around every command: exceptions become messages and exit codes, closed pipes end quietly."""

from __future__ import annotations

import contextlib
import io
import os
import select
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from typer import Abort, Exit

from nitro_cli.cli.failure import Failure, classify
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.errors import error_lines, folded_traceback, full_traceback, labelled
from nitro_cli.cli.stop_signals import Terminated, forget_stop, raise_if_stopped, stopped_by, stops_unwind
from nitro_cli.display import OutputClosed
from nitro_cli.errors import ExitCode, NitroError, NitroWarning
from nitro_cli.text import message_of

__all__ = ["guarded"]

_LONGEST_CHAIN = 50


def guarded(body: Callable[[], int], output: Output) -> int:
    """Run `body` and return the exit code of the process, whatever happens in it."""
    with _streams_take_all(), _warnings_shown(output):
        try:
            with stops_unwind(output):
                code = body()
                raise_if_stopped()
        except BaseException as error:
            code = _told(error, output)
        finally:
            forget_stop()
        return _flushed(code)


def _told(error: BaseException, output: Output) -> int:
    if isinstance(error, OutputClosed):
        return ExitCode.OK
    if isinstance(error, BrokenPipeError) and _reader_gone():
        return ExitCode.FAILED
    if stopped_by() is not None and (stop := _stop_in(error)) is not None:
        return _stopped(stop, output)
    failure = classify(error)
    if failure.kind != "user":  # what leaves a command by itself; from a hook it is an exception like others
        if isinstance(error, Exit):
            return int(error.exit_code)
        if isinstance(error, SystemExit):
            return _system_exit(error, output)
        if isinstance(error, KeyboardInterrupt | Terminated):
            return _stopped(error, output)
        if isinstance(error, Abort):
            return _tell_stop("aborted; nothing was changed", "Abort", ExitCode.FAILED, error, output)
        if callable(getattr(error, "format_message", None)):
            return _usage(error, output)
    return _failed(failure, output)


def _stop_in(error: BaseException) -> BaseException | None:
    """The stop that an exception is, or came of: a library may have made another error of it."""
    link: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if link is None or isinstance(link, KeyboardInterrupt | Terminated):
            return link
        link = link.__cause__ or link.__context__
    return None


def _failed(failure: Failure, output: Output) -> int:
    exception, error = failure.exception, failure.error
    cause = exception.__cause__
    folded = None
    if failure.kind == "user":
        folded = folded_traceback(exception)
    elif failure.kind == "nitro" and cause is not None and not isinstance(cause, NitroError):
        folded = folded_traceback(cause) if classify(cause).kind == "user" else None
    if output.json:
        told = {**error.as_json(), "error": type(exception).__name__, "exit_code": int(failure.code)}
        if output.debug:
            folded = full_traceback(exception)
        output.complain_json({**told, **({"traceback": folded} if folded else {})})
        return failure.code
    if output.debug:
        output.complain(full_traceback(exception))
    elif folded:
        output.complain(folded)
    output.complain_lines(error_lines(failure))
    return failure.code


def _usage(error: BaseException, output: Output) -> int:
    context: Any = getattr(error, "ctx", None)
    text = error.format_message()  # type: ignore[attr-defined]
    if type(error).__name__ == "NoArgsIsHelpError":
        output.complain(text)
        return ExitCode.USAGE
    fix = f"`{context.command_path} --help` lists what there is" if context is not None else None
    told = getattr(error, "__notes__", None)
    shown = NitroError(text, fix="; ".join([*told, *filter(None, [fix])]) if told else fix)
    if output.json:
        output.complain_json({**shown.as_json(), "error": "UsageError", "exit_code": int(ExitCode.USAGE)})
    else:
        if context is not None:
            output.complain(context.get_usage())
        output.complain_lines(error_lines(Failure("nitro", ExitCode.USAGE, shown, error)))
    return ExitCode.USAGE


def _stopped(error: BaseException, output: Output) -> int:
    detail = message_of(error)
    if isinstance(error, Terminated):
        said, code = "terminated; there was nothing to save", ExitCode.TERMINATED
    else:
        said, code = detail if " " in detail else "interrupted", ExitCode.INTERRUPTED
    return _tell_stop(said, type(error).__name__, code, error, output)


def _tell_stop(said: str, name: str, code: ExitCode, error: BaseException, output: Output) -> int:
    if output.json:
        output.complain_json({**NitroError(said).as_json(), "error": name, "exit_code": int(code)})
    else:
        output.complain(said)
        if output.debug:
            output.complain(full_traceback(error))
    return code


def _system_exit(error: SystemExit, output: Output) -> int:
    if error.code is None:
        return ExitCode.OK
    if isinstance(error.code, int):
        return error.code
    output.complain(str(error.code))
    return ExitCode.FAILED


def _reader_gone() -> bool:
    """Whether the pipe behind stdout or stderr has lost its reader: a hook that prints into it broke on that alone."""
    if not hasattr(select, "poll"):
        return False
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            poller = select.poll()
            poller.register(stream.fileno(), 0)  # type: ignore[union-attr]
            if any(event & select.POLLERR for _, event in poller.poll(0)):
                return True
    return False


def _flushed(code: int) -> int:
    """Flush what is buffered now: at interpreter shutdown a closed pipe would print and change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except BrokenPipeError:
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        except (OSError, ValueError):
            pass
    return int(code)


@contextlib.contextmanager
def _streams_take_all() -> Iterator[None]:
    r"""What a stream's encoding lacks is written as an escape, such as `\u2605`, instead of ending the command."""
    before: list[tuple[io.TextIOWrapper, str]] = []
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors != "backslashreplace":
            before.append((stream, stream.errors or "strict"))
            stream.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        for stream, errors in before:
            with contextlib.suppress(ValueError, OSError):  # closed by what ran
                stream.reconfigure(errors=errors)


@contextlib.contextmanager
def _warnings_shown(output: Output) -> Iterator[None]:
    """Warnings as one line each, without the source line; under --json as JSON lines."""

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        text = message_of(message) if isinstance(message, Warning) else message
        if not issubclass(category, NitroWarning):
            if not output.verbose and not output.debug:
                return
            text = f"{text} ({category.__name__}, {filename}:{lineno})"
        if output.json:
            output.complain_json({"warning": text})
        else:
            output.complain_lines(labelled("warning", text, "33"))

    with warnings.catch_warnings():
        warnings.simplefilter("always", NitroWarning)
        previous = warnings.showwarning
        warnings.showwarning = show
        try:
            yield
        finally:
            warnings.showwarning = previous
