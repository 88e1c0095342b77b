"""The traced functions, compiling them, the cache of programs, and what they cost.

Names are loaded when asked for: looking at the cache directory needs no JAX.
"""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.programs.accumulation import choose_accumulation
    from nitro_cli.programs.array_layout import ArrayLayout
    from nitro_cli.programs.cache import CacheStats, Program, cache_reset, cache_stats, compile_program
    from nitro_cli.programs.compile_options import check_compile_options
    from nitro_cli.programs.disk_cache import cache_clear, cache_info
    from nitro_cli.programs.eval_step import (
        EvalPlan,
        build_eval_loss,
        build_forward,
        build_metrics,
        build_packed,
        build_sums,
    )
    from nitro_cli.programs.hook_returns import host_metrics
    from nitro_cli.programs.initialization import trace_model
    from nitro_cli.programs.jaxpr_walk import LONGEST, JaxprWalk
    from nitro_cli.programs.locate import locate_divergence
    from nitro_cli.programs.models import AdaptedModel, BoundModel, adapt_model, adapt_returned
    from nitro_cli.programs.packed_sums import PackedSums
    from nitro_cli.programs.persistent_cache import setup_cache
    from nitro_cli.programs.readback import Outcome, Pair, ReadbackLayout, quotients
    from nitro_cli.programs.repeated import (
        MOST_STEPS,
        StepTrace,
        build_repeated_step,
        build_repeated_sums,
        loop_obstacle,
        trace_step,
    )
    from nitro_cli.programs.step_batches import REAL, BatchWindow
    from nitro_cli.programs.step_plan import StepNames, StepPlan, TrainState, forward
    from nitro_cli.programs.tracing import fresh_trace
    from nitro_cli.programs.train_step import build_train_step, in_place
