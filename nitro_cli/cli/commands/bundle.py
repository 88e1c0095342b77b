"""`nitro bundle`: look into exported bundles, verify and run them."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from nitro_cli.cli.bundle_failures import bundle_failures
from nitro_cli.cli.options import Force
from nitro_cli.cli.output import Output
from nitro_cli.cli.render.tables import size, table
from nitro_cli.errors import ExitCode
from nitro_cli.text import user_path

__all__ = ["info", "run", "verify"]

BundlePath = Annotated[str, typer.Argument(metavar="PATH", help="Directory of a bundle.")]


def info(output: Output, path: BundlePath) -> int:
    """What a bundle takes and gives, how long its program loads for certain, and where it comes from."""
    from nitro_cli.export import bundle_info

    with bundle_failures():
        manifest, provenance = bundle_info(path)
    if output.json:
        output.document(**_experiment(provenance), path=path, manifest=manifest, provenance=provenance)
        return ExitCode.OK
    total = sum(facts["bytes"] for facts in manifest["files"].values())
    rows: list[list[Any]] = [
        ["experiment", provenance.get("experiment")],
        ["checkpoint", provenance.get("checkpoint")],
        ["weights", f"{provenance.get('weights')}, {provenance.get('weights_from')}"],
        ["commit", _commit(provenance)],
        ["exported", f"{manifest['exported_at']} with nitro {manifest['nitro']}, jax {manifest['jax']}"],
        ["loads until", f"{manifest['valid_until']}; `nitro export --from-bundle` writes it anew"],
        ["platforms", ", ".join(manifest["platforms"])],
        ["batch sizes", "any" if "any" in manifest["programs"] else ", ".join(manifest["programs"])],
        ["postprocess", manifest["postprocess"] or "none"],
        ["size", size(total)],
    ]
    output.show(table(["bundle", user_path(path).name], rows, fold=(1,)))
    sides = [("input", manifest["client_inputs"]), ("output", manifest["client_outputs"])]
    if manifest["postprocess"]:
        sides.append(("output, --raw", manifest["outputs"]))
    wire = [[side, spec["name"], spec["dtype"], _shape(spec["shape"])] for side, specs in sides for spec in specs]
    output.show(table(["wire", "name", "dtype", "shape"], wire, title="\ntensors"))
    return ExitCode.OK


def _experiment(provenance: dict[str, Any]) -> dict[str, str | None]:
    """The name of the class and its import path, which provenance writes as one text."""
    path = provenance.get("experiment")
    if not isinstance(path, str) or not path:
        return {"experiment": None, "import_path": None}
    return {"experiment": path.rpartition(":")[2].rpartition(".")[2], "import_path": path}


def _commit(provenance: dict[str, Any]) -> str:
    if "commit" not in provenance:
        return str(provenance.get("repository"))
    state = "clean"
    if provenance.get("dirty"):
        state = "dirty, patch beside it" if provenance.get("patch") else "untracked files"
    return f"{provenance['commit']} ({state})"


def _shape(shape: list[int | None]) -> str:
    return "batch" + "".join(f" x {n if n is not None else 'any'}" for n in shape[1:])


def verify(output: Output, path: BundlePath) -> int:
    """Compare every file of a bundle with the digest written at export.

    The exit code is 5 when one is missing, damaged, or leads outside the bundle.
    """
    from nitro_cli.export import verify_bundle

    with bundle_failures():
        manifest = verify_bundle(path)
    if output.json:
        output.document(path=path, ok=True, files=len(manifest["files"]))
        return ExitCode.OK
    total = sum(facts["bytes"] for facts in manifest["files"].values())
    output.line(f"ok  {path}: {len(manifest['files'])} files, {size(total)}")
    return ExitCode.OK


def run(
    output: Output,
    path: BundlePath,
    input_: Annotated[
        str, typer.Option("--input", "-i", metavar="F", help="An .npz with one array per input, batch first.")
    ] = ...,  # type: ignore[assignment]
    out: Annotated[str, typer.Option("--output", "-o", metavar="F", help="The .npz to write.")] = ...,  # type: ignore[assignment]
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, metavar="N", help="Samples per call; all at once by default.")
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The program's own outputs, no postprocess.")] = False,
    trust: Annotated[
        bool, typer.Option("--trust-postprocess", help="Run the Python source that came with the bundle.")
    ] = False,
    force: Force = False,
) -> int:
    """Run a bundle on an .npz and write its outputs; the experiment's code is not needed."""
    from nitro_cli.analysis import OutputFile
    from nitro_cli.cli.prediction_files import InputFields
    from nitro_cli.cli.stop_signals import raise_if_stopped
    from nitro_cli.export import load_bundle

    with bundle_failures(), output.hooks_to_stderr():
        bundle = load_bundle(path, trust_postprocess=trust, raw=raw)
        source = InputFields(user_path(input_), [spec["name"] for spec in bundle.manifest["inputs"]])
        with OutputFile(user_path(out), force=force, ready=raise_if_stopped) as file:
            for batch in source.batches(batch_size or max(source.samples, 1)):
                file.write(bundle(**batch))
    if output.json:
        output.document(
            bundle=path, input=source.path, output=file.path, samples=source.samples, arrays=file.document()
        )
        return ExitCode.OK
    output.line(str(file.path))
    output.note(f"{source.samples} samples: {file.told()}")
    return ExitCode.OK
