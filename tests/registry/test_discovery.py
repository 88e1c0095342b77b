"""Finding experiments by name, without importing anything."""

import multiprocessing
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import get_args, get_origin

import pytest

from nitro_cli.errors import ConfigError, ExitCode, ExperimentNotFoundError
from nitro_cli.registry import check_import, find_experiment, import_path_of, list_experiments
from nitro_cli.registry.importing import find_module_file

HOOKS = """
    def build_data(self, dist): ...
    def build_model(self, rng): ...
    def forward(self, model, params, state, *, x): ...
    def loss(self, outputs, *, y): ...
"""
ONE = "from nitro_cli.experiment import Experiment\nclass {name}(Experiment):\n    width: int = 1\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def one(name):
    return ONE.format(name=name)


def local(cwd, file, text):
    return write(cwd / "experiments" / file, text)


def names(cwd):
    return [ref.name for ref in list_experiments(cwd)]


def test_classes_of_the_local_directory_are_listed_without_importing_them(cwd):
    local(cwd, "a.py", "raise SystemExit('imported')\n" + one("Alpha"))
    local(cwd, "sub/b.py", "import no_such_module\nimport nitro_cli\nclass Beta(nitro_cli.Experiment): ...\n")
    local(cwd, "c.py", "from nitro_cli import Experiment as E\nclass Gamma(E): ...\nclass Other: ...\n")
    assert names(cwd) == ["Alpha", "Beta", "Gamma"]
    assert {ref.source for ref in list_experiments(cwd)} == {"local"}


def test_a_class_derived_from_a_class_of_the_directory_counts(cwd):
    local(cwd, "base.py", f"from nitro_cli import Experiment\nclass Base(Experiment):{HOOKS}")
    local(cwd, "one.py", "from .base import Base\nclass One(Base): ...\n")
    local(cwd, "two.py", "from . import base as b\nclass Two(b.Base): ...\n")
    local(cwd, "three.py", "from experiments.base import Base\nclass Three(Base): ...\n")
    local(cwd, "four.py", "from .one import One as Parent\nclass Four(Parent): ...\n")
    local(cwd, "sub/five.py", "from ..base import Base\nclass Five(Base): ...\n")
    local(cwd, "six.py", "from .base import *\nclass Six(Base): ...\n")
    local(cwd, "generic.py", "from nitro_cli import Experiment\nclass Seven(Experiment[int]): ...\n")
    local(cwd, "no.py", "from elsewhere import Base\nclass Eight(Base): ...\n")
    assert names(cwd) == ["Base", "Five", "Four", "One", "Seven", "Six", "Three", "Two"]


def test_bases_of_one_name_are_told_apart_by_where_they_are_imported_from(cwd):
    local(cwd, "sub/inner.py", f"from nitro_cli import Experiment\nclass Base(Experiment):{HOOKS}")
    local(cwd, "sub/__init__.py", "from .inner import Base\nclass Yes(Base): ...\n")
    local(cwd, "inner.py", "class Base: ...\n")
    local(cwd, "no.py", "from .inner import Base\nclass No(Base): ...\n")
    assert names(cwd) == ["Base", "Yes"]


def test_private_and_abstract_classes_are_not_offered(cwd):
    local(
        cwd,
        "a.py",
        f"""
from abc import ABC, abstractmethod
from nitro_cli import Experiment
class _Private(Experiment): ...
class WithABC(Experiment, ABC): ...
class WithMethod(Experiment):
    @abstractmethod
    def forward(self): ...
class Unfinished(Experiment):
    def build_data(self, dist): ...
class Finished(Unfinished):{HOOKS}
class Lonely(Experiment): ...
""",
    )
    local(cwd, "_hidden.py", one("Hidden"))
    assert names(cwd) == ["Finished", "Lonely"]
    with pytest.raises(ExperimentNotFoundError, match="Unfinished is abstract") as caught:
        find_experiment("Unfinished", cwd)
    assert "experiments/a.py:Unfinished" in caught.value.fix


