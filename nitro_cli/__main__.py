"""`python -m nitro_cli` and the `nitro` command.

From the first instruction on a Ctrl-C ends the process with one line: the imports that follow take most of a start.
"""

import os
import signal
import sys
from types import FrameType

__all__ = ["main"]

_INTERRUPTED = 130
_SAID = "interrupted by Ctrl-C; there was nothing to save"
_SAID_AS_JSON = (
    f'{{"schema": 1, "error": "KeyboardInterrupt", "what": "{_SAID}", "where": null, "why": null, "fix": null, '
    f'"nearest": [], "exit_code": {_INTERRUPTED}}}'
)


def main() -> None:
    """Run the command line of this process."""
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from nitro_cli.cli.app import main as run

    try:
        run()
    except SystemExit as done:
        # All is told: a Ctrl-C while the interpreter closes changes nothing, and must not print its insides.
        code = done.code if isinstance(done.code, int) else 0
        if signal.getsignal(signal.SIGINT) == _leave:
            signal.signal(signal.SIGINT, lambda number, frame: os._exit(code))
        raise


def _leave(number: int, frame: FrameType | None) -> None:
    try:
        os.write(2, f"{_SAID_AS_JSON if '--json' in sys.argv else _SAID}\n".encode())
    finally:
        os._exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
