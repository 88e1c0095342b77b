"""Groups, decay, schedules, gradient rules and the average of the weights: an experiment in, optax out."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.experiment import default_no_decay
    from nitro_cli.optim.accumulators import accumulator_dtype, in_accumulators
    from nitro_cli.optim.averaging import ema_init, ema_update
    from nitro_cli.optim.binding import bind, check_schedule_keys
    from nitro_cli.optim.by_name import Optim as Optim
    from nitro_cli.optim.clipping import clip_factor
    from nitro_cli.optim.decay_report import decay_rows
    from nitro_cli.optim.factories import OPTIMIZERS, register_optimizer as register_optimizer
    from nitro_cli.optim.gradient_rules import (
        ASAM as ASAM,
        SAM as SAM,
        GradRule,
        PerturbRule as PerturbRule,
        SingleGrad as SingleGrad,
    )
    from nitro_cli.optim.hyper_table import Hyper, horizon_jump
    from nitro_cli.optim.hyperparameters import HyperParams, decay as decay
    from nitro_cli.optim.layout import ParamLayout, build_layout
    from nitro_cli.optim.manual import bind_manual
    from nitro_cli.optim.named_schedules import (
        NamedSchedule,
        constant as constant,
        cosine as cosine,
        exponential as exponential,
        inverse_sqrt as inverse_sqrt,
        linear as linear,
        one_cycle as one_cycle,
        piecewise as piecewise,
        polynomial as polynomial,
        schedule_from_config,
        warmup_cosine as warmup_cosine,
    )
    from nitro_cli.optim.norms import all_finite
    from nitro_cli.optim.optimizer import Optimizer
    from nitro_cli.optim.plateau import Plateau as Plateau
    from nitro_cli.optim.value_source import BLOCK