@pytest.mark.parametrize(
    "field",
    [
        "task: Task",
        "task: 'Task | None' = None",
        "task = Categorical(10)",
        "objective = (Mixup(0.4), KD())",
        "network: nets.Network = nets.MLP()",
    ],
)
def test_a_base_whose_field_may_hold_a_part_is_offered_for_the_part_may_supply_its_hooks(cwd, field):
    local(cwd, "a.py", f"from nitro_cli import Experiment\nclass Base(Experiment):\n    {field}\nclass B(Base): ...\n")
    assert names(cwd) == ["B", "Base"]


@pytest.mark.parametrize(
    "body",
    [
        "width: GraphConst[int] = 3",
        "smoothing: Device[float] = 0.1",
        "shape: tuple[int, ...] | None = None",
        "early_stop = EarlyStopping(patience=3)",
        "scale = 2.0",
        "mode: Literal['a', 'b'] = 'a'",
    ],
)
def test_a_base_with_plain_fields_and_without_hooks_is_abstract(cwd, body):
    local(cwd, "a.py", f"from nitro_cli import Experiment\nclass Base(Experiment):\n    {body}\nclass B(Base): ...\n")
    assert names(cwd) == ["B"]


def test_a_hook_that_is_assigned_counts(cwd):
    for name, value in (("Base", "steps.loss"), ("Less", "None")):
        hooks = HOOKS.replace("def loss(self, outputs, *, y): ...", f"loss = {value}")
        text = f"from nitro_cli import Experiment\nimport steps\nclass {name}(Experiment):{hooks}"
        local(cwd, f"{name}.py", f"{text}\nclass Below{name}({name}): ...\n")
    assert names(cwd) == ["Base", "BelowBase", "BelowLess"]


def test_the_knobs_that_hold_objects_are_known():
    from pydantic import BaseModel

    from nitro_cli.experiment import KNOBS, Experiment
    from nitro_cli.registry.local_classes import OBJECT_KNOBS

    def holds_object(annotation):
        if isinstance(annotation, type) and get_origin(annotation) is None:
            return issubclass(annotation, (BaseModel, tuple)) or getattr(annotation, "_is_protocol", False)
        return get_origin(annotation) is tuple or any(map(holds_object, get_args(annotation)))

    assert {name for name in KNOBS if holds_object(Experiment.model_fields[name].annotation)} == OBJECT_KNOBS


def test_a_conditional_class_is_found_and_a_nested_one_is_not(cwd):
    text = "from nitro_cli import Experiment\ntry:\n    class A(Experiment): ...\nexcept ImportError: ...\n"
    local(cwd, "a.py", text + "def f():\n    class B(Experiment): ...\n")
    assert names(cwd) == ["A"]


def test_a_file_that_does_not_parse_is_listed_as_broken_and_hides_nothing(cwd):
    local(cwd, "bad.py", "class A(Experiment:\n")
    local(cwd, "latin.py", "")
    (cwd / "experiments" / "latin.py").write_bytes(b"x = '\xe9'\n")
    local(cwd, "good.py", one("Good"))
    refs = {ref.name: ref for ref in list_experiments(cwd)}
    assert set(refs) == {"experiments/bad.py", "experiments/latin.py", "Good"}
    assert "line 1" in refs["experiments/bad.py"].error
    assert refs["Good"].error is None
    with pytest.raises(ExperimentNotFoundError) as caught:
        find_experiment("Absent", cwd)
    assert "bad.py" in caught.value.why


def test_a_local_class_is_imported_when_it_is_loaded(cwd):
    local(cwd, "__init__.py", "loaded = True\n")
    local(cwd, "parts.py", "width = 7\n")
    local(cwd, "a.py", "from .parts import width as w\n" + one("Alpha").replace("= 1", "= w"))
    local(cwd, "b.py", f"from . import loaded, parts\nfrom .a import Alpha\nclass Beta(Alpha):{HOOKS}")
    beta = find_experiment("Beta", cwd).load()
    assert beta(seed=1).width == 7
    assert beta.__base__ is find_experiment("experiments/a.py:Alpha", cwd).load()


