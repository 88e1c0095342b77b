"""Export: artefacts that run without nitro, and where they come from. Names are resolved when first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nitro_cli.export.backends import ExportBackend, ExportJob, backend_names, find_backend
    from nitro_cli.export.exporting import export
    from nitro_cli.export.load import (
        Bundle,
        BundleError,
        DamagedBundleError,
        NoBundleError,
        UntrustedPostprocessError,
        bundle_info,
        load_bundle,
        verify_bundle,
    )
    from nitro_cli.export.renewing import renew
    from nitro_cli.export.spec import ExportSpec

__all__ = [
    "Bundle",
    "BundleError",
    "DamagedBundleError",
    "ExportBackend",
    "ExportJob",
    "ExportSpec",
    "NoBundleError",
    "UntrustedPostprocessError",
    "backend_names",
    "bundle_info",
    "export",
    "find_backend",
    "load_bundle",
    "renew",
    "verify_bundle",
]

_HOME = {
    "Bundle": "load",
    "BundleError": "load",
    "DamagedBundleError": "load",
    "NoBundleError": "load",
    "UntrustedPostprocessError": "load",
    "bundle_info": "load",
    "verify_bundle": "load",
    "renew": "renewing",
    "ExportBackend": "backends",
    "ExportJob": "backends",
    "ExportSpec": "spec",
    "backend_names": "backends",
    "export": "exporting",
    "find_backend": "backends",
    "load_bundle": "load",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
