"""Several processes: two train as one does, write one run, and end together."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nitro_cli import Average, Every, Nitro, average_checkpoints, set_progress_reporter, setup_distributed
from nitro_cli.analysis import load_predictions
from nitro_cli.checkpoints import read_record, record_info, verify
from nitro_cli.errors import ConfigError
from nitro_cli.run import flatten
from tests.process_data import Augmented, Wide, carry_digest
from tests.tiny import Quick

TOLERANCE = 1e-5
"""Sums over two processes differ from those of one by float32 rounding."""
BOUND_SECONDS = 300.0
"""Longer than any busy machine needs: only a process that hangs takes it."""
HERE = Path(__file__).parent

slow = pytest.mark.slow


def _coordinator() -> str:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return f"localhost:{free.getsockname()[1]}"


def _environment(folder: Path) -> dict[str, str]:
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "",
        "PYTHONPATH": str(HERE.parents[1]),
        "NITRO_CACHE_DIR": str(folder / "programs"),
    }


def _start(folder: Path, commands: list[list[str]], apart: bool = False) -> list[subprocess.Popen[bytes]]:
    """Start a process per command in `folder`, or each in a folder of its own there."""
    started = []
    for index, words in enumerate(commands):
        place = folder / str(index) if apart else folder
        place.mkdir(exist_ok=True)
        with (folder / f"{index}.err").open("wb") as told:
            command = [sys.executable, *words]
            started.append(subprocess.Popen(command, env=_environment(folder), cwd=place, stdout=told, stderr=told))
    return started


def _train_one(root: Path, kind: type = Quick, **words: Any) -> Nitro:
    return Nitro(kind(run_dir=root, n_devs=1, **words)).train()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict[str, Any]]]:
    """What two processes found, one's runs of a single epoch in their folder to go on from."""
    folder = tmp_path_factory.mktemp("pair")
    previous = set_progress_reporter(None)
    try:
        _train_one(folder / "one", max_epochs=1)
        (folder / "wide.txt").write_text(carry_digest(_train_one(folder / "wide", Wide, max_epochs=1)))
    finally:
        set_progress_reporter(previous)
    coordinator = _coordinator()
    script = str(HERE / "one_of_several.py")
    children = _start(folder, [[script, str(folder), coordinator, "2", str(index)] for index in range(2)])
    try:
        codes = [child.wait(timeout=600) for child in children]
    finally:
        for child in children:
            child.kill()
    told = "\n".join((folder / f"{index}.err").read_text() for index in range(2))
    assert (folder / "0.json").exists(), told
    assert (folder / "1.json").exists(), told
    # Both were refused something in the end, which ends a process of several with the error's own code.
    assert codes == [2, 2], told
    return folder, [json.loads((folder / f"{index}.json").read_text()) for index in range(2)]


def _difference(folder: Path, name: str, nitro: Nitro) -> float:
    with np.load(folder / f"{name}.npz") as held:
        ours = {key.replace("/", "."): array for key, array in flatten("params", nitro.params).items()}
        assert sorted(held) == sorted(ours)
        return max(float(np.abs(held[key] - ours[key]).max()) for key in ours)


@slow
def test_a_loss_of_terms_is_that_of_the_batch_that_the_processes_share(pair: tuple[Path, list[dict[str, Any]]]) -> None:
    assert all(max(found["terms"].values()) < 1e-6 for found in pair[1])


@slow
@pytest.mark.parametrize(
    "name",
    [
        "two",
        "fsdp",
        "fsdp again",
        "fsdp after one",
        "own part",
        "augmented",
        "own store",
        "own store again",
        "stopped",
        "watched",
        "watched again",
        "resumed",
    ],
)
def test_both_processes_hold_the_same_state_bit_for_bit_and_name_the_same_run(pair, name):
    _, (zero, one) = pair
    assert zero[name]["carry"] == one[name]["carry"]
    assert (zero[name]["run"], zero[name]["step"], zero[name]["metrics"]) == (
        one[name]["run"],
        one[name]["step"],
        one[name]["metrics"],
    )
    assert zero[name]["best"] == one[name]["best"]


@slow
@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("two", Quick, {}),
        ("fsdp", Quick, {"width": 2048, "max_epochs": 1}),
        ("fsdp after one", Quick, {"width": 2048}),
        ("augmented", Augmented, {"max_epochs": 1}),
        ("resumed", Quick, {}),
    ],
)
def test_two_processes_train_as_one_does(pair, tmp_path, name, kind, words):
    folder, (zero, _) = pair
    alone = _train_one(tmp_path / "alone", kind, **words)
    assert _difference(folder, name, alone) < TOLERANCE
    assert zero[name]["step"] == alone.step
    assert zero[name]["metrics"] == pytest.approx(alone.metrics, abs=TOLERANCE)


