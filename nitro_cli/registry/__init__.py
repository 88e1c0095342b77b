"""Finding things by name: experiments, presets, overrides, and where each value came from.

Names are resolved when they are first used, so that listing experiments loads neither pydantic nor numpy.
"""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from nitro_cli.registry.config import exported_config, read_config, write_config
    from nitro_cli.registry.discovery import ExperimentRef, find_experiment, list_experiments, ref_of
    from nitro_cli.registry.import_check import check_import
    from nitro_cli.registry.importing import import_path_of
    from nitro_cli.registry.origins import OriginKind
    from nitro_cli.registry.overrides import parse_set, parse_unset, parse_value
    from nitro_cli.registry.preset_commands import (
        FieldRow,
        check_presets,
        diff_presets,
        field_rows,
        new_preset,
        show_preset,
    )
    from nitro_cli.registry.preset_experiment import PresetExperiment as Experiment
    from nitro_cli.registry.preset_files import list_presets, preset_path
    from nitro_cli.registry.private_values import holds_machine_path, home_fields
    from nitro_cli.registry.recorded import code_to_name, found_by_record, relative_source
    from nitro_cli.registry.recorded_logger import check_logger_stays_inside
    from nitro_cli.registry.resolution import from_preset, resolve, resolved_of
    from nitro_cli.registry.resolved import Resolved
    from nitro_cli.registry.toml_text import read_toml
    from nitro_cli.registry.toml_values import NotWritable, natural_form
