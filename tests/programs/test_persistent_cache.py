"""The cache of programs on disk: hits across processes, and damage is a miss."""

import json
import os
import subprocess
import sys
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

from nitro_cli.errors import NitroWarning
from nitro_cli.programs import (
    cache_clear,
    cache_info,
    cache_reset,
    cache_stats,
    compile_program,
    disk_cache,
    persistent_cache,
    setup_cache,
)

X = np.arange(4, dtype=np.float32)
ROOT = Path(__file__).parents[2]
SETTINGS = (
    "jax_enable_compilation_cache",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
    "jax_persistent_cache_enable_xla_caches",
)


@pytest.fixture(autouse=True)
def _own_settings(monkeypatch):
    from jax.experimental.compilation_cache import compilation_cache

    monkeypatch.delenv("NITRO_CACHE_DIR", raising=False)
    before = {name: getattr(jax.config, name) for name in SETTINGS}
    monkeypatch.setattr(persistent_cache, "_in_use", None)
    monkeypatch.setattr(persistent_cache, "_said", set())
    cache_reset()
    yield
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()
    cache_reset()


def compiled_anew():
    """Compile with nothing in memory, as a new process would."""
    cache_reset()
    program = compile_program("train", lambda x: x * 3 + 1, (X,))
    np.testing.assert_allclose(program(X), X * 3 + 1)
    return program.source


def entry(directory):
    (file,) = [path for path in directory.iterdir() if path.name.startswith("jit_train")]
    return file


def test_a_program_of_any_size_is_taken_from_disk_the_second_time(tmp_path):
    assert setup_cache(tmp_path / "xla") == tmp_path / "xla"
    assert compiled_anew() == "compiled"
    assert compiled_anew() == "disk"
    stats = cache_stats()
    assert (stats.disk_hits, stats.misses) == (1, 0)


def test_setting_up_after_something_was_compiled_works_too(tmp_path):
    jax.jit(lambda x: x + 1)(X).block_until_ready()
    setup_cache(tmp_path / "first")
    compiled_anew()
    setup_cache(tmp_path / "second")
    assert compiled_anew() == "compiled"
    assert entry(tmp_path / "second").exists()


def test_another_process_compiles_nothing(tmp_path):
    code = (
        "import json, sys, numpy as np\n"
        "from nitro_cli.programs import cache_stats, compile_program, setup_cache\n"
        "setup_cache(sys.argv[1])\n"
        "x = np.arange(4, dtype=np.float32)\n"
        "program = compile_program('train', lambda x: x * 3 + 1, (x,))\n"
        "stats = cache_stats()\n"
        "print(json.dumps([stats.misses, stats.disk_hits, np.asarray(program(x)).tolist()]))\n"
    )
    setup_cache(tmp_path)
    compiled_anew()
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert json.loads(run.stdout) == [0, 1, [1.0, 4.0, 7.0, 10.0]]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "foreign"])
def test_a_damaged_entry_is_a_miss_with_one_warning_and_is_replaced(tmp_path, damage):
    setup_cache(tmp_path)
    compiled_anew()
    file = entry(tmp_path)
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 0x10
    file.write_bytes({"truncated": content[:middle], "flipped": content, "empty": b"", "foreign": b"PNG" * 99}[damage])
    with pytest.warns(NitroWarning, match="damaged entry") as caught:
        assert compiled_anew() == "compiled"
    assert len(caught) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiled_anew() == "disk"


def test_an_entry_whose_content_jax_cannot_load_is_a_miss_and_is_replaced(tmp_path):
    setup_cache(tmp_path)
    compiled_anew()
    key = entry(tmp_path).name.rsplit("-", 2)[0]
    disk_cache.EntryFiles(tmp_path).put(key, b"whole, but no program")
    with pytest.warns(UserWarning, match="Error reading persistent compilation cache"):
        assert compiled_anew() == "compiled"
    assert compiled_anew() == "disk"


def test_programs_of_another_kind_of_processor_are_misses(tmp_path, monkeypatch):
    setup_cache(tmp_path)
    compiled_anew()
    monkeypatch.setattr(disk_cache, "_machine", lambda: "another1")
    setup_cache("off")
    setup_cache(tmp_path)
    assert compiled_anew() == "compiled"