@slow
def test_the_train_split_is_evaluated_in_whole_batches(pair, tmp_path):
    _, (zero, one) = pair
    alone = _train_one(tmp_path / "alone").evaluate("train")
    assert zero["two"]["train split"] == one["two"]["train split"] == pytest.approx(alone, abs=TOLERANCE)


@slow
def test_the_main_process_alone_calls_callbacks_unless_they_are_everywhere_and_a_stop_is_agreed(pair):
    folder, (zero, one) = pair
    first, again = zero["watched"], zero["watched again"]
    assert first["stop"] == one["watched"]["stop"] == ["requested", "request"]
    assert (first["smoothing"], one["watched"]["smoothing"]) == (0.25, 0.25)
    # The other process has the count of the main one only when a resume gave it to both.
    assert first["updates"] == [0, first["step"]]
    assert one["watched"]["updates"] == [0, 0]
    assert again["updates"] == [first["step"], again["step"]]
    assert one["watched again"]["updates"] == [first["step"], first["step"]]
    assert (again["step"], again["stop"][0]) == (48, "completed")
    (written,) = {path.parent for path in folder.glob("watched/*/predictions/*.npz")}
    read = load_predictions(written / "val-epoch-0001.npz")
    assert (len(read), read.origin.split) == (51, "val")


@slow
def test_a_checkpoint_of_two_processes_resumes_on_one(pair, tmp_path):
    folder, _ = pair
    alone = _train_one(tmp_path / "alone", max_epochs=3)
    resumed = Nitro(Quick(run_dir=folder / "two", n_devs=1, max_epochs=3), resume=("latest", "latest")).train()
    mine, theirs = flatten("params", alone.params), flatten("params", resumed.params)
    assert max(float(np.abs(mine[key] - theirs[key]).max()) for key in mine) < TOLERANCE
    assert resumed.step == alone.step


def _records(root: Path) -> list[Path]:
    return sorted(path.parent for path in root.glob("*/checkpoints/*/record.json"))


@slow
def test_under_fsdp_each_process_writes_its_half_of_every_split_array_and_nothing_is_gathered(pair):
    folder, _ = pair
    for record in _records(folder / "fsdp"):
        info = record_info(record)
        split = {path: spec.pieces for path, spec in info.leaves.items() if spec.kind == "pieces"}
        assert {path.rsplit("/", 1)[0].rsplit("/", 1)[-1] for path in split} == {"body", "head"}
        assert all([piece.store for piece in pieces] == ["arrays", "arrays-1"] for pieces in split.values())
        assert {name.split("/")[0] for name in info.files} == {"arrays", "arrays-1"}
    assert {name.split("/")[0] for name in record_info(_records(folder / "two")[0]).files} == {"arrays"}


@slow
def test_a_record_of_two_processes_under_fsdp_holds_their_state_and_resumes_on_both_bit_for_bit(pair):
    folder, (zero, _) = pair
    first, _ = _records(folder / "fsdp")
    arrays = read_record(first, prefixes=("params/",)).arrays
    with np.load(folder / "fsdp.npz") as held:
        assert {name.replace("/", "."): array.tobytes() for name, array in arrays.items()} == {
            name: held[name].tobytes() for name in held
        }
    assert zero["fsdp again"]["loaded"] == zero["fsdp"]["carry"]
    assert zero["fsdp again"]["carry"] == zero["fsdp straight"]["carry"]


@slow
def test_a_record_of_one_process_loads_on_two_under_fsdp_bit_for_bit(pair):
    folder, (zero, one) = pair
    assert zero["fsdp after one"]["loaded"] == one["fsdp after one"]["loaded"] == (folder / "wide.txt").read_text()


@slow
def test_one_process_verifies_loads_and_averages_what_two_wrote_under_fsdp(pair, tmp_path):
    folder, (zero, _) = pair
    assert [outcome.ok for outcome in verify(folder / "fsdp")] == [True, True]
    onto_one = Nitro(Wide(run_dir=folder / "fsdp", n_devs=1, max_epochs=3), resume=("latest", "latest"))
    assert carry_digest(onto_one) == zero["fsdp again"]["carry"]
    kernels = [read_record(record).arrays["params/body/kernel"] for record in _records(folder / "fsdp")]
    averaged = average_checkpoints(folder / "fsdp", "latest", Average(Every(1)), save=tmp_path / "averaged")
    expected = (kernels[0].astype(np.float64) + kernels[1]) / 2
    assert np.array_equal(averaged.arrays["params/body/kernel"], expected.astype(np.float32))
    from_average = Nitro(Wide(run_dir=tmp_path / "new", n_devs=1), weights=str(tmp_path / "averaged"))
    assert np.array_equal(flatten("params", from_average.params)["params/body/kernel"], expected.astype(np.float32))


