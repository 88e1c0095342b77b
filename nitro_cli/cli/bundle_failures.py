"""What goes wrong with bundles, as the errors that the command line has exit codes for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nitro_cli.errors import ConfigError, IncompatibleError, IntegrityError, NotFoundError

__all__ = ["bundle_failures"]


@contextmanager
def bundle_failures() -> Iterator[None]:
    """While inside, the loader's errors, which know nothing of nitro, become nitro's.

    Raises:
        NotFoundError: there is no bundle.
        IntegrityError: it is damaged.
        IncompatibleError: it has a postprocess that nobody trusts.
        ConfigError: it cannot be run as asked.
    """
    from nitro_cli.export import BundleError, DamagedBundleError, NoBundleError, UntrustedPostprocessError

    try:
        yield
    except NoBundleError as error:
        raise NotFoundError(str(error), fix="give the directory that `nitro export` wrote") from error
    except DamagedBundleError as error:
        raise IntegrityError(str(error), fix="export it again, or copy it again from where it came") from error
    except UntrustedPostprocessError as error:
        raise IncompatibleError(
            "the bundle comes with a postprocess, Python source that would be executed",
            where=str(error).split(" comes with")[0] + "/postprocess.py",
            fix="read it, then run it with --trust-postprocess, or get the program's own outputs with --raw",
        ) from error
    except BundleError as error:
        raise ConfigError(str(error)) from error
