from __future__ import annotations

import errno
from pathlib import Path

import pytest

from nitro_cli.checkpoints.transient import os_error_number, storage_error, with_retry
from nitro_cli.errors import NitroWarning


class Failing:
    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.calls = 0

    def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.mark.parametrize("number", [errno.EIO, errno.EAGAIN, errno.ESTALE, errno.EBUSY, errno.EINTR, errno.ETIMEDOUT])
def test_a_transient_error_is_tried_again_with_doubling_waits(number: int) -> None:
    operation = Failing(OSError(number, "x"), OSError(number, "x"))
    waits: list[float] = []
    with pytest.warns(NitroWarning, match="trying again"):
        assert with_retry(operation, "writing", backoff=0.5, sleep=waits.append) == "done"
    assert waits == [0.5, 1.0]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES, errno.ENOENT])
def test_a_lasting_error_is_raised_at_once(number: int) -> None:
    operation = Failing(OSError(number, "x"))
    with pytest.raises(OSError, match="x"):
        with_retry(operation, "writing", sleep=lambda wait: None)
    assert operation.calls == 1


def test_a_transient_error_that_stays_is_raised_after_four_calls() -> None:
    operation = Failing(*[OSError(errno.EIO, "x")] * 9)
    with pytest.warns(NitroWarning), pytest.raises(OSError, match="x"):
        with_retry(operation, "writing", sleep=lambda wait: None)
    assert operation.calls == 4


def test_the_error_number_inside_a_tensorstore_error_is_found() -> None:
    text = "RESOURCE_EXHAUSTED: Failed to write: No space left on device [os_error_code='28']"
    assert os_error_number(ValueError(text)) == errno.ENOSPC
    assert os_error_number(ValueError("no number")) is None


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "disk is full"), (errno.EROFS, "read-only"), (errno.EACCES, "permission")]
)
def test_a_storage_error_says_why_and_where(number: int, words: str) -> None:
    error = storage_error(OSError(number, "x"), "the checkpoint could not be written", Path("/runs/a"))
    assert error.where == "/runs/a"
    assert words in (error.why or "")
    assert error.exit_code == 1
