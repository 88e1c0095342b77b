"""The two displays, driven as a run drives them, on a clock that the test moves."""

import io
import threading

import pytest
from rich.console import Console

from nitro_cli.display.live import LiveReporter
from nitro_cli.display.notebook import NotebookReporter
from nitro_cli.display.plain import PlainReporter
from nitro_cli.display.progress_state import ProgressState, duration, scalars_text

SHOW_CURSOR = "\x1b[?25h"


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def move(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def plain(clock):
    lines = []
    reporter = PlainReporter(lines.append, clock, heartbeat=False)
    reporter.lines = lines
    return reporter


def one_epoch(reporter, clock, epoch=1, validate=True):
    reporter.begin("train", 100, epoch, 4)
    for _ in range(100):
        clock.move(0.1)
        reporter.step(1, {"loss": 0.5})
    reporter.end({"loss": 0.25})
    if validate:
        reporter.begin("val", 10, epoch, 4)
        clock.move(2.0)
        reporter.step(10, None)
        reporter.end({"acc": 0.875, "confusion": [[1, 2], [3, 4]]})


def test_off_a_terminal_an_epoch_is_one_line_with_its_numbers(plain, clock):
    one_epoch(plain, clock)
    assert plain.lines == ["epoch 1/4  loss 0.25  10 steps/s  val: acc 0.875  (12 s)"]


def test_a_resumed_epoch_counts_on_and_its_speed_is_that_of_this_process(plain, clock):
    plain.begin("train", 108, 3, 4)
    plain.step(8, None)
    clock.move(50.0)  # compiling
    for _ in range(6):
        clock.move(0.1)
        plain.step(1, {"loss": 0.5})
    clock.move(40.0)
    plain.tick()
    assert "epoch 3/4 train 14/108" in plain.lines[-1]
    clock.move(-40.0)
    plain.end({"loss": 0.5})
    plain.done("")
    assert "10 steps/s" in plain.lines[-1]


def test_an_epoch_without_validation_is_one_line_when_the_next_begins_or_the_run_ends(plain, clock):
    one_epoch(plain, clock, validate=False)
    assert plain.lines == []
    one_epoch(plain, clock, epoch=2, validate=False)
    plain.done("done: 2/4 epochs")
    assert [line.split("  ")[0] for line in plain.lines] == ["epoch 1/4", "epoch 2/4", "done: 2/4 epochs"]


def test_a_pass_by_itself_is_said_when_it_takes_long(plain, clock):
    for seconds in (1.5, 4.0):
        plain.begin("test", 10, 0, 4)
        clock.move(seconds)
        plain.step(10, None)
        plain.end({"acc": 0.5})
    assert plain.lines == ["test: 10 batches, 4.0 s"]


def test_the_speed_of_an_epoch_leaves_out_the_wait_for_its_program(plain, clock):
    plain.begin("train", 11, 1, 1)
    clock.move(60.0)
    for _ in range(11):
        plain.step(1, {"loss": 1.0})
        clock.move(0.5)
    plain.end({"loss": 1.0})
    plain.done("")
    assert "  2 steps/s  " in plain.lines[-1]


def test_a_phase_is_said_only_when_it_takes_long(plain, clock):
    plain.phase("checkpointing")
    clock.move(0.5)
    plain.phase(None)
    assert plain.lines == []
    plain.phase("compiling train")
    clock.move(1.0)
    plain.tick()
    assert plain.lines == []
    clock.move(3.0)
    plain.tick()
    assert plain.lines == ["starting, compiling train for 4.0 s"]
    clock.move(20.0)
    plain.phase(None)
    assert plain.lines[1:] == ["compiling train: 24 s"]


def test_half_a_minute_without_a_line_gives_a_sign_of_life(plain, clock):
    plain.begin("train", 1000, 3, 4)
    for _ in range(60):
        clock.move(1.0)
        plain.step(5, {"loss": 0.5})
        plain.tick()
    assert len(plain.lines) == 2
    assert plain.lines[0].startswith("epoch 3/4 train 150/1000, loss 0.5")
    assert plain.lines[1].endswith(" left")


def test_a_note_of_the_user_is_part_of_the_sign_of_life(plain, clock):
    plain.phase("building data")
    plain.note("decoding 3/10")
    clock.move(31.0)
    plain.tick()
    assert plain.lines[0].endswith("decoding 3/10")


def test_plain_lines_hold_no_control_codes(plain, clock):
    one_epoch(plain, clock)
    plain.done("done")
    assert not any(ord(character) < 32 for line in plain.lines for character in line)


def test_the_heartbeat_thread_ends_with_the_run():
    reporter = PlainReporter(lambda line: None)
    reporter.begin("train", 1, 1, 1)
    thread = reporter._thread
    assert thread is not None
    reporter.done("")
    assert not thread.is_alive()


def test_the_fraction_is_that_of_the_run_with_the_epoch_interpolated(clock):
    state = ProgressState(clock)
    state.begin("train", 10, 3, 4)
    assert state.fraction() == 0.5
    state.done = 5
    assert state.fraction() == 0.625
    state.begin("val", 10, 3, 4)
    assert state.fraction() == 0.75


def test_the_time_left_is_that_of_the_run_and_ignores_what_came_before_the_first_step(clock):
    state = ProgressState(clock)
    state.begin("train", 100, 1, 4)
    state.sample(clock())
    clock.move(1000.0)  # a compile
    state.done = 1
    state.sample(clock())
    assert state.remaining(clock()) is None
    clock.move(10.0)
    state.done = 51
    assert state.remaining(clock()) == pytest.approx(10 * (400 - 51) / 50)


def test_a_resumed_run_takes_the_time_left_from_its_own_speed(clock):
    state = ProgressState(clock)
    state.begin("train", 100, 39, 40)
    state.done = 1
    state.sample(clock())
    clock.move(10.0)
    state.done = 51
    assert state.remaining(clock()) == pytest.approx(10 * 149 / 50)


def test_the_speed_is_that_of_the_last_seconds(clock):
    state = ProgressState(clock)
    state.begin("train", 10_000, 1, 1)
    for per_second in [1] * 20 + [100] * 20:
        clock.move(1.0)
        state.done += per_second
        state.sample(clock())
    assert state.rate() == pytest.approx(100, rel=0.05)


def live_on(clock, width=80):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=width, height=24, color_system=None, legacy_windows=False)
    return LiveReporter(console, clock), console, stream


