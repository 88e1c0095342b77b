"""Export: artefacts that run without nitro, and where they come from. Names are resolved when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nitro_cli.lazy_names import lazy_names

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
    from nitro_cli.export.provenance import export_provenance
    from nitro_cli.export.renewing import renew
    from nitro_cli.export.repository import git_provenance
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
    "export_provenance",
    "find_backend",
    "git_provenance",
    "load_bundle",
    "renew",
    "verify_bundle",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "load": (
            "Bundle BundleError DamagedBundleError NoBundleError UntrustedPostprocessError bundle_info "
            "verify_bundle load_bundle"
        ),
        "provenance": "export_provenance",
        "renewing": "renew",
        "repository": "git_provenance",
        "backends": "ExportBackend ExportJob backend_names find_backend",
        "spec": "ExportSpec",
        "exporting": "export",
    },
)
