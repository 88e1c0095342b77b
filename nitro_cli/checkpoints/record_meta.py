"""What a record says beside its arrays: one typed value, which readers ask and writers build."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import ConfigDict, Field, Strict
from pydantic_core import core_schema

from nitro_cli.experiment import Mode
from nitro_cli.metrics.row_document import HistoryRow
from nitro_cli.text.documents import Count, Document, Name, Number

__all__ = [
    "AveragedFrom",
    "RecordMeta",
    "RecordedComponent",
    "RecordedField",
    "RecordedTotals",
    "ResumeMeta",
    "SourceOfWeights",
    "StopCounters",
]

Positive = Annotated[int, Field(ge=1, lt=2**63)]


class _RecordPart(Document):
    """What a later nitro adds is kept."""

    model_config = ConfigDict(extra="allow", populate_by_name=True)

    def as_json(self) -> dict[str, Any]:
        """What it says, as `record.json` holds it; what was not said is not there."""
        alias = {name: str(field.validation_alias or name) for name, field in type(self).model_fields.items()}
        return {alias.get(name, name): _plain(value) for name, value in self if name in self.model_fields_set}


def _plain(value: Any) -> Any:
    if isinstance(value, _RecordPart):
        return value.as_json()
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


class _As:
    """A mapping that fits a schema and stays a mapping: another room reads it."""

    def __init__(self, schema: type[Document]) -> None:
        self.schema = schema

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        def check(value: Any, fits: Any) -> Any:
            fits(value)
            return value

        return core_schema.no_info_wrap_validator_function(check, handler.generate_schema(self.schema))


class RecordedClass(_RecordPart):
    """A class by name and import path."""

    name: Name | None = None
    import_: Name | None = Field(default=None, validation_alias="import")


class EpochLoss(_RecordPart):
    """Sum and count of an epoch's losses."""

    sum: float
    count: Count


class RecordedTotals(_RecordPart):
    """Sums of an epoch in progress: of loss terms and train metrics totals and counts, and the steps not taken."""

    terms: dict[Name, Annotated[tuple[float, float], Strict(False)]] = Field(default_factory=dict)
    metrics: dict[Name, Annotated[tuple[float, float], Strict(False)]] = Field(default_factory=dict)
    skipped: Count = 0


class RecordedField(_RecordPart):
    """A field of a batch: the dtype's name, and the shape of one sample, without the batch axis."""

    dtype: Name
    shape: Annotated[list[Count], Field(max_length=64)]


class _SplitFacts(_RecordPart):
    rows: Count | None = None
    batch_size: Count | None = None
    batches: Count | None = None
    order: Name | None = None
    first_batch: Name | None = None


class LoggerFacts(_RecordPart):
    """Type and state of a logger, and where it logged to."""

    type: Name | None
    state: Any
    run_id: Any = None
    run_url: Any = None


class AveragedFrom(_RecordPart):
    """Of which checkpoints a record is the mean: paths below `directory`, and which of them the layer state is of."""

    spec: Name
    run: Name
    directory: Name = ""
    files: list[Name] = Field(default_factory=list)
    epochs: list[Count]
    steps: list[Count] = Field(default_factory=list)
    state: Name | None = None
    weights: Name = "raw"


class _Plateau(_RecordPart):
    metric: Name
    mode: Mode
    scale: Number
    best: float | None
    bad_epochs: Count
    cooldown_left: Count
    reductions: Count


class _Schedules(_RecordPart):
    plateaus: dict[Name, _Plateau] = Field(default_factory=dict)


class RuleStates(_RecordPart):
    """The counters of the stop rule, in its own form, and of the schedules."""

    early_stop: Any = None
    schedules: Annotated[Mapping[str, Any], _As(_Schedules)] | None = None


class StopCounters(_RecordPart):
    """The counters of nitro's own early stopping; a stop rule of one's own keeps what it likes."""

    metric: Name
    mode: Mode
    best: float | None
    wait: Count


class RecordedComponent(_RecordPart):
    """The state of a component; an array in it is where it lies among the record's arrays."""

    version: Positive
    required: bool
    state: Any