def test_the_local_directory_does_not_collide_with_an_installed_package_of_its_name(cwd, install, monkeypatch):
    # Another test may have imported the checkout's own directory under this name.
    monkeypatch.delitem(sys.modules, "experiments", raising=False)
    install("other", {}, {"experiments/__init__.py": "which = 'installed'\n"})
    local(cwd, "__init__.py", "which = 'local'\n")
    local(cwd, "a.py", "from . import which as w\n" + one("A").replace("width: int = 1", "which: str = w"))
    assert find_experiment("A", cwd).load()().which == "local"
    import experiments

    assert experiments.which == "installed"


def test_two_directories_have_modules_of_their_own(cwd, tmp_path):
    first = write(tmp_path / "one/experiments/a.py", one("A"))
    second = write(tmp_path / "two/experiments/a.py", one("A").replace("= 1", "= 2"))
    classes = [find_experiment(f"{file}:A", cwd).load() for file in (first, second)]
    assert [cls().width for cls in classes] == [1, 2]
    assert classes[0].__module__ != classes[1].__module__


def test_one_file_is_one_class_however_it_is_named(cwd):
    local(cwd, "a.py", one("A"))
    cls = find_experiment("A", cwd).load()
    assert find_experiment("experiments/a.py:A", cwd).load() is cls
    assert find_experiment(f"{cwd}/experiments/a.py", cwd).load() is cls
    assert find_experiment(import_path_of(cls), cwd.parent).load() is cls


def test_a_module_that_fails_is_forgotten_and_can_be_corrected(cwd):
    file = local(cwd, "a.py", "import no_such_module\n" + one("A"))
    with pytest.raises(ConfigError, match="cannot be imported") as caught:
        find_experiment("A", cwd).load()
    assert "ModuleNotFoundError" in caught.value.why
    assert "no_such_module" in caught.value.fix
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)
    file.write_text(one("A") + "# corrected, so that the cached bytecode is stale\n")
    assert find_experiment("A", cwd).load()().width == 1


@pytest.mark.parametrize("body", ["raise ValueError('boom')", "raise SystemExit(3)", "1/0"])
def test_an_import_that_raises_is_an_error_with_its_cause(cwd, body):
    local(cwd, "a.py", one("A") + body)
    with pytest.raises(ConfigError) as caught:
        find_experiment("A", cwd).load()
    assert caught.value.__cause__ is not None
    assert "a.py" in caught.value.where


@pytest.mark.parametrize(
    ("module", "fix"), [("trackio.absent", r"pip install '?trackio"), ("made_up_library", "install what provides")]
)
def test_a_library_that_an_experiment_lacks_is_named_as_pip_takes_it_where_nitro_knows_it(cwd, module, fix):
    local(cwd, "a.py", f"import {module}\n" + one("A"))
    with pytest.raises(ConfigError) as caught:
        find_experiment("A", cwd).load()
    assert re.match(fix, caught.value.fix)


def test_an_import_of_the_directory_by_its_name_is_told_to_be_relative(cwd, install):
    local(cwd, "base.py", one("Base"))
    local(cwd, "a.py", "from experiments.base import Base\nclass A(Base): ...\n")
    with pytest.raises(ConfigError) as caught:
        find_experiment("A", cwd).load()
    assert "from .base import Base" in caught.value.fix


def test_a_file_alone_names_its_only_experiment(cwd):
    write(cwd / "deep/my-exp.py", one("Only") + "class _P(Experiment): ...\nx = Only\n")
    assert find_experiment("deep/my-exp.py", cwd).name == "Only"
    assert find_experiment("deep/my-exp.py", cwd).load()().width == 1
    assert find_experiment("deep/my-exp.py:_P", cwd).load()().seed == 42
    write(cwd / "two.py", one("A") + "class B(Experiment): ...\n")
    with pytest.raises(ExperimentNotFoundError, match="does not name one") as caught:
        find_experiment("two.py", cwd)
    assert "A, B" in caught.value.why
    write(cwd / "none.py", "x = 1\n")
    with pytest.raises(ExperimentNotFoundError):
        find_experiment("none.py", cwd)
    with pytest.raises(ExperimentNotFoundError) as caught:
        find_experiment("tow.py:A", cwd)
    assert caught.value.nearest[0] == "two.py"


