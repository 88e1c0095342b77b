"""The traced functions, compiling them, the cache of programs, and what they cost.

Names are loaded when asked for: looking at the cache directory needs no JAX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nitro_cli.lazy_names import lazy_names

if TYPE_CHECKING:
    from nitro_cli.programs.accumulation import Accumulation, choose_accumulation
    from nitro_cli.programs.array_layout import ArrayLayout
    from nitro_cli.programs.cache import (
        CacheStats,
        NameStats,
        Program,
        cache_reset,
        cache_stats,
        compile_program,
        explain_difference,
    )
    from nitro_cli.programs.compile_options import check_compile_options
    from nitro_cli.programs.cost import Cost
    from nitro_cli.programs.disk_cache import CacheInfo, cache_clear, cache_dir, cache_info
    from nitro_cli.programs.eval_step import EvalPlan, build_eval_loss, build_forward, build_metrics
    from nitro_cli.programs.hook_returns import host_scalars
    from nitro_cli.programs.initialization import Initialized, initialize
    from nitro_cli.programs.locate import first_nonfinite, locate_divergence
    from nitro_cli.programs.models import AdaptedModel, BoundModel, adapt_model, adapt_returned
    from nitro_cli.programs.persistent_cache import setup_cache
    from nitro_cli.programs.repeated import MOST_STEPS, StepTrace, build_repeated_step, trace_step
    from nitro_cli.programs.tracing import fresh_trace
    from nitro_cli.programs.train_step import StepNames, StepPlan, TrainState, build_train_step, in_place

__all__ = [
    "MOST_STEPS",
    "Accumulation",
    "AdaptedModel",
    "ArrayLayout",
    "BoundModel",
    "CacheInfo",
    "CacheStats",
    "Cost",
    "EvalPlan",
    "Initialized",
    "NameStats",
    "Program",
    "StepNames",
    "StepPlan",
    "StepTrace",
    "TrainState",
    "adapt_model",
    "adapt_returned",
    "build_eval_loss",
    "build_forward",
    "build_metrics",
    "build_repeated_step",
    "build_train_step",
    "cache_clear",
    "cache_dir",
    "cache_info",
    "cache_reset",
    "cache_stats",
    "check_compile_options",
    "choose_accumulation",
    "compile_program",
    "explain_difference",
    "first_nonfinite",
    "fresh_trace",
    "host_scalars",
    "in_place",
    "initialize",
    "locate_divergence",
    "setup_cache",
    "trace_step",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "accumulation": "Accumulation choose_accumulation",
        "array_layout": "ArrayLayout",
        "cache": "CacheStats NameStats Program cache_reset cache_stats compile_program explain_difference",
        "compile_options": "check_compile_options",
        "cost": "Cost",
        "disk_cache": "CacheInfo cache_clear cache_dir cache_info",
        "eval_step": "EvalPlan build_eval_loss build_forward build_metrics",
        "hook_returns": "host_scalars",
        "initialization": "Initialized initialize",
        "locate": "first_nonfinite locate_divergence",
        "models": "AdaptedModel BoundModel adapt_model adapt_returned",
        "persistent_cache": "setup_cache",
        "repeated": "MOST_STEPS StepTrace build_repeated_step trace_step",
        "tracing": "fresh_trace",
        "train_step": "StepNames StepPlan TrainState build_train_step in_place",
    },
)
