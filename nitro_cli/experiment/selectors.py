"""Which checkpoints a rule picks: `Best`, `Last`, `Epochs`, `Every`, and `Average` over one of them.

A selector works on manifest entries, duck-typed: `epoch`, `step`, `score` (None when unscored), `metric`, `mode`,
`written` (seconds), `sequence` (the order of writing, whatever the clocks said; 0 where nothing was counted), `run`,
`resume_point`. Resume points are outside all selectors.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload

from nitro_cli.errors import ConfigError

from .selector_text import read_selector

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

__all__ = ["Average", "Best", "Entry", "Epochs", "Every", "Last", "Mode", "Selector", "parse_selector", "rank"]

Mode = Literal["min", "max"]


class Entry(Protocol):
    """What a selector reads of a manifest entry."""

    @property
    def epoch(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def score(self) -> float | None: ...
    @property
    def metric(self) -> str | None: ...
    @property
    def mode(self) -> str | None: ...
    @property
    def written(self) -> float: ...
    @property
    def sequence(self) -> int: ...
    @property
    def run(self) -> str: ...
    @property
    def resume_point(self) -> bool: ...


_E = TypeVar("_E", bound=Entry)


class Selector:
    """A rule that picks entries of a run's manifest. Subclass it and write `select`; `admits` is optional."""

    def select(self, entries: Sequence[_E], mode: Mode | None = None) -> list[_E]:
        """The entries that the rule picks.

        Args:
            entries: what retention decides over, in any order.
            mode: which way the current metric is better; None takes the newest scored entry's.
        """
        raise NotImplementedError

    def admits(self, entries: Sequence[_E], entry: _E) -> bool:
        """Whether `entry`, not written yet, would be picked; an entry that no selector admits is not written.

        The default answers yes, which always writes and leaves the decision to `select`.
        """
        return True

    @classmethod
    def selects(cls) -> bool:
        """Whether the class has a `select` of its own."""
        return cls.select is not Selector.select

    @property
    def ranks(self) -> bool:
        """Whether the rule orders entries by their score."""
        return False

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _text_or_instance(cls)


def _text_or_instance(cls: type) -> CoreSchema:
    # The light commands read selectors without pydantic.
    from pydantic_core import PydanticCustomError, core_schema

    def validate(value: Any) -> Any:
        if isinstance(value, str):
            try:
                value = parse_selector(value)
            except ConfigError as error:
                context = {"why": error.what, "nearest": list(error.nearest)}
                raise PydanticCustomError("selector", "{why}", context) from None
        if not isinstance(value, cls):
            shown = {"given": repr(value), "name": cls.__name__}
            raise PydanticCustomError("selector", "{given} is not a {name}, such as 'last(3)'", shown)
        if isinstance(value, Selector) and not value.selects():
            given = {"given": type(value).__name__}
            raise PydanticCustomError("selector", "{given} is no selector: it has no select()", given)
        return value

    text = core_schema.plain_serializer_function_ser_schema(str, when_used="json")
    return core_schema.no_info_plain_validator_function(validate, serialization=text)


def _positive(value: Any, name: str) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ConfigError(f"{name} is a whole number of at least 1, got {value!r}")


def _finished(entries: Iterable[_E]) -> list[_E]:
    return [entry for entry in entries if not entry.resume_point]


def _oldest_first(entries: Sequence[_E]) -> list[_E]:
    # Epochs order one run; across runs only the order of writing does.
    if len({entry.run for entry in entries}) > 1:
        return sorted(entries, key=lambda e: (e.sequence, e.written, e.epoch, e.step))
    return sorted(entries, key=lambda e: (e.epoch, e.step, e.sequence))


def rank(entries: Sequence[_E], mode: Mode | None = None) -> list[_E]:
    """The scored entries, best first; a score that is not finite ranks last, equal scores the older first.

    Only entries scored under one metric and mode are ranked: the newest scored entry's, or the newest one's that
    has `mode`. Others are left out.

    Args:
        entries: manifest entries in any order; resume points and unscored ones are left out.
        mode: `"min"` or `"max"`; None takes the newest scored entry's.
    """
    scored = [e for e in _oldest_first(_finished(entries)) if e.score is not None]
    if mode is not None:
        scored = [e for e in scored if e.mode in (mode, None)]
    named = [e for e in scored if e.metric is not None]
    newest = max(named or scored, key=lambda e: (e.sequence, e.written, e.epoch, e.step), default=None)
    if newest is None:
        return []
    way = mode or newest.mode or "min"
    same = [e for e in scored if e.metric in (newest.metric, None) and e.mode in (way, None)]
    sign = 1.0 if way == "min" else -1.0

    def key(entry: _E) -> tuple[bool, float]:
        score = float(entry.score)  # type: ignore[arg-type]
        return (not math.isfinite(score), sign * score if math.isfinite(score) else 0.0)

    return sorted(same, key=key)


@dataclass(frozen=True)
class Best(Selector):
    """The `k` best entries by score, best first; with `among`, of what that selector picks.

    `Best(5, among=Last(20))` is the best 5 of the latest 20; `among` is for loading, retention refuses it.
    """

    k: int = 1
    among: Selector | None = None

    def __post_init__(self) -> None:
        _positive(self.k, "the k of best(k)")
        if self.among is not None and not isinstance(self.among, Selector):
            raise ConfigError(f"among is a selector, such as Last(20), got {self.among!r}")

    def select(self, entries: Sequence[_E], mode: Mode | None = None) -> list[_E]:
        pool = entries if self.among is None else self.among.select(entries, mode)
        return rank(pool, mode)[: self.k]

    def admits(self, entries: Sequence[_E], entry: _E) -> bool:
        if entry.resume_point or entry.score is None:
            return False
        # Ranked only against entries of the same metric and mode, whichever of them is newest.
        peers = [e for e in entries if e.metric in (entry.metric, None) and e.mode in (entry.mode, None)]
        mode: Mode | None = "max" if entry.mode == "max" else "min" if entry.mode == "min" else None
        return any(e is entry for e in self.select([*peers, entry], mode))

    @property
    def ranks(self) -> bool:
        return True

    def __str__(self) -> str:
        return f"best({self.k})" if self.among is None else f"best({self.k}, among={self.among})"