@slow
def test_a_checkpointer_of_ones_own_keeps_what_the_main_process_gives_it_and_all_resume_from_it(pair, tmp_path):
    folder, (main, other) = pair
    first, again = main["own store"], main["own store again"]
    assert (first["saved"], again["saved"]) == ([12], [24])
    assert other["own store"]["saved"] == other["own store again"]["saved"] == []
    assert again["run"] == first["run"]
    straight = _train_one(tmp_path, max_epochs=2)
    assert _difference(folder, "own store again", straight) < 1e-6


@slow
def test_sources_that_bring_each_process_its_own_samples_make_up_the_global_batch(pair, tmp_path):
    # Unshuffled: process 0 brings samples 0 to 47 and process 1 the others, four of each to a batch of eight.
    folder, (zero, _) = pair
    order = np.arange(96).reshape(2, 12, 4).transpose(1, 0, 2).reshape(-1)

    class Interleaved(Quick):
        def build_data(self, dist: Any) -> dict[str, Any]:
            data = super().build_data(dist)
            train = data["train"]
            train.arrays = {name: array[order] for name, array in train.arrays.items()}
            return data

    alone = _train_one(tmp_path / "alone", Interleaved, shuffle=False, max_epochs=1)
    assert _difference(folder, "own part", alone) < TOLERANCE
    assert zero["own part"]["step"] == 12