def test_a_file_inside_packages_imports_relatively_up_to_the_topmost(cwd):
    for package in ("top", "top/inner"):
        write(cwd / package / "__init__.py", "")
    write(cwd / "top/parts.py", "width = 9\n")
    text = "from ..parts import width as w\n" + one("Deep").replace("= 1", "= w")
    write(cwd / "top/inner/deep.py", text)
    assert find_experiment("top/inner/deep.py:Deep", cwd).load()().width == 9


def test_a_file_whose_class_is_missing_or_no_experiment_says_so(cwd):
    write(cwd / "a.py", one("Alpha") + "class Plain: ...\n")
    with pytest.raises(ExperimentNotFoundError) as caught:
        find_experiment("a.py:Alhpa", cwd).load()
    assert caught.value.nearest == ("Alpha",)
    with pytest.raises(ConfigError, match="not an experiment"):
        find_experiment("a.py:Plain", cwd).load()


def test_a_module_of_the_working_directory_is_found_by_its_name(cwd, monkeypatch):
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(cwd))])
    write(cwd / "pkg_of_this_test/exp.py", one("Mine"))
    ref = find_experiment("pkg_of_this_test.exp:Mine", cwd)
    assert (ref.name, ref.source) == ("Mine", "module")
    assert ref.load(cwd)().width == 1
    assert import_path_of(ref.load(cwd)) == "pkg_of_this_test.exp:Mine"
    with pytest.raises(ExperimentNotFoundError):
        find_experiment("pkg_of_this_test.absent:Mine", cwd)
    del sys.modules["pkg_of_this_test.exp"], sys.modules["pkg_of_this_test"]


def test_a_module_below_folders_without_an_init_file_is_found_by_its_name(cwd, monkeypatch):
    monkeypatch.syspath_prepend(str(cwd / "src"))
    file = write(cwd / "src/pkg_without_init/inner/exp.py", one("Mine"))
    ref = find_experiment("pkg_without_init.inner.exp:Mine", cwd)
    assert ref.file == file
    assert find_module_file("pkg_without_init.inner") == file.parent
    assert not any(name.startswith("pkg_without_init") for name in sys.modules)


def test_plugins_are_listed_without_importing_them(cwd, install):
    install("nice-plugin", {"Nice": "nice_plugin.exp:NiceClass"}, {"nice_plugin/exp.py": "raise RuntimeError\n"})
    (ref,) = [r for r in list_experiments(cwd) if r.distribution == "nice-plugin"]
    assert (ref.name, ref.source, ref.import_path) == ("Nice", "plugin", "nice_plugin.exp:NiceClass")
    assert ref.error is None
    assert "nice_plugin" not in sys.modules


def test_a_plugin_is_loaded_by_its_name_or_with_its_distribution(cwd, install):
    install("nice-plugin", {"Nice": "nice_a:NiceClass"}, {"nice_a.py": one("NiceClass")})
    assert find_experiment("Nice", cwd).load().__name__ == "NiceClass"
    assert find_experiment("nice_plugin:Nice", cwd).load().__name__ == "NiceClass"
    with pytest.raises(ExperimentNotFoundError) as caught:
        find_experiment("nice-plugin:Nive", cwd)
    assert caught.value.nearest == ("nice-plugin:Nice",)


