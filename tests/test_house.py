"""What holds of nitro's own source: a word has one meaning."""

import ast
from collections import defaultdict
from pathlib import Path

import nitro_cli

HOUSE = Path(nitro_cli.__file__).parent
COMMANDS = HOUSE / "cli" / "commands"
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
