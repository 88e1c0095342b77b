"""Catalogues by (id, version): registered by code, or declared by installed distributions."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from nitro_cli.errors import ConfigError
from nitro_cli.text import Catalogue, declared_entries

GROUP = "nitro.gadgets_of_a_test"


@pytest.fixture
def gadgets() -> Catalogue[Any]:
    return Catalogue("gadget", GROUP)


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """`install("dist", entries, module text)` lays a distribution with a module of its name into the import path."""
    monkeypatch.delenv("NITRO_NO_PLUGINS", raising=False)
    added: list[str] = []

    def lay(distribution: str, entries: str, text: str = "") -> None:
        site = tmp_path / distribution
        info = site / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[{GROUP}]\n{entries}\n")
        (site / f"{distribution}.py").write_text(text)
        monkeypatch.syspath_prepend(str(site))
        importlib.invalidate_caches()
        added.append(distribution)

    yield lay
    for name in added:
        sys.modules.pop(name, None)


def test_what_is_registered_is_found_by_id_and_version(gadgets: Catalogue[Any]) -> None:
    @gadgets.register("lamp")
    class Lamp: ...

    @gadgets.register("lamp", version=2)
    class Brighter: ...

    assert gadgets.find("lamp") is Lamp
    assert gadgets.find("lamp", 2) is Brighter
    assert gadgets.id_of(Brighter) == ("lamp", 2)
    assert gadgets.id_of(int) is None
    assert [(e.id, e.version, e.distribution) for e in gadgets.entries()] == [("lamp", 1, None), ("lamp", 2, None)]


def test_a_second_registration_is_refused_unless_it_replaces(gadgets: Catalogue[Any]) -> None:
    @gadgets.register("lamp")
    class Lamp: ...

    class Other: ...

    with pytest.raises(ConfigError, match=r"there is a gadget lamp already: .*Lamp") as refused:
        gadgets.register("lamp")(Other)
    assert "replace=True" in refused.value.fix
    gadgets.register("lamp", replace=True)(Other)
    assert gadgets.find("lamp") is Other
    gadgets.register("bulb")(Lamp())
    with pytest.raises(ConfigError, match="there is a gadget bulb already"):
        gadgets.register("bulb")(Lamp())


def test_a_definition_that_runs_again_takes_its_own_place(gadgets: Catalogue[Any]) -> None:
    def cell() -> Any:
        @gadgets.register("lamp")
        class Lamp: ...

        return Lamp

    cell()
    again = cell()
    assert gadgets.find("lamp") is again


def test_a_file_that_is_loaded_by_two_names_takes_its_own_place(
    gadgets: Catalogue[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {}
    for name, file in (("first", "lamps.py"), ("second", "lamps.py"), ("third", "others.py")):
        module = ModuleType(name)
        module.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, name, module)
        exec("class Lamp: ...", module.__dict__)
        files[name] = module.Lamp
    gadgets.register("lamp")(files["first"])
    gadgets.register("lamp")(files["second"])
    assert gadgets.find("lamp") is files["second"]
    with pytest.raises(ConfigError, match="there is a gadget lamp already"):
        gadgets.register("lamp")(files["third"])


@pytest.mark.parametrize(
    ("id", "version"), [("", 1), ("two words", 1), (3, 1), ("lamp", 0), ("lamp", True), ("a@2", 1)]
)
def test_what_is_no_id_or_version_is_refused(gadgets: Catalogue[Any], id: Any, version: Any) -> None:
    with pytest.raises(ConfigError):
        gadgets.register(id, version)


def test_an_unknown_id_or_version_tells_what_there_is(gadgets: Catalogue[Any]) -> None:
    gadgets.register("lantern")(object())
    with pytest.raises(ConfigError, match="there is no gadget lanturn") as missing:
        gadgets.find("lanturn")
    assert missing.value.nearest == ("lantern",)
    assert missing.value.why == "there are: lantern"
    with pytest.raises(ConfigError, match="lantern, version 2") as missing:
        gadgets.find("lantern", 2)
    assert missing.value.why == "lantern has the version 1"


def test_what_a_distribution_declares_is_listed_without_importing_it_and_imported_when_asked_for(
    gadgets: Catalogue[Any], install: Callable[..., None]
) -> None:
    install("lamps_a", "lamp = lamps_a:Lamp\nlamp@2 = lamps_a:Inner.Brighter", "class Lamp: ...\nclass Inner:\n"
            "    class Brighter: ...\n")  # fmt: skip
    assert [(e.id, e.version, e.import_path, e.distribution) for e in gadgets.entries()] == [
        ("lamp", 1, "lamps_a:Lamp", "lamps_a"),
        ("lamp", 2, "lamps_a:Inner.Brighter", "lamps_a"),
    ]
    assert "lamps_a" not in sys.modules
    assert gadgets.find("lamp", 2).__name__ == "Brighter"
    assert gadgets.id_of(gadgets.find("lamp")) == ("lamp", 1)
    assert len(gadgets.entries()) == 2


def test_a_broken_declaration_is_listed_and_hides_no_other(
    gadgets: Catalogue[Any], install: Callable[..., None]
) -> None:
    install("lamps_b", "lamp = lamps_b:Lamp\nodd = nonsense", "raise ValueError('half made')\n")
    errors = {entry.id: entry.error for entry in gadgets.entries()}
    assert errors["lamp"] is None
    assert "is not module:Class" in str(errors["odd"])
    with pytest.raises(ConfigError, match="the gadget lamp of lamps_b cannot be imported") as refused:
        gadgets.find("lamp")
    assert refused.value.why == "ValueError: half made"
    with pytest.raises(ConfigError, match="the gadget odd of lamps_b is broken"):
        gadgets.find("odd")


def test_two_distributions_with_one_id_are_told_apart_by_nobody(
    gadgets: Catalogue[Any], install: Callable[..., None]
) -> None:
    install("lamps_c", "lamp = lamps_c:Lamp", "class Lamp: ...\n")
    install("lamps_d", "lamp = lamps_d:Lamp", "class Lamp: ...\n")
    with pytest.raises(ConfigError, match="2 distributions declare the gadget lamp") as refused:
        gadgets.find("lamp")
    assert "lamps_c" in refused.value.where
    assert "lamps_d" in refused.value.where


def test_plugins_can_be_switched_off(
    gadgets: Catalogue[Any], install: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    install("lamps_e", "lamp = lamps_e:Lamp", "class Lamp: ...\n")
    assert [entry.name for entry in declared_entries(GROUP)] == ["lamp"]
    monkeypatch.setenv("NITRO_NO_PLUGINS", "1")
    assert gadgets.entries() == []
    with pytest.raises(ConfigError):
        gadgets.find("lamp")