def test_off_keeps_nothing_and_can_be_turned_on_again(tmp_path):
    setup_cache(tmp_path)
    assert setup_cache("off") is None
    assert compiled_anew() == "compiled"
    assert compiled_anew() == "compiled"
    assert cache_info(tmp_path).entries == 0
    setup_cache(tmp_path)
    compiled_anew()
    assert compiled_anew() == "disk"


def test_the_environment_names_the_directory_and_a_path_overrides_it(tmp_path, monkeypatch):
    monkeypatch.setenv("NITRO_CACHE_DIR", str(tmp_path / "environment"))
    assert setup_cache() == tmp_path / "environment"
    assert setup_cache(tmp_path / "path") == tmp_path / "path"
    monkeypatch.setenv("NITRO_CACHE_DIR", "off")
    assert setup_cache() is None


def test_without_any_choice_the_users_cache_directory_serves(tmp_path, monkeypatch):
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    directory = setup_cache()
    assert directory is not None
    assert directory.is_relative_to(tmp_path)
    assert directory.parts[-2:] == ("nitro", "xla")


def test_a_directory_that_jax_was_given_is_kept(tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "theirs"))
    assert setup_cache() == tmp_path / "theirs"


def test_a_directory_that_cannot_be_made_turns_the_cache_off_with_one_warning(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(NitroWarning, match="cannot be made") as caught:  # noqa: PT031 - one warning over several calls
        assert setup_cache(tmp_path / "file" / "xla") is None
        assert setup_cache(tmp_path / "file" / "xla") is None
    assert len(caught) == 1
    assert compiled_anew() == "compiled"


def test_a_directory_that_cannot_be_written_is_still_read_with_one_warning(tmp_path, monkeypatch):
    setup_cache(tmp_path)
    compiled_anew()
    setup_cache("off")

    def refused(*args, **keywords):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refused)
    with pytest.warns(NitroWarning, match="cannot be written.*only read") as caught:  # noqa: PT031 - one warning over several calls
        setup_cache(tmp_path)
        assert compiled_anew() == "disk"
        compile_program("eval", lambda x: x - 5, (X,))
    assert len(caught) == 1
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("jit_eval")]


def test_a_disk_that_fails_while_writing_is_said_once_and_compiling_goes_on(tmp_path, monkeypatch):
    setup_cache(tmp_path)

    def full(*args, **keywords):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.mkstemp", full)
    with pytest.warns(NitroWarning, match="cannot be written") as caught:  # noqa: PT031 - one warning over several calls
        assert compiled_anew() == "compiled"
        compile_program("eval", lambda x: x - 5, (X,))
    assert len(caught) == 1


def test_a_program_with_a_host_callback_is_never_put_on_disk(tmp_path):
    setup_cache(tmp_path)

    def printing(x):
        jax.debug.callback(lambda x: None, x)
        return x + 1

    for _ in range(2):
        assert compile_program("train", printing, (X,)).source == "compiled"
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("jit_train")]


def test_info_counts_entries_and_clear_removes_them_and_nothing_else(tmp_path):
    setup_cache(tmp_path)
    compiled_anew()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "jit_f-123-cache").write_bytes(b"by jax")
    info = cache_info(tmp_path)
    size = sum(path.stat().st_size for path in tmp_path.iterdir() if path.name != "notes.txt")
    assert (info.path, info.entries, info.bytes, info.writable) == (tmp_path, 2, size, True)
    removed = cache_clear(tmp_path)
    assert (removed.entries, removed.bytes) == (2, size)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
    assert cache_info(tmp_path).entries == 0


def test_info_of_a_directory_that_is_not_there_is_empty_and_of_no_cache_has_no_path(tmp_path):
    info = cache_info(tmp_path / "nothing" / "yet")
    assert (info.entries, info.bytes, info.writable) == (0, 0, True)
    assert not (tmp_path / "nothing").exists()
    assert cache_info("off").path is None
    assert cache_clear("off").entries == 0


def test_info_and_clear_load_no_jax(tmp_path):
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "from nitro_cli.programs import cache_clear, cache_info\n"
        "print(cache_info(sys.argv[1]).entries, cache_clear(sys.argv[1]).entries)\n"
    )
    (tmp_path / "jit_f-1-x-nitro").write_bytes(b"1")
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert run.stdout.split() == ["1", "1"]