class SourceOfWeights(_RecordPart):
    """The weights that decay pulls toward: a checkpoint's path, what to call it, and whether its EMA is meant."""

    path: Name | None = None
    text: Name
    ema: bool


class RecordMeta(_RecordPart):
    """What a record says beside its arrays; all of it may be missing in a record that is not for resuming.

    Attributes:
        experiment: name and import path of the class.
        fields, origins: field values by kind and name, and where each came from.
        config: the text of config.toml.
        graphconst, graphconst_sha256: text and content digest of the GraphConst fields.
        preset, seed: of the run.
        run: its id, in a record that a checkpointer of one's own keeps.
        epoch, step, position: the epoch in progress or just ended, optimizer steps, micro-batches consumed in it.
        epoch_closed: whether the epoch has ended.
        stream_state: where the train stream stands.
        epoch_loss: sum and count of the epoch's losses so far.
        epoch_totals: what else the epoch has summed up so far.
        updates: the optimizer steps that were taken; None in records that know of no others.
        failed: steps in a row, up to here, that were not finite.
        batches, batch_fields, accum, steps_per_dispatch, total_steps: how the run is fed and how far it goes.
        data: what each split is, by which a resume knows whether it goes on over the same rows.
        log_bytes: lengths of the files of lines, by name.
        derived: values of `derive`; null where an array holds it.
        metrics: the epoch's scalars.
        history: the rows so far, as `encode_row` gives them.
        rules: counters of the stop rule and of schedules.
        components: the states of all other components.
        logger: type and state of the logger.
        anchors, w0: checksums of decay anchors, and where the initial weights came from.
        stop_reason: why the run ended here, if it did.
        averaged_from: what it is the mean of.
        program: key of the program that trained.
        versions: of Python and packages.
    """

    experiment: RecordedClass = Field(default_factory=RecordedClass)
    fields: dict[str, dict[str, Any]] = Field(default_factory=dict)
    origins: dict[str, Any] = Field(default_factory=dict)
    config: str | None = None
    graphconst: dict[str, str] | None = None
    graphconst_sha256: dict[str, str] = Field(default_factory=dict)
    preset: Name | None = None
    seed: Count | None = None
    run: Name | None = None
    epoch: Count | None = None
    step: Count | None = None
    position: Count | None = None
    epoch_closed: bool | None = None
    stream_state: Any = None
    epoch_loss: EpochLoss | None = None
    epoch_totals: RecordedTotals = Field(default_factory=RecordedTotals)
    updates: Count | None = None
    failed: Count = 0
    batches: Count | None = None
    batch_fields: dict[Name, RecordedField] = Field(default_factory=dict)
    data: dict[Name, Annotated[Mapping[str, Any], _As(_SplitFacts)]] = Field(default_factory=dict)
    accum: Positive | None = None
    steps_per_dispatch: Positive | None = None
    total_steps: Count | None = None
    log_bytes: dict[Name, Count] | None = None
    derived: dict[Name, Any] | None = None
    metrics: dict[Name, float] = Field(default_factory=dict)
    history: Sequence[Annotated[Mapping[str, Any], _As(HistoryRow)]] = Field(default_factory=list)
    rules: RuleStates = Field(default_factory=RuleStates)
    components: dict[Name, RecordedComponent] = Field(default_factory=dict)
    logger: LoggerFacts | None = None
    anchors: dict[Name, Name] = Field(default_factory=dict)
    w0: SourceOfWeights | None = None
    stop_reason: Name | None = None
    averaged_from: AveragedFrom | None = None
    program: Name | None = None
    versions: dict[Name, Name] = Field(default_factory=dict)


class ResumeMeta(RecordMeta):
    """What a record says that training can go on from: `RecordMeta` with what may not be missing."""

    seed: Count
    epoch: Count
    step: Count
    position: Count
    epoch_closed: bool
    epoch_loss: EpochLoss
    accum: Positive
    batches: Count
    steps_per_dispatch: Positive
    total_steps: Count