def test_a_broken_plugin_is_reported_with_distribution_and_reason_and_hides_nothing(cwd, install):
    install("gone", {"Gone": "gone_module:Gone"})
    install("malformed", {"Malformed": "no colon here"})
    install("raises", {"Raises": "raises_b:Raises"}, {"raises_b.py": "import no_such_module\n"})
    install("whole", {"Whole": "whole_b:Whole"}, {"whole_b.py": one("Whole")})
    refs = {ref.name: ref for ref in list_experiments(cwd)}
    assert "gone_module" in refs["Gone"].error
    assert refs["Gone"].distribution == "gone"
    assert "module:Class" in refs["Malformed"].error
    assert refs["Raises"].error is None
    assert refs["Whole"].error is None
    assert find_experiment("Whole", cwd).load()().width == 1
    with pytest.raises(ExperimentNotFoundError, match="distribution gone") as caught:
        find_experiment("Gone", cwd).load()
    assert "gone_module" in caught.value.why
    with pytest.raises(ConfigError, match="distribution raises") as caught:
        find_experiment("Raises", cwd).load()
    assert "no_such_module" in caught.value.why


def test_metadata_that_cannot_be_read_hides_no_other_plugin(cwd, install):
    install("garbled", {}, raw="[nitro.experiments]\nthis is not an entry point\n[nitro.experiments]\n= =\n")
    install("whole", {"Whole": "whole_c:Whole"}, {"whole_c.py": one("Whole")})
    refs = {ref.name: ref for ref in list_experiments(cwd)}
    assert refs["Whole"].error is None


def test_two_plugins_of_one_name_are_both_shown_and_can_be_qualified(cwd, install):
    install("first", {"Same": "first_d:Same"}, {"first_d.py": one("Same")})
    install("second", {"Same": "second_d:Same"}, {"second_d.py": one("Same").replace("= 1", "= 2")})
    assert names(cwd).count("Same") == 2
    with pytest.raises(ExperimentNotFoundError) as caught:
        find_experiment("Same", cwd)
    assert "first_d:Same" in caught.value.where
    assert "second_d:Same" in caught.value.where
    assert "first:Same" in caught.value.fix
    assert "second:Same" in caught.value.fix
    assert find_experiment("second:Same", cwd).load()().width == 2


def test_one_class_that_two_distributions_declare_is_one_experiment(cwd, install):
    install("new-name", {"Renamed": "renamed_k:Renamed"}, {"renamed_k.py": one("Renamed")})
    install("old-name", {"Renamed": "renamed_k:Renamed"})
    assert names(cwd).count("Renamed") == 1
    assert find_experiment("Renamed", cwd).load().__name__ == "Renamed"


def test_a_distribution_on_two_places_of_the_path_counts_once(cwd, install, tmp_path, monkeypatch):
    site = install("twice", {"Twice": "twice_j:Twice"}, {"twice_j.py": one("Twice")})
    shutil.copytree(site, tmp_path / "again")
    monkeypatch.syspath_prepend(str(tmp_path / "again"))
    assert names(cwd).count("Twice") == 1


def test_a_local_class_and_a_plugin_of_one_name_are_both_shown(cwd, install):
    install("first", {"Same": "first_e:Same"}, {"first_e.py": one("Same")})
    local(cwd, "a.py", one("Same").replace("= 1", "= 3"))
    with pytest.raises(ExperimentNotFoundError) as caught:
        find_experiment("Same", cwd)
    assert "first:Same" in caught.value.fix
    assert "experiments/a.py:Same" in caught.value.fix
    assert find_experiment("experiments/a.py:Same", cwd).load()().width == 3


def test_the_same_file_through_an_editable_install_is_one_experiment(cwd, install):
    local(cwd, "a.py", one("Same"))
    site = install("mine", {"Same": "mine_experiments.a:Same"})
    os.symlink(cwd / "experiments", site / "mine_experiments")
    assert names(cwd).count("Same") == 1
    assert find_experiment("Same", cwd).source == "local"


def test_the_checkout_of_a_distribution_stands_for_its_installed_copy(cwd, install):
    local(cwd, "a.py", one("Same") + "# edited\n")
    write(cwd / "pyproject.toml", '[project]\nname = "My_Dist"\n')
    install("my-dist", {"Same": "my_experiments.a:Same"}, {"my_experiments/a.py": one("Same")})
    assert find_experiment("Same", cwd).source == "local"
    assert find_experiment("my-dist:Same", cwd.parent).source == "plugin"
    write(cwd / "pyproject.toml", '[project]\nname = "another"\n')
    with pytest.raises(ExperimentNotFoundError, match="2 experiments"):
        find_experiment("Same", cwd)


