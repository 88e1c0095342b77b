"""Finding things by name: experiments, presets, overrides, and where each value came from.

Names are resolved when they are first used, so that listing experiments loads neither pydantic nor numpy.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from nitro_cli.lazy_names import lazy_names

if TYPE_CHECKING:
    from nitro_cli.registry.at_home import holds_machine_path, home_fields
    from nitro_cli.registry.config import exported_config, read_config, write_config
    from nitro_cli.registry.discovery import ExperimentRef, find_experiment, list_experiments, ref_of
    from nitro_cli.registry.import_check import check_import
    from nitro_cli.registry.importing import import_path_of
    from nitro_cli.registry.origins import Origin, OriginKind
    from nitro_cli.registry.overrides import Override, parse_set, parse_unset, parse_value
    from nitro_cli.registry.preset_commands import (
        FieldRow,
        PresetDifference,
        check_presets,
        diff_presets,
        field_rows,
        new_preset,
        show_preset,
    )
    from nitro_cli.registry.preset_files import list_presets, preset_folders, preset_path
    from nitro_cli.registry.problems import PresetProblem
    from nitro_cli.registry.recorded import found_by_record, relative_source
    from nitro_cli.registry.recorded_logger import check_logger_stays_inside
    from nitro_cli.registry.resolution import Project, from_preset, resolve, resolved_of
    from nitro_cli.registry.resolved import Resolved
    from nitro_cli.registry.toml_text import read_toml
    from nitro_cli.registry.toml_values import NotWritable, natural_form


__all__ = [
    "ExperimentRef",
    "FieldRow",
    "NotWritable",
    "Origin",
    "OriginKind",
    "Override",
    "PresetDifference",
    "PresetProblem",
    "Project",
    "Resolved",
    "check_import",
    "check_logger_stays_inside",
    "check_presets",
    "diff_presets",
    "exported_config",
    "field_rows",
    "find_experiment",
    "found_by_record",
    "from_preset",
    "holds_machine_path",
    "home_fields",
    "import_path_of",
    "list_experiments",
    "list_presets",
    "natural_form",
    "new_preset",
    "parse_set",
    "parse_unset",
    "parse_value",
    "preset_folders",
    "preset_path",
    "read_config",
    "read_toml",
    "ref_of",
    "relative_source",
    "resolve",
    "resolved_of",
    "show_preset",
    "write_config",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "config": "exported_config read_config write_config",
        "discovery": "ExperimentRef find_experiment list_experiments ref_of",
        "at_home": "holds_machine_path home_fields",
        "import_check": "check_import",
        "importing": "import_path_of",
        "origins": "Origin OriginKind",
        "overrides": "Override parse_set parse_unset parse_value",
        "preset_commands": "FieldRow PresetDifference check_presets diff_presets field_rows new_preset show_preset",
        "preset_files": "list_presets preset_folders preset_path",
        "problems": "PresetProblem",
        "recorded": "found_by_record relative_source",
        "recorded_logger": "check_logger_stays_inside",
        "resolution": "Project from_preset resolve resolved_of",
        "resolved": "Resolved",
        "toml_text": "read_toml",
        "toml_values": "NotWritable natural_form",
    },
)


if "nitro_cli.experiment.experiment" in sys.modules:
    importlib.import_module(f"{__name__}.resolution")  # gives Experiment.from_preset its presets
