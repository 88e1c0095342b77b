"""An artefact appears whole or not at all."""

import contextlib
import signal

import pytest

from nitro_cli.export.writing import new_directory, new_file
from nitro_cli.run import NothingToSave, ServedSignals


@pytest.mark.parametrize("new", [new_directory, new_file])
def test_a_stop_that_a_callback_swallows_keeps_the_artefact_from_appearing(tmp_path, new):
    target = tmp_path / "made"

    def write():
        with ServedSignals(NothingToSave()), new(target, force=False) as temporary:
            (temporary / "file" if temporary.is_dir() else temporary).write_text("half")
            with contextlib.suppress(BaseException):
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        write()
    assert list(tmp_path.iterdir()) == []
