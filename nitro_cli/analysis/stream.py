"""Predictions one batch at a time, with nothing kept that was handed over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import TracebackType

from nitro_cli.analysis.prediction import Prediction
from nitro_cli.errors import StreamClosedError

__all__ = ["PredictionStream"]


class PredictionStream:
    """An iterator of predictions in order, to be used as a context manager.

    Closing it leaves what it reads from usable. Once it is closed or consumed, asking for more is an error: a second
    loop over it would otherwise see no batch.

    Args:
        predictions: what makes them, one per batch.
    """

    def __init__(self, predictions: Iterable[Prediction]) -> None:
        self._predictions: Iterator[Prediction] | None = iter(predictions)

    def __iter__(self) -> PredictionStream:
        self._open()
        return self

    def __next__(self) -> Prediction:
        try:
            return next(self._open())
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> PredictionStream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what it reads from; may be called again."""
        closing, self._predictions = self._predictions, None
        close = getattr(closing, "close", None)
        if callable(close):
            close()

    def _open(self) -> Iterator[Prediction]:
        if self._predictions is None:
            raise StreamClosedError(
                "the stream of predictions is closed or consumed", fix="ask for a new one, or keep what it gave"
            )
        return self._predictions