@slow
def test_only_the_main_process_writes(pair):
    folder, (zero, _) = pair
    runs = [path for path in (folder / "augmented").iterdir() if path.is_dir()]
    assert [path.name for path in runs] == [zero["augmented"]["run"]]
    lines = [json.loads(text) for text in (runs[0] / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if line["type"] == "metrics" and line["context"] == "train"]
    assert steps == list(range(1, 13))
    assert len((runs[0] / "history.jsonl").read_text().splitlines()) == 1


@slow
def test_a_stop_that_one_process_asks_for_stops_all_at_the_same_step_with_the_state_saved(pair):
    folder, (zero, one) = pair
    assert zero["stopped"]["stop"] == one["stopped"]["stop"] == ["requested", "request"]
    assert 12 < zero["stopped"]["step"] < 24
    assert list((folder / "stopped").glob("*/checkpoints/*-resume/record.json"))


@slow
def test_parameters_are_shared_out_over_the_processes_under_fsdp(pair):
    _, (zero, _) = pair
    assert "on each device" in zero["fsdp"]["report"]
    assert "processes" in zero["two"]["report"]


@slow
def test_processes_that_see_other_data_unasked_are_refused(pair):
    _, found = pair
    for facts in found:
        assert "the processes see different first batches" in facts["refused"]


# A process that dies


class Started:
    """Processes at work in a folder."""

    folder: Path
    children: list[subprocess.Popen[bytes]]

    def told(self, index: int) -> str:
        return (self.folder / f"{index}.err").read_text()


@contextlib.contextmanager
def _killed_at_the_end(start: Callable[..., Started]) -> Iterator[Any]:
    """`start`, whose processes do not outlive the test."""
    made: list[Started] = []

    def noted(*args: Any, **words: Any) -> Started:
        made.append(start(*args, **words))
        return made[-1]

    yield noted
    for one in made:
        for child in one.children:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            child.wait()


class Pair(Started):
    """Two `nitro train` of one long run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "endless.py").write_text(
            "from tests.tiny import Quick\n\n\n"
            "class Endless(Quick):\n    max_epochs = 1_000_000\n    checkpointer = None\n"
        )
        words = ["-m", "nitro_cli", "train", "endless.py:Endless", "--distributed", "--coordinator", _coordinator()]
        self.children = _start(folder, [[*words, "--processes", "2", "--process-index", str(i)] for i in range(2)])

    def wait_training(self) -> None:
        """Until two epochs are over."""
        while "epoch 2/" not in self.told(0):
            assert all(child.poll() is None for child in self.children), self.told(0) + self.told(1)
            time.sleep(0.05)


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Callable[[], Pair]]:
    with _killed_at_the_end(lambda: Pair(tmp_path)) as start:
        yield start


@slow
@pytest.mark.parametrize("victim", [1, 0])
def test_killing_one_process_ends_the_other_in_time_with_an_error_that_names_it(endless, victim):
    running = endless()
    running.wait_training()
    running.children[victim].send_signal(signal.SIGKILL)
    survivor = running.children[1 - victim]
    assert survivor.wait(timeout=BOUND_SECONDS) == 1, running.told(1 - victim)
    assert f"process {victim} of the run died" in running.told(1 - victim)


class Writing(Started):
    """Two `nitro train` of three epochs under fsdp, whose process 1 meets a fault while it writes the second record."""

    def __init__(self, folder: Path, fault: str, apart: bool = False) -> None:
        self.folder = folder
        (folder / "faulty.py").write_text(
            "import time\nfrom pathlib import Path\nfrom nitro_cli.checkpoints import shared_record\n"
            "from tests.process_data import Wide\n\nreal = shared_record.write_store\n\n\n"
            "def write_store(temporary, store, stored):\n"
            '    if store == "arrays-1" and list(temporary.parent.glob("epoch-*")):\n'
            f"        {fault}\n"
            "    return real(temporary, store, stored)\n\n\n"
            "shared_record.write_store = write_store\n\n\n"
            "class Faulty(Wide):\n    max_epochs = 3\n"
        )
        words = ["-m", "nitro_cli", "train", f"{folder / 'faulty.py'}:Faulty", "--distributed"]
        words += ["--coordinator", _coordinator(), "--processes", "2", "--process-index"]
        self.children = _start(folder, [[*words, str(index)] for index in range(2)], apart)

    def left(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("runs/Faulty/*/checkpoints/*"))


@pytest.fixture
def writing(tmp_path: Path) -> Iterator[Callable[..., Writing]]:
    with _killed_at_the_end(lambda *args, **words: Writing(tmp_path, *args, **words)) as start:
        yield start


@slow
def test_a_process_killed_while_it_writes_its_part_ends_the_other_and_leaves_the_record_before(writing, tmp_path):
    running = writing("Path('hanging').touch(); time.sleep(600)")
    while not (tmp_path / "hanging").exists():
        assert running.children[0].poll() is None, running.told(0)
        time.sleep(0.05)
    running.children[1].send_signal(signal.SIGKILL)
    assert running.children[0].wait(timeout=BOUND_SECONDS) == 1, running.told(0)
    assert "process 1 of the run died" in running.told(0)
    published = [name for name in running.left() if not name.startswith(".")]
    assert [name[:10] for name in published] == ["epoch-0001"]
    resumed = Nitro(Wide(run_dir=tmp_path / "runs" / "Faulty", n_devs=1, max_epochs=2), resume="auto").train()
    assert (resumed.epoch, resumed.step) == (2, 24)
    assert [name[:10] for name in running.left()] == ["epoch-0001", "epoch-0002"]


@slow
def test_a_process_that_cannot_write_its_part_ends_both_with_an_error_that_names_it(writing):
    running = writing("raise OSError(28, 'No space left on device')")
    codes = [child.wait(timeout=300) for child in running.children]
    assert 0 not in codes
    assert "process 1 could not write its part of the checkpoint" in running.told(0)
    assert "the disk is full" in running.told(0)
    assert "the disk is full" in running.told(1)
    assert [name[:10] for name in running.left()] == ["epoch-0001"]


@slow
def test_processes_that_see_different_directories_are_refused_before_they_train(writing, tmp_path):
    running = writing("pass", apart=True)
    codes = [child.wait(timeout=300) for child in running.children]
    assert codes[0] == codes[1] != 0
    for index in range(2):
        assert "process 1 of the run cannot see the directory that process 0 writes to" in running.told(index)
        assert not list(tmp_path.glob(f"{index}/runs/Faulty/*/checkpoints"))


@slow
def test_sigterm_to_one_process_stops_both(endless):
    running = endless()
    running.wait_training()
    running.children[1].send_signal(signal.SIGTERM)
    # 143, not 75: the run keeps no checkpoints, so there is nothing to go on from.
    assert [child.wait(timeout=BOUND_SECONDS) for child in running.children] == [143, 143]


# What is refused before anything is joined


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("localhost:1", 2, None), "--process-index is missing"),
        (("localhost:1", None, None), "--processes, --process-index are missing"),
        (("localhost", 2, 0), "--coordinator localhost is no host:port"),
        (("localhost:1", 2, 2), "process 2 of 2 does not exist"),
    ],
)
def test_flags_that_do_not_fit_are_refused(words, said):
    with pytest.raises(ConfigError) as caught:
        setup_distributed(*words)
    assert said in caught.value.what


def test_without_a_scheduler_and_without_flags_the_flags_are_asked_for(tmp_path):
    (tmp_path / "e.py").write_text("from tests.tiny import Quick\n\n\nclass E(Quick):\n    pass\n")
    environment = {k: v for k, v in _environment(tmp_path).items() if not k.startswith(("SLURM", "OMPI", "KUBERNETES"))}
    words = [sys.executable, "-m", "nitro_cli", "train", "e.py:E"]
    ended = subprocess.run([*words, "--distributed"], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "--coordinator HOST:PORT --processes N --process-index I" in ended.stderr
    ended = subprocess.run([*words, "--processes", "2"], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert ended.returncode == 2
    assert "add --distributed" in ended.stderr
