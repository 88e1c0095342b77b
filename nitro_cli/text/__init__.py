"""Text and small files, one place for each question: how a name or message is shown, how a file is read and replaced.

Works without JAX and imports nothing of nitro but the errors.
"""

from .files import append_descriptor, fsync_directory, read_regular, write_atomically
from .paths import is_utf8, user_path
from .visible import message_of, visible

__all__ = [
    "append_descriptor",
    "fsync_directory",
    "is_utf8",
    "message_of",
    "read_regular",
    "user_path",
    "visible",
    "write_atomically",
]