@dataclass(frozen=True)
class Last(Selector):
    """The latest `n` entries, newest first: by epoch within one run, by time of writing across runs."""

    n: int = 1

    def __post_init__(self) -> None:
        _positive(self.n, "the n of last(n)")

    def select(self, entries: Sequence[_E], mode: Mode | None = None) -> list[_E]:
        return _oldest_first(_finished(entries))[::-1][: self.n]

    def admits(self, entries: Sequence[_E], entry: _E) -> bool:
        return not entry.resume_point

    def __str__(self) -> str:
        return f"last({self.n})"


@dataclass(frozen=True)
class Every(Selector):
    """The entries whose epoch is a multiple of `n`, oldest first."""

    n: int

    def __post_init__(self) -> None:
        _positive(self.n, "the n of every(n)")

    def select(self, entries: Sequence[_E], mode: Mode | None = None) -> list[_E]:
        return [e for e in _oldest_first(_finished(entries)) if e.epoch % self.n == 0]

    def admits(self, entries: Sequence[_E], entry: _E) -> bool:
        return not entry.resume_point and entry.epoch % self.n == 0

    def __str__(self) -> str:
        return f"every({self.n})"


@dataclass(frozen=True, init=False)
class Epochs(Selector):
    """The entries of the given epochs, oldest first: `Epochs(3, 7)`, `Epochs(range(1, 6))`, `Epochs([2, 4])`.

    As text the last epoch of a range is included: `epochs(1:5)` holds 1, 2, 3, 4 and 5.
    """

    spans: tuple[tuple[int, int], ...]
    """The epochs as merged inclusive spans, ascending: equal sets of epochs are equal selectors."""

    def __init__(self, *epochs: int | Iterable[int]) -> None:
        object.__setattr__(self, "spans", _merge(span for item in epochs for span in _spans(item)))
        if not self.spans:
            raise ConfigError("epochs(...) names no epoch", fix="write the epochs, such as epochs(1:5) or epochs(3, 7)")

    @classmethod
    def between(cls, *spans: tuple[int, int]) -> Epochs:
        """The epochs of inclusive (first, last) spans."""
        return cls(*(range(first, last + 1) for first, last in spans))

    def __contains__(self, epoch: int) -> bool:
        return any(first <= epoch <= last for first, last in self.spans)

    def select(self, entries: Sequence[_E], mode: Mode | None = None) -> list[_E]:
        return [e for e in _oldest_first(_finished(entries)) if e.epoch in self]

    def admits(self, entries: Sequence[_E], entry: _E) -> bool:
        return not entry.resume_point and entry.epoch in self

    def __str__(self) -> str:
        parts = [f"{first}" if first == last else f"{first}:{last}" for first, last in self.spans]
        return f"epochs({', '.join(parts)})"


def _spans(item: int | Iterable[int]) -> Iterable[tuple[int, int]]:
    if isinstance(item, range) and item.step == 1:
        if len(item):
            _positive(item.start, "an epoch")
            yield (item.start, item.stop - 1)
    elif isinstance(item, Iterable) and not isinstance(item, str):
        for epoch in item:
            _positive(epoch, "an epoch")
            yield (epoch, epoch)
    else:
        _positive(item, "an epoch")
        yield (item, item)


def _merge(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return tuple(merged)


@dataclass(frozen=True)
class Average:
    """The mean of the parameters of the checkpoints that `selector` picks from one run, as a weights source.

    Layer state is not averaged: `state` says whether it comes from the `"best"` or the `"latest"` of them; None takes
    the best when the selector ranks and the latest otherwise.
    """

    selector: Selector
    state: Literal["best", "latest"] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.selector, Selector):
            raise ConfigError(f"Average takes a selector, such as Last(10), got {self.selector!r}")
        if not self.selector.selects():
            raise ConfigError(f"{type(self.selector).__name__} is no selector: it has no select()")
        if self.state not in (None, "best", "latest"):
            raise ConfigError(f"the state of Average is 'best' or 'latest', got {self.state!r}")

    @property
    def state_from(self) -> Literal["best", "latest"]:
        """Which of the picked checkpoints gives the layer state."""
        return self.state or ("best" if self.selector.ranks else "latest")

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return _text_or_instance(cls)

    def __str__(self) -> str:
        return f"average({self.selector})" if self.state is None else f"average({self.selector}, state={self.state})"


@overload
def parse_selector(text: str) -> Selector | Average: ...
@overload
def parse_selector(text: str, *, average: bool) -> Any: ...
def parse_selector(text: str, *, average: bool = True) -> Any:
    """Read a selector from its text form; `str()` of the result gives the text back.

    `epochs(1:5)` includes 5. `best` and `last` alone mean `best(1)` and `last(1)`.

    Args:
        text: the selector, such as `best(5, among=last(20))`, or `average(<selector>)`.
        average: whether `average(...)` is allowed at the top.

    Raises:
        ConfigError: the text is no selector; it names the place and the nearest selector.
    """
    kinds = {"average": Average, "best": Best, "epochs": Epochs, "every": Every, "last": Last}
    return read_selector(text, kinds, average=average)
