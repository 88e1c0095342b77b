"""What holds of nitro's rooms: the contracts of pyproject.toml are the table of docs/architecture.md, and bite."""

import copy
import itertools
import re
from pathlib import Path

import grimp
import pytest
from importlinter import api
from importlinter.contracts.acyclic_siblings import AcyclicSiblingsContract
from importlinter.contracts.layers import LayersContract

ROOT = Path(__file__).parents[1]
LAYERS, ACYCLIC = api.read_configuration(str(ROOT / "pyproject.toml"))["contracts_options"]
FLOORS = [[room.strip() for room in layer.split("|")] for layer in LAYERS["layers"]]


@pytest.fixture(scope="module")
def graph():
    return grimp.build_graph("nitro_cli")


def kept(kind, options, graph):
    contract = kind(name=options["name"], session_options={"root_packages": ["nitro_cli"]}, contract_options=options)
    return contract.check(graph=graph, verbose=False).kept


def kept_with(kind, options, graph, importer, imported):
    broken = copy.deepcopy(graph)
    broken.add_import(importer=importer, imported=imported)
    return kept(kind, options, broken)


def test_the_contract_is_the_table_of_the_architecture():
    table = re.findall(r"^\| (\d) \| (.+?) \|", (ROOT / "docs/architecture.md").read_text(), re.M)
    floors = itertools.groupby(reversed(table), key=lambda row: row[0])
    stated = []
    for _, rows in floors:
        named = [re.findall(r"`(\w+)(?:/|\.py)`", rooms) for _, rooms in rows]
        # Rooms of one row build on each other in its order; rows of one floor do not know each other.
        stated += [{room} for room in reversed(named[0])] if len(named) == 1 else [{room for (room,) in named}]
    assert stated == [set(floor) for floor in FLOORS]


@pytest.mark.parametrize("at", range(1, len(FLOORS)), ids=lambda at: "-".join(FLOORS[at]))
def test_no_room_may_import_one_above_it(graph, at):
    for room in FLOORS[at]:
        assert not kept_with(LayersContract, LAYERS, graph, f"nitro_cli.{room}", f"nitro_cli.{FLOORS[at - 1][-1]}")


@pytest.mark.parametrize("rooms", [floor for floor in FLOORS if len(floor) > 1], ids="-".join)
def test_no_room_may_import_another_of_its_floor(graph, rooms):
    for importer, imported in itertools.permutations(rooms, 2):
        assert not kept_with(LayersContract, LAYERS, graph, f"nitro_cli.{importer}", f"nitro_cli.{imported}")


def test_a_room_that_the_table_does_not_name_is_refused(graph):
    extended = copy.deepcopy(graph)
    extended.add_module("nitro_cli.attic")
    assert kept(LayersContract, LAYERS, graph)
    assert not kept(LayersContract, LAYERS, extended)


def test_no_modules_of_a_room_may_import_each_other(graph):
    assert kept(AcyclicSiblingsContract, ACYCLIC, graph)
    for room in sorted(graph.find_children("nitro_cli")):
        inside = graph.find_children(room)
        pairs = itertools.permutations(sorted(inside), 2)
        known = ((a, b) for a, b in pairs if graph.direct_import_exists(importer=a, imported=b))
        for importer, imported in itertools.islice(known, 1):
            assert not kept_with(AcyclicSiblingsContract, ACYCLIC, graph, imported, importer)
