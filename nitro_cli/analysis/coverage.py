"""How many rows a policy accepted, and how many of those are wrong; adds up over chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from nitro_cli.errors import ConfigError, DataError

__all__ = ["Coverage"]


@dataclass(frozen=True, eq=False)
class Coverage:
    """Coverage over all rows, and risk over the accepted ones.

    Args:
        policy: the policy's id.
        rows: all rows.
        accepted: how many were accepted.
        wrong: how many of those are wrong.
        ids: the ids of all rows.
        accepted_ids: those of the accepted ones.
        override: mismatches that were accepted, as JSON values.
    """

    policy: str
    rows: int
    accepted: int
    wrong: int
    ids: np.ndarray
    accepted_ids: np.ndarray
    override: tuple[dict[str, Any], ...] = ()

    @property
    def status(self) -> str:
        """`ok`, `no_accepted` or `empty`."""
        if not self.rows:
            return "empty"
        return "ok" if self.accepted else "no_accepted"

    @property
    def coverage(self) -> float | None:
        """Accepted of all rows; None without rows."""
        return self.accepted / self.rows if self.rows else None

    @property
    def risk(self) -> float | None:
        """Wrong of accepted rows; None where none is accepted, which is no risk of 0."""
        return self.wrong / self.accepted if self.accepted else None

    @property
    def summary(self) -> str:
        """One line."""
        if self.coverage is None:
            return "there are no rows"
        if self.risk is None:
            return f"none of {self.rows} rows is accepted: there is no risk to speak of"
        return (
            f"coverage {self.coverage:.4f} ({self.accepted} of {self.rows}), "
            f"selective risk {self.risk:.4f} ({self.wrong} wrong)"
        )

    def merge(self, other: Coverage) -> Coverage:
        """Both chunks as one.

        Raises:
            ConfigError: they are of two policies.
            DataError: an id is in both, or several times in one.
        """
        if self.policy != other.policy:
            raise ConfigError("coverages of two policies do not add up", why=f"{self.policy} and {other.policy}")
        ids = np.concatenate([self.ids, other.ids])
        values, counts = np.unique(ids, return_counts=True)
        if len(values) < len(ids):
            raise DataError(
                f"the id {values[counts > 1][0]} is there several times",
                why="a row that counts twice moves the risk",
                fix="give each chunk the ids of its own rows",
            )
        return Coverage(
            self.policy,
            self.rows + other.rows,
            self.accepted + other.accepted,
            self.wrong + other.wrong,
            ids,
            np.concatenate([self.accepted_ids, other.accepted_ids]),
            self.override + tuple(item for item in other.override if item not in self.override),
        )

    def as_json(self) -> dict[str, Any]:
        """As JSON values, without the ids."""
        return {
            "policy": self.policy,
            "status": self.status,
            "rows": self.rows,
            "accepted": self.accepted,
            "wrong": self.wrong,
            "coverage": self.coverage,
            "risk": self.risk,
            "override": list(self.override),
            "summary": self.summary,
        }
