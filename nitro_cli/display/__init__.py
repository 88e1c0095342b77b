"""How the progress of a run is shown: in a terminal, in a notebook, as plain lines."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.display.choice import reporter_for_scripts
    from nitro_cli.display.console import OutputClosed, make_console
    from nitro_cli.display.live import LiveReporter
    from nitro_cli.display.notebook import NotebookReporter
    from nitro_cli.display.plain import PlainReporter
    from nitro_cli.display.progress_state import duration
