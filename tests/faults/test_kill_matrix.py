"""A whole run, killed or told to stop at any instant, and resumed: as if nothing had happened."""

from __future__ import annotations

import json
import random
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest

from nitro_cli.checkpoints import CheckpointRef, resolve_resume, verify
from nitro_cli.errors import NitroWarning
from tests.faults.conftest import SUBJECT, Victims
from tests.faults.outcome import assert_equal, outcome

ROOT = Path("runs/Subject")
# One of each kind of instant, in the middle of the run; the last number says which of its kind.
INSTANTS = [
    ("after setup", 1),
    ("before compile", 3),
    ("after step", 3),
    ("before evaluation", 2),
    ("after copy", 3),
    ("after write", 3),
    ("before rename", 3),
    ("after rename", 3),
    ("before manifest", 4),
    ("after manifest", 4),
    ("inside deletion", 1),
    ("log", 7),
    ("before status", 1),
]


def numbered(place: Path) -> list[str]:
    """The labels of the instants of a run, in order."""
    return (place / "instants").read_text().splitlines()


def finish(victims: Victims, place: Path) -> None:
    """Do what a scheduler does next: resume where there is a checkpoint, begin again where there is none."""
    root = place / ROOT
    before = resume_point(root)
    committed = (place / "committed").read_text().split() if (place / "committed").exists() else []
    newest = max(map(int, committed), default=0)
    assert (before.step if before is not None else 0) >= newest, "a committed checkpoint was lost"
    assert all(checked.ok for checked in (verify(root) if before is not None else ()))
    words = ("resume", str(ROOT)) if before is not None else ("train", SUBJECT)
    code = victims.run(place, *words, instants=False)
    assert code == 0, (place / "said").read_text()


def resume_point(root: Path) -> CheckpointRef | None:
    """What a resume of the directory would go on from."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NitroWarning)
        return resolve_resume("auto", root) if root.is_dir() else None


def check_one(victims: Victims, place: Path, reference: Path, request: dict[str, Any]) -> None:
    """One kill: what is left loads, and the run comes to the same end."""
    code = victims.run(place, "train", SUBJECT, **request)
    if isinstance(request["at"], list):
        label, which = request["at"]
        assert numbered(place).count(label) >= which, "the run never came there"
    said = (place / "said").read_text()
    root = place / ROOT
    if request.get("numbers") == [signal.SIGTERM]:
        assert code in (0, 75, 143), said
        assert "Traceback" not in said
        manifest = json.loads((root / "manifest.json").read_text()) if (root / "manifest.json").exists() else {}
        statuses = [run["status"] for run in manifest.get("runs", {}).values()]
        assert statuses == {0: ["completed"], 75: ["requested"], 143: []}[code]
        if code == 143:
            assert not [item for item in root.glob("*") if item.is_dir()], "the half-made run was left"
    else:
        assert code in (0, -signal.SIGKILL), said
    finish(victims, place)
    assert_equal(outcome(root), outcome(reference / ROOT))
    assert not [item for item in (root).rglob("*") if ".tmp-" in item.name or ".deleting-" in item.name]


@pytest.mark.parametrize("numbers", [[signal.SIGKILL], [signal.SIGTERM]], ids=["kill", "terminate"])
def test_a_run_cut_at_each_kind_of_instant_comes_to_the_same_end(
    victims: Victims, fast_place: Path, uninterrupted: Path, numbers: list[int]
) -> None:
    chosen = INSTANTS if numbers == [signal.SIGKILL] else [*INSTANTS[:6:2], *INSTANTS[6::3], ("after manifest", 1)]
    jobs = []
    for label, which in chosen:
        place = fast_place / f"{numbers[0]}-{label.replace(' ', '-')}-{which}"
        request = {"at": [label, which], "numbers": numbers}
        jobs.append((label, victims.pool.submit(check_one, victims, place, uninterrupted, request)))
    for label, job in jobs:
        assert job.exception() is None, f"{label}: {job.exception()!r}"


@pytest.mark.slow
@pytest.mark.parametrize("numbers", [[signal.SIGKILL], [signal.SIGTERM]], ids=["kill", "terminate"])
def test_a_run_cut_at_every_instant_comes_to_the_same_end(
    victims: Victims, fast_place: Path, uninterrupted: Path, numbers: list[int]
) -> None:
    whole = fast_place / f"every-{numbers[0]}"
    assert victims.run(whole, "train", SUBJECT) == 0
    jobs = {}
    for at, label in enumerate(numbered(whole), 1):
        place = fast_place / f"every-{numbers[0]}-{at}"
        request = {"at": at, "numbers": numbers}
        jobs[f"{at}: {label}"] = victims.pool.submit(check_one, victims, place, uninterrupted, request)
    failed = {name: repr(job.exception()) for name, job in jobs.items() if job.exception() is not None}
    assert len(jobs) > 100
    assert failed == {}


@pytest.mark.slow
def test_a_run_killed_at_random_moments_until_it_is_through_comes_to_the_same_end(
    victims: Victims, fast_place: Path, uninterrupted: Path
) -> None:
    moments = random.Random(0)
    grouped = {"instants": False, "call_seconds": 0.02}

    def go(number: int) -> None:
        place = fast_place / f"random-{number}"
        seconds = [moments.uniform(0.2, 3.0) for _ in range(4)]
        code = victims.run(place, "train", SUBJECT, seconds=seconds[0], **grouped)
        for wait in seconds[1:]:
            if code == 0:
                break
            words = ("resume", str(ROOT)) if resume_point(place / ROOT) else ("train", SUBJECT)
            code = victims.run(place, *words, seconds=wait, **grouped)
        if code:
            finish(victims, place)
        assert_equal(outcome(place / ROOT), outcome(uninterrupted / ROOT))

    jobs = [victims.pool.submit(go, number) for number in range(50)]
    assert [repr(job.exception()) for job in jobs if job.exception() is not None] == []