def drawn(reporter, console):
    stream = io.StringIO()
    Console(file=stream, width=console.width, color_system=None).print(reporter._drawn())
    return stream.getvalue().splitlines()


def test_the_live_display_shows_epoch_bar_speed_numbers_and_phase_within_the_width(clock):
    reporter, console, _ = live_on(clock)
    one_epoch(reporter, clock)
    reporter.begin("train", 100, 2, 4)
    for _ in range(50):
        reporter.step(1, {"loss": 0.123456})
        clock.move(0.1)
        drawn(reporter, console)
    reporter.phase("checkpointing")
    reporter.note("copying")
    lines = drawn(reporter, console)
    clock.move(2.0)
    busy = drawn(reporter, console)[2]
    reporter.close()
    assert lines[0].startswith("epoch 2/4 train")
    assert "50/100" in lines[0]
    assert lines[0].rstrip().endswith("left")
    assert lines[1].startswith("10 steps/s   loss 0.1235")
    assert "val: acc 0.875" in lines[1]
    assert busy == "checkpointing 2.0 s · copying"
    assert max(map(len, lines)) <= 80


def test_the_live_display_is_cut_at_a_narrow_terminal(clock):
    reporter, console, _ = live_on(clock, width=30)
    reporter.begin("val", 100, 2, 4)
    reporter.step(1, {f"metric_{i}": 0.5 for i in range(20)})
    lines = drawn(reporter, console)
    reporter.close()
    assert max(map(len, lines)) <= 30


def test_a_line_and_the_closing_text_stay_when_the_display_is_gone(clock):
    reporter, _, stream = live_on(clock)
    reporter.begin("train", 10, 1, 1)
    reporter.line("a line that stays")
    reporter.done("done: 1/1 epochs")
    text = stream.getvalue()
    assert "a line that stays" in text
    assert text.rstrip().endswith("done: 1/1 epochs")
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h")  # the cursor is shown again


