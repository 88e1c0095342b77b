"""A split that was saved, said again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from nitro_cli.data.splits.applied import EXCLUDED, AppliedSplit, applied_split, read_manifest_of_split
from nitro_cli.data.splits.row_keys import RowKeys, told_ids
from nitro_cli.data.splits.split_plan import SplitPlan, register_split
from nitro_cli.errors import SplitError

__all__ = ["SavedSplit"]


@register_split("saved")
class SavedSplit(SplitPlan):
    """The split of a file that `AppliedSplit.save` wrote, for the same rows in any order.

    Args:
        file: the manifest.
    """

    takes: ClassVar[tuple[str, ...]] = ("groups", "labels", "times")
    # None of them is looked at: a script that plans once and replays later need not change its call.

    file: Path
    """The manifest."""

    def __init__(self, file: Path | str | None = None, /, **values: Any) -> None:
        given: dict[str, Any] = {} if file is None else {"file": Path(file)}
        super().__init__(**given, **values)

    def planned(self, keys: RowKeys, columns: Mapping[str, list[Any]]) -> AppliedSplit:
        """Put rows to the splits that the file has them in; arguments as of `SplitPlan.planned`."""
        held = read_manifest_of_split(self.file)
        where = f"split, file {self.file}"
        for name, saved, given in (("id type", held["id_type"], keys.id_type), ("source", held["source"], keys.source)):
            if saved != given:
                raise SplitError(
                    f"the saved split is of another {name}: {saved or 'none'}, and the rows have {given or 'none'}",
                    where=where,
                    why="the same id would be another row",
                    fix="plan this source anew, or give the source that the split was planned for",
                )
        of_id = {id: name for name, ids in held["splits"].items() for id in ids}
        if len(of_id) < sum(map(len, held["splits"].values())):
            raise SplitError("an id stands in two splits of the file", where=where)
        _check(keys, of_id, where)
        return applied_split(held["strategy"], keys, [of_id[id] for id in keys.ids])


def _check(keys: RowKeys, of_id: Mapping[Any, str], where: str) -> None:
    there = set(keys.ids)
    gone: Sequence[Any] = [id for id in of_id if id not in there]
    # A row that is in no split may be dropped from the data; a position cannot, which would renumber the others.
    missing = [id for id in gone if of_id[id] != EXCLUDED or keys.id_type == "position"]
    unexpected = [id for id in keys.ids if id not in of_id]
    if missing or unexpected:
        found = [f"missing: {told_ids(missing)}"] if missing else []
        found += [f"unexpected: {told_ids(unexpected)}"] if unexpected else []
        raise SplitError(
            f"the rows are not those of the saved split; {'; '.join(found)}",
            where=where,
            fix="apply it to the rows that it was planned for, or plan anew",
        )
