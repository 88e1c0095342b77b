"""XLA options are checked before anything is compiled with them."""

import pytest

from nitro_cli.errors import ConfigError
from nitro_cli.programs import cache_stats, check_compile_options


def test_options_that_xla_knows_pass_as_a_dict():
    assert check_compile_options({"xla_cpu_enable_fast_math": True}) == {"xla_cpu_enable_fast_math": True}
    assert check_compile_options(None) == {}


def test_unknown_options_are_refused_together_with_the_nearest_names():
    before = cache_stats()
    options = {"xla_cpu_enable_fast_mth": True, "xla_gpu_autotune_lvel": 1, "xla_cpu_enable_fast_math": True}
    with pytest.raises(ConfigError) as caught:
        check_compile_options(options)
    assert "xla_cpu_enable_fast_mth, xla_gpu_autotune_lvel" in caught.value.what
    assert {"xla_cpu_enable_fast_math", "xla_gpu_autotune_level"} <= set(caught.value.nearest)
    assert cache_stats() == before


def test_a_value_that_xla_refuses_is_said_with_its_words():
    with pytest.raises(ConfigError, match="banana") as caught:
        check_compile_options({"xla_cpu_enable_fast_math": "banana"})
    assert "xla_cpu_enable_fast_math" in caught.value.what


def test_a_value_that_is_no_scalar_is_refused():
    with pytest.raises(ConfigError, match="type list"):
        check_compile_options({"xla_cpu_enable_fast_math": [1]})