def test_a_step_only_stores(clock):
    reporter, _, stream = live_on(clock)
    reporter.begin("train", 10, 1, 1)
    before = stream.getvalue()
    values = {"loss": object()}  # would break any formatting
    for _ in range(1000):
        reporter.step(1, values)
    assert reporter._state.done == 1000
    reporter._state.values = None
    reporter.close()
    assert before in stream.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.04, "0.0 s"), (9.96, "10.0 s"), (12.4, "12 s"), (252, "4:12"), (3723, "1:02:03")]
)
def test_durations_are_short(seconds, text):
    assert duration(seconds) == text


def test_only_scalars_are_shown():
    assert scalars_text([("loss", 0.04164), ("n", 3), ("ok", True), ("m", [1.0])]) == "loss 0.04164  n 3"


@pytest.fixture
def shown(monkeypatch):
    """What a notebook's display showed, one entry per drawing."""
    drawn = []

    class Display:
        def display(self, forms, raw):
            assert raw
            drawn.append(forms)

        update = display

    monkeypatch.setattr("IPython.display.DisplayHandle", Display)
    return drawn


def test_a_notebook_gets_epoch_lines_and_a_display_of_the_moment(clock, shown, capsys):
    reporter = NotebookReporter(clock, drawing=False)
    one_epoch(reporter, clock)
    reporter.begin("train", 100, 2, 4)
    reporter.step(25, {"loss": 0.5})
    reporter.tick()
    reporter.step(25, {"loss": 0.25})
    reporter.tick()
    assert "epoch 2/4 train" in shown[0]["text/plain"]
    assert "25/100" in shown[0]["text/plain"]
    assert "50/100" in shown[1]["text/html"]
    assert "loss 0.25" in shown[1]["text/html"]
    reporter.done("requested: 2/4 epochs")
    assert shown[2] == {"text/plain": "", "text/html": ""}
    assert len(shown) == 3
    out, err = capsys.readouterr()
    assert out == "epoch 1/4  loss 0.25  10 steps/s  val: acc 0.875  (12 s)\nrequested: 2/4 epochs\n"
    assert err == ""


def test_a_notebooks_display_goes_when_a_pass_outside_a_run_is_over(clock, shown):
    reporter = NotebookReporter(clock, drawing=False)
    reporter.begin("test", 10, 0, 0)
    reporter.step(5, None)
    reporter.tick()
    reporter.end({"acc": 1.0})
    assert "5/10" in shown[0]["text/plain"]
    assert shown[1]["text/plain"] == ""


def test_a_notebooks_display_needs_no_call_to_be_drawn(clock, monkeypatch):
    drawn = threading.Event()

    class Display:
        def display(self, forms, raw):
            drawn.set()

        update = display

    monkeypatch.setattr("IPython.display.DisplayHandle", Display)
    reporter = NotebookReporter(clock)
    reporter.begin("train", 10, 1, 1)
    assert drawn.wait(60)
    reporter.close()


def test_an_epoch_that_broke_off_has_no_line(plain):
    plain.begin("train", 100, 1, 4)
    plain.step(3, {"loss": 0.5})
    plain.end(None)
    plain.done("")
    assert plain.lines == []


def test_a_handle_that_does_nothing_gives_no_sign_of_life(plain, clock):
    plain.begin("setup", 0, 0, 0)
    clock.move(31.0)
    plain.tick()
    assert len(plain.lines) == 1
    plain.end(None)
    clock.move(1000.0)
    plain.tick()
    assert len(plain.lines) == 1


def test_the_live_display_is_gone_between_entry_points(clock):
    screen = io.StringIO()
    reporter = LiveReporter(Console(file=screen, force_terminal=True, force_jupyter=False, width=80), clock)
    reporter.begin("setup", 0, 0, 0)
    reporter.phase("data")
    reporter.phase(None)
    assert SHOW_CURSOR not in screen.getvalue()
    reporter.end(None)
    assert screen.getvalue().count(SHOW_CURSOR) == 1
    one_epoch(reporter, clock)
    assert screen.getvalue().count(SHOW_CURSOR) == 1
    reporter.done("completed: 1/4 epochs")
    assert screen.getvalue().count(SHOW_CURSOR) == 2
