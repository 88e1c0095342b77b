"""A history as frames, CSV and figures; checked with the real libraries where they are installed."""

import csv
import importlib
import io
import math

import pytest

from nitro_cli.errors import ConfigError, MissingExtraError, StorageError
from nitro_cli.metrics import History

ROWS = [
    {"epoch": 1, "step": 10, "train_loss": 0.1, "acc": 0.5, "n": 3, "cm": [[1]]},
    {"epoch": 2, "step": 20, "train_loss": math.nan, "n": 4, "cm": [[2]]},
]
NAMES = ["epoch", "step", "train_loss", "acc", "n"]


@pytest.fixture
def h():
    return History(ROWS, monitor=("acc", "max"))


def test_csv_has_full_precision_and_leaves_missing_values_empty(h, tmp_path):
    text = h.to_csv(tmp_path / "h.csv")
    assert (tmp_path / "h.csv").read_text() == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[0] == {"epoch": "1", "step": "10", "train_loss": "0.1", "acc": "0.5", "n": "3"}
    assert rows[1]["acc"] == ""
    assert rows[1]["train_loss"] == "nan"


def test_csv_that_cannot_be_written_is_a_storage_error(h, tmp_path):
    with pytest.raises(StorageError, match="could not be written"):
        h.to_csv(tmp_path / "absent" / "h.csv")


def test_pandas_gets_the_scalar_columns(h):
    pytest.importorskip("pandas")
    frame = h.to_pandas()
    assert list(frame.columns) == NAMES
    assert frame["n"].tolist() == [3, 4]
    assert frame["n"].dtype == "int64"
    assert frame["acc"].isna().tolist() == [False, True]


def test_polars_gets_the_scalar_columns(h):
    pytest.importorskip("polars")
    frame = h.to_polars()
    assert frame.columns == NAMES
    assert frame["acc"].to_list() == [0.5, None]
    assert frame["n"].to_list() == [3, 4]


def test_arrow_gets_the_scalar_columns(h):
    pyarrow = pytest.importorskip("pyarrow")
    table = h.to_arrow()
    assert table.column_names == NAMES
    assert table["acc"].to_pylist() == [0.5, None]
    assert table.schema.field("n").type == pyarrow.int64()


@pytest.mark.parametrize(
    ("method", "module"),
    [("to_pandas", "pandas"), ("to_polars", "polars"), ("to_arrow", "pyarrow"), ("plot", "matplotlib")],
)
def test_a_missing_library_is_named_as_pip_takes_it(h, monkeypatch, method, module):
    real = importlib.import_module

    def absent(name, package=None):
        if name.split(".")[0] == module:
            raise ModuleNotFoundError(f"No module named {module!r}", name=module)
        return real(name, package)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(MissingExtraError, match=rf"pip install '?{module}"):
        getattr(h, method)()


def test_a_library_that_fails_to_import_shows_its_own_error(h, monkeypatch):
    def broken(name, package=None):
        raise ModuleNotFoundError("No module named 'dateutil'", name="dateutil")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="dateutil"):
        h.to_pandas()


class TestPlot:
    @pytest.fixture(autouse=True)
    def _matplotlib(self):
        pytest.importorskip("matplotlib")

    def labels(self, figure):
        return [axis.get_ylabel() for axis in figure.axes]

    def test_the_losses_and_the_monitored_metric_are_drawn_with_the_best_epoch_starred(self, h):
        figure = h.plot()
        assert self.labels(figure) == ["train_loss", "acc"]
        curve, star = figure.axes[1].lines
        assert curve.get_xdata().tolist() == [1]
        assert curve.get_ydata().tolist() == [0.5]
        assert star.get_marker() == "*"
        assert star.get_xdata().tolist() == [1]

    def test_metrics_and_axis_can_be_chosen(self, h):
        assert self.labels(h.plot(metrics="all")) == ["train_loss", "acc", "n"]
        assert self.labels(h["n", "acc"].plot()) == ["acc", "n"]
        figure = h.plot("n", x="step")
        assert self.labels(figure) == ["n"]
        assert figure.axes[0].get_xlabel() == "step"
        assert figure.axes[0].lines[0].get_xdata().tolist() == [10, 20]

    def test_the_validation_loss_is_drawn_whatever_is_monitored(self):
        rows = [{"epoch": 1, "step": 1, "train_loss": 1.0, "f1": 0.5, "acc": 0.5, "loss": 2.0}]
        assert self.labels(History(rows, monitor=("acc", "max")).plot()) == ["train_loss", "loss", "acc"]
        assert self.labels(History(rows, monitor=("loss", "min")).plot()) == ["train_loss", "loss"]

    def test_without_a_monitor_every_metric_is_drawn(self):
        assert self.labels(History(ROWS).plot()) == ["train_loss", "acc", "n"]
        assert self.labels(History([{"epoch": 1, "step": 1, "train_loss": 1.0}]).plot()) == ["train_loss"]

    def test_epochs_have_whole_ticks(self):
        for epochs in (2, 3, 41):
            rows = [{"epoch": n, "step": 7 * n, "train_loss": 1.0 / n} for n in range(1, epochs + 1)]
            for x in ("epoch", "step"):
                figure = History(rows).plot(x=x)
                figure.draw_without_rendering()
                ticks = figure.axes[-1].get_xticks()
                assert all(tick == round(tick) for tick in ticks), (epochs, x, ticks)

    def test_nested_metrics_are_drawn_under_their_joined_names(self):
        rows = [{"epoch": n, "step": n, "train_loss": 1.0, "cls": {"acc": n / 4}} for n in (1, 2)]
        figure = History(rows, monitor=("cls/acc", "max")).plot()
        assert self.labels(figure) == ["train_loss", "cls/acc"]
        assert figure.axes[1].lines[0].get_ydata().tolist() == [0.25, 0.5]

    def test_names_are_drawn_as_they_are(self, tmp_path):
        rows = [{"epoch": 1, "step": 1, r"$\oops$": 0.5, "a\x1bb": 1.0}]
        figure = History(rows, title="run", place=r"proj$\x$").plot()
        figure.savefig(tmp_path / "f.png")
        assert self.labels(figure) == [r"$\oops$", r"a\x1bb"]

    def test_a_notebook_shows_the_figure_as_a_picture(self, h):
        assert h.plot()._repr_png_().startswith(b"\x89PNG")

    def test_the_figure_can_be_saved_without_a_display(self, h, tmp_path):
        h.plot().savefig(tmp_path / "f.png")
        assert (tmp_path / "f.png").read_bytes().startswith(b"\x89PNG")

    @pytest.mark.parametrize("metrics", ["absent", "cm"])
    def test_what_is_no_scalar_column_is_refused(self, h, metrics):
        with pytest.raises(ConfigError, match=metrics):
            h.plot(metrics)

    def test_an_empty_history_is_refused(self):
        with pytest.raises(ConfigError, match="no rows"):
            History().plot()
