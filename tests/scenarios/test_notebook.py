"""A class of a notebook cell, trained, resumed and looked at in a real kernel."""

import base64
import re

import nbformat
import pytest
from nbclient import NotebookClient

from tests.scenarios.fileless import CLASS

CELLS = {
    "class": CLASS,
    "train": "handle = Nitro(Line(run_dir='run')).train()",
    "handle": "handle",
    "report": "handle.report",
    "history": "handle.history",
    "plot": "handle.history.plot()",
    "print": "print(handle)",
    "resume": "resumed = Nitro(Line(run_dir='run', max_epochs=3), resume='auto').train()",
    "facts": "import json; print(json.loads((handle.run_path / 'run.json').read_text())['source'])",
    "fields": "from nitro_cli import config_metadata; print(config_metadata(Line)['offset'].doc)",
    "again": "def line(params, state, x):\n    return 2 * x * params['w'], state",
    "told": "metrics = handle.validate()",
}


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The outputs of each cell, by its name."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = [nbformat.v4.new_code_cell(text) for text in CELLS.values()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_DATA_DIR", str(folder / "jupyter"))  # a kernel that the user installed is another one
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        patch.setenv("NITRO_CACHE_DIR", str(folder / "programs"))
        patch.setenv("JAX_PLATFORMS", "cpu")
        notebook = nbformat.v4.new_notebook(cells=cells)
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": folder}}).execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def printed(outputs, stream="stdout"):
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == stream)


def shown(outputs):
    (result,) = [output.data for output in outputs if output.output_type == "execute_result"]
    return result


def test_training_shows_a_line_per_epoch_and_warns_of_nothing(outputs):
    for cell, epochs in (("train", ["1/2", "2/2"]), ("resume", ["3/3"])):
        assert re.findall(r"^epoch (\S+)  loss .*val: mse", printed(outputs[cell]), re.MULTILINE) == epochs
        assert printed(outputs[cell], "stderr") == ""
        assert "ipywidgets" not in str(outputs[cell])
        assert not any(
            output.data.get("text/plain") for output in outputs[cell] if output.output_type == "display_data"
        )


def test_the_handle_has_a_text_and_an_html_form(outputs):
    form = shown(outputs["handle"])
    assert form["text/plain"].startswith("<Nitro Line, preset none, run ")
    for text in (form["text/html"], printed(outputs["print"])):
        for part in ("Line", "none", "in run", "build_model, seed 42", "epoch 2 of 2, step 4, completed", "mse"):
            assert part in text
    assert "<table>" in form["text/html"]
    assert "parameter groups" in form["text/html"]


def test_the_report_has_an_html_form(outputs):
    form = shown(outputs["report"])
    assert "<caption>parameter groups</caption>" in form["text/html"]
    assert form["text/plain"].startswith("model\n")


def test_the_history_is_shown_once_with_its_best_epoch(outputs):
    (output,) = outputs["history"]
    assert output.data["text/html"].count("★") == 1
    assert "history of Line" in output.data["text/plain"]
    assert "* best mse (min)" in output.data["text/plain"]


def test_the_plot_is_a_picture(outputs):
    assert base64.b64decode(shown(outputs["plot"])["image/png"]).startswith(b"\x89PNG")


def test_the_sources_identity_says_why_there_is_no_file(outputs):
    text = printed(outputs["facts"])
    assert "'file': None" in text
    assert "a notebook cell" in text
    assert printed(outputs["fields"]) == "What is added to every point.\n"


def test_a_redefined_cell_is_told(outputs):
    assert "__main__.line" in printed(outputs["told"], "stderr")
