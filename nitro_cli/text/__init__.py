"""Text and small files, one place for each question.

How a name, a path or a message is written and shown; how a file is read and replaced; what is looked up by an id.
Works without JAX and imports nothing of nitro but the errors.
"""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
    from .catalogue import Catalogue, CatalogueEntry
    from .display_text import exception_text, message_of, visible
    from .entry_points import DeclaredEntry, declared_entries, normalized
    from .files import (
        IrregularFileError,
        append_descriptor,
        fsync_directory,
        open_regular,
        read_regular,
        write_atomically,
    )
    from .json_form import json_ready
    from .json_values import parse_json
    from .path_patterns import path_matches
    from .paths import is_utf8, user_path
    from .tree_paths import path_keys, path_text
