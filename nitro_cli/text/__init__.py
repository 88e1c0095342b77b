"""Text and small files, one place for each question.

How a name, a path or a message is written and shown; how a file is read and replaced; what is looked up by an id.
Works without JAX and imports nothing of nitro but the errors.
"""

from .catalogue import Catalogue
from .entry_points import DeclaredEntry, declared_entries, normalized
from .files import (
    IrregularFileError,
    append_descriptor,
    fsync_directory,
    open_regular,
    read_regular,
    write_atomically,
)
from .json_ready import json_ready
from .json_values import parse_json
from .paths import is_utf8, user_path
from .tree_paths import path_keys, path_text
from .visible import exception_text, message_of, visible

__all__ = [
    "Catalogue",
    "DeclaredEntry",
    "IrregularFileError",
    "append_descriptor",
    "declared_entries",
    "exception_text",
    "fsync_directory",
    "is_utf8",
    "json_ready",
    "message_of",
    "normalized",
    "open_regular",
    "parse_json",
    "path_keys",
    "path_text",
    "read_regular",
    "user_path",
    "visible",
    "write_atomically",
]
