"""Export: artefacts that run without nitro, and where they come from. Names are resolved when first used."""

from __future__ import annotations

from nitro_cli.lazy_names import lazy_names

with lazy_names(__name__):
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
