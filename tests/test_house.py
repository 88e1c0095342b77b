"""What holds of nitro's own source: what it offers by name, and that a word has one meaning."""

import ast
import importlib
import re
from collections import defaultdict
from pathlib import Path

import pytest

import nitro_cli

HOUSE = Path(nitro_cli.__file__).parent
NAMES = """
    __version__ ArrayBatches Average Best BundleError Callback CheckpointRecord Checkpointer Concat Device Dist EMA
    EarlyStopping Epochs Every Experiment ExportSpec GraphConst History Host Last Max Mean Min NO_DEFAULT Nitro
    NitroError NitroWarning NoPrefetch Prefetch Private Selector Sum Term average_checkpoints cache_reset cache_stats
    check_batch_at checkpoint_info compare_runs compile_view config_metadata default_no_decay dry_run export_provenance
    load_bundle load_checkpoint profile progress_counter progress_note read_manifest register_phase_monitor runs
    set_progress_reporter setup_devices setup_distributed smoke train unregister_phase_monitor
"""
COMMANDS = HOUSE / "cli" / "commands"
ARCHITECTURE = (HOUSE.parent / "docs" / "architecture.md").read_text(encoding="utf-8")
MODULES = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(HOUSE.rglob("*.py"))}


def defined_in(module):
    """The classes that a module defines, and its public functions and constants."""
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.FunctionDef):
            names = [node.name]
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [target.id for target in targets if isinstance(target, ast.Name)]
        else:
            continue
        if not isinstance(node, ast.ClassDef):
            yield from (name for name in names if not name.startswith("_") and name != "TYPE_CHECKING")


def test_no_class_function_or_constant_has_the_name_of_another():
    places = defaultdict(set)
    for path, module in MODULES.items():
        # The functions of a command are named by their module too, and an entry point is called `main` everywhere.
        if path.parent != COMMANDS and path.name != "__main__.py":
            for name in defined_in(module):
                places[name].add(path.relative_to(HOUSE).as_posix())
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_nitro_offers_these_names_and_at_most_sixty():
    assert sorted(nitro_cli.__all__) == dir(nitro_cli) == sorted(NAMES.split())
    assert len(nitro_cli.__all__) <= 60
    assert all(hasattr(nitro_cli, name) for name in nitro_cli.__all__)


@pytest.mark.parametrize(("name", "room"), [("DivergenceError", "errors"), ("one_cycle", "optim"), ("Tee", "tracking")])
def test_a_name_that_moved_to_its_room_is_found_with_a_word_about_it(name, room):
    vars(nitro_cli).pop(name, None)
    with pytest.warns(DeprecationWarning, match=f"import {name} from nitro_cli.{room}"):
        found = getattr(nitro_cli, name)
    assert found is getattr(importlib.import_module(f"nitro_cli.{room}"), name)


def test_a_name_that_is_nowhere_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'nitro_cli' has no attribute 'Missing'"):
        _ = nitro_cli.Missing


def test_the_architecture_names_rooms_and_modules_that_are_there():
    named = {name for name in re.findall(r"`([\w/]+(?:/|\.py))`", ARCHITECTURE) if not name.startswith("nitro_cli")}
    assert [name for name in sorted(named) if not (HOUSE / name).exists()] == []


def test_no_name_that_a_package_loads_later_is_that_of_a_module_in_it():
    blocks = [
        (path.parent, node) for path, module in MODULES.items() for node in module.body if isinstance(node, ast.With)
    ]
    offered = [(folder, alias.name) for folder, block in blocks for imported in block.body for alias in imported.names]
    assert len({folder for folder, _ in offered}) > 10
    assert [name for folder, name in offered if (folder / name).is_dir() or (folder / f"{name}.py").exists()] == []