def test_a_local_class_derived_from_a_plugins_experiment_is_found(cwd, install):
    install("first", {"Base": "first_f.exp:Base"}, {"first_f/exp.py": one("Base")})
    local(cwd, "a.py", "from first_f.exp import Base\nclass Mine(Base): ...\n")
    assert "Mine" in names(cwd)


def test_plugins_can_be_switched_off(cwd, install, monkeypatch):
    install("first", {"Some": "first_g:Some"}, {"first_g.py": one("Some")})
    assert "Some" in names(cwd)
    monkeypatch.setenv("NITRO_NO_PLUGINS", "1")
    assert names(cwd) == []
    monkeypatch.setenv("NITRO_NO_PLUGINS", "0")
    assert "Some" in names(cwd)


def test_an_unknown_name_is_not_found_with_the_nearest(cwd):
    local(cwd, "a.py", one("MnistMLP"))
    with pytest.raises(ExperimentNotFoundError) as caught:
        find_experiment("MnsitMLP", cwd)
    assert caught.value.nearest == ("MnistMLP",)
    assert caught.value.exit_code == ExitCode.NOT_FOUND == 3


def test_the_check_imports_in_a_child_process(cwd):
    local(cwd, "good.py", "print('noise')\n" + one("Good"))
    local(cwd, "bad.py", "import no_such_module\n" + one("Bad"))
    local(cwd, "dies.py", "import os\nos.write(1, b'null\\n')\nos._exit(7)\n" + one("Dies"))
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    os.environ["PYTHONPATH"], before = root, os.environ.get("PYTHONPATH")
    try:
        assert check_import(find_experiment("Good", cwd), cwd) is None
        assert "no_such_module" in check_import(find_experiment("Bad", cwd), cwd)
        assert "code 7" in check_import(find_experiment("Dies", cwd), cwd)
    finally:
        os.environ.pop("PYTHONPATH")
        if before is not None:
            os.environ["PYTHONPATH"] = before
    assert not any(name.endswith(".dies") for name in sys.modules)


def test_what_a_local_file_defines_can_be_sent_to_a_spawned_worker(cwd):
    local(cwd, "parts.py", "def ten():\n    return 10\n")
    text = "from .parts import ten\nclass Source:\n    def __call__(self, x):\n        return x + ten()\n"
    local(cwd, "a.py", text + one("A"))
    module = sys.modules[find_experiment("A", cwd).load().__module__]
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(module.Source(), 1).result() == 11


def test_listing_loads_neither_jax_nor_numpy_nor_pydantic(cwd):
    local(cwd, "a.py", one("A"))
    code = (
        "import sys; from nitro_cli.registry import list_experiments, list_presets;"
        "refs = list_experiments(); [list_presets(r) for r in refs];"
        "print([r.name for r in refs], [m for m in ('jax', 'numpy', 'pydantic') if m in sys.modules])"
    )
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    env = {**os.environ, "PYTHONPATH": root}
    done = subprocess.run([sys.executable, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['A'] []"


def test_a_neighbour_that_is_imported_as_if_it_were_installed_is_told_to_be_relative(cwd):
    write(cwd / "basis.py", "width = 9\n")
    write(cwd / "tall.py", "from basis import width\n" + one("Tall"))
    with pytest.raises(ConfigError, match="cannot be imported") as caught:
        find_experiment("tall.py:Tall", cwd).load()
    assert "from .basis import" in caught.value.fix
    write(cwd / "other.py", "import no_such_thing\n" + one("Other"))
    with pytest.raises(ConfigError) as caught:
        find_experiment("other.py:Other", cwd).load()
    assert caught.value.fix == "install what provides 'no_such_thing'"
