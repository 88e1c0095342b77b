"""Running an exported bundle, with the standard library, numpy and jax alone.

This file is nitro's own loader and is copied into every bundle as `load.py`, so that a bundle runs where nitro is not
installed:

    from load import load_bundle
    bundle = load_bundle("path/to/bundle")
    outputs = bundle(image=images)
"""

import contextlib
import dataclasses
import hashlib
import json
import math
import struct
import warnings
from datetime import date
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

__all__ = [
    "Bundle",
    "BundleError",
    "DamagedBundleError",
    "NoBundleError",
    "UntrustedPostprocessError",
    "bundle_info",
    "load_bundle",
    "verify_bundle",
]

FORMAT = 1
MANIFEST = "manifest.json"
DEVICE = "device.safetensors"
CONFIG = "config.toml"
PROVENANCE = "provenance.json"
_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
}


class BundleError(Exception):
    """The bundle cannot be run as asked; base of what goes wrong with bundles."""


class NoBundleError(BundleError):
    """There is no bundle at the path."""


class DamagedBundleError(BundleError):
    """A file is missing, is not the one that was exported, or leads outside the bundle."""


class UntrustedPostprocessError(BundleError):
    """The bundle comes with Python source, and nobody said that it may be run."""


def load_bundle(path: Any, *, trust_postprocess: bool = False, raw: bool = False) -> "Bundle":
    """Open a bundle: verify every file, read the weights, and make its program callable.

    Args:
        path: the bundle's directory.
        trust_postprocess: run the Python source that came with the bundle on its outputs.
        raw: leave the postprocess aside and give the program's own outputs.

    Raises:
        BundleError: a file is missing, damaged or outside the bundle, the format is newer than this loader, or there is
            a postprocess and neither `trust_postprocess` nor `raw` was given.
    """
    root = Path(path).expanduser()
    manifest = verify_bundle(root)
    postprocess = None
    if manifest["postprocess"] is not None and not raw:
        if not trust_postprocess:
            raise UntrustedPostprocessError(
                f"{root} comes with a postprocess, Python source that would be executed: read it, then give "
                "trust_postprocess=True to run it, or raw=True for the program's own outputs"
            )
        postprocess = _postprocess(inside(root, manifest["postprocess"]))
    return Bundle(root, manifest, postprocess)


def verify_bundle(path: Any) -> dict[str, Any]:
    """Compare every file of a bundle with the digests written at export, and return its manifest.

    Raises:
        BundleError: there is no bundle, a file is missing, damaged or outside it, or the format is newer.
    """
    root = Path(path).expanduser()
    manifest = read_manifest(root)
    try:
        verify(root, manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedBundleError(f"{root / MANIFEST} is not as an export writes it: {error!r}") from None
    return manifest


def bundle_info(path: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and provenance of a bundle; the files are not verified.

    Raises:
        BundleError: there is no bundle, or one of the two cannot be read.
    """
    root = Path(path).expanduser()
    manifest = read_manifest(root)
    try:
        return manifest, json.loads(inside(root, PROVENANCE).read_text())
    except (OSError, ValueError) as error:
        raise DamagedBundleError(f"{root / PROVENANCE} cannot be read: {error}") from None


class Bundle:
    """An opened bundle; call it with the wire inputs by name or in order.

    Attributes:
        path: its directory.
        manifest: what manifest.json says: `inputs`, `outputs`, `platforms`, `valid_until`, ...
        provenance: where it comes from.
    """

    def __init__(self, path: Path, manifest: dict[str, Any], postprocess: Any) -> None:
        self.path = path
        self.manifest = manifest
        self.provenance = json.loads(inside(path, PROVENANCE).read_text())
        self._postprocess = postprocess
        self._weights = read_safetensors(inside(path, manifest["weights"]))
        self._call = self._program()

    def __call__(self, *inputs: Any, **named: Any) -> dict[str, np.ndarray]:
        """Outputs by name for one batch of any size (of the exported sizes, where the batch size is fixed)."""
        wire = self._wire(inputs, named)
        found = self._call(wire)
        outputs = {spec["name"]: np.asarray(found[spec["name"]]) for spec in self.manifest["outputs"]}
        if self._postprocess is None:
            return outputs
        returned = self._postprocess(outputs)
        check_client(returned, self.manifest["client_outputs"], len(wire[0]))
        return dict(returned)

    def _wire(self, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[np.ndarray, ...]:
        specs = self.manifest["inputs"]
        names = [spec["name"] for spec in specs]
        if len(inputs) > len(names):
            raise BundleError(f"{len(inputs)} inputs were given, the bundle takes {', '.join(names)}")
        given = {**dict(zip(names, inputs)), **named}  # noqa: B905
        if set(given) != set(names) or len(given) != len(inputs) + len(named):
            raise BundleError(f"the inputs are {', '.join(names)}; given were {', '.join(sorted(given)) or 'none'}")
        arrays = []
        for spec in specs:
            array = np.asarray(given[spec["name"]])
            want = tuple(spec["shape"][1:])
            if array.dtype.name != spec["dtype"] or array.ndim == 0 or array.shape[1:] != want or len(array) == 0:
                raise BundleError(
                    f"input {spec['name']!r} is {array.dtype.name}{list(array.shape)}, the bundle takes "
                    f"{spec['dtype']}{['batch', *want]}".replace("'", "")
                )
            arrays.append(array)
        if len({len(array) for array in arrays}) != 1:
            raise BundleError("the inputs have different batch sizes: " + ", ".join(str(len(a)) for a in arrays))
        return tuple(arrays)

    def _program(self) -> Any:
        import jax

        until = self.manifest["valid_until"]
        if date.today() > date.fromisoformat(until):
            warnings.warn(
                f"the program of {self.path} was promised to load until {until}; `nitro export --from-bundle` writes "
                "it anew where nitro and the experiment are installed",
                stacklevel=4,
            )
        programs = self.manifest["programs"]
        opened: dict[str, Any] = {}

        def call(wire: tuple[np.ndarray, ...]) -> Any:
            key = "any" if "any" in programs else str(len(wire[0]))
            if key not in programs:
                raise BundleError(f"no program for a batch of {len(wire[0])}; there are: {', '.join(programs)}")
            with _x64(bool(self.manifest.get("x64"))):
                if key not in opened:
                    opened[key] = jax.jit(open_program(self.path, self.manifest, key).call)
                    self._weights = jax.device_put(self._weights)
                return opened[key](self._weights, *wire)

        return call


def open_program(root: Path, manifest: dict[str, Any], key: str, by_hand: bool = False) -> Any:
    """A program as `jax.export.Exported`.

    `jax.export.deserialize` needs the package flatbuffers, which jax does not bring along. Without it the program is
    put together from its bare module: an empty function of the same inputs and outputs is exported, and the module
    takes the place of its own.

    Args:
        root: the bundle's directory.
        manifest: its manifest.
        key: the program's name: `any`, or a batch size.
        by_hand: put it together even where flatbuffers is installed.
    """
    from jax import export

    entry = manifest["programs"][key]
    try:
        if not by_hand:
            return export.deserialize(bytearray(inside(root, entry["serialized"]).read_bytes()))
    except ImportError:
        pass
    except Exception as error:
        raise BundleError(f"{entry['serialized']} of {root} cannot be read by this jax: {error}") from error
    return _put_together(root, manifest, key, inside(root, entry["module"]).read_bytes())


def _put_together(root: Path, manifest: dict[str, Any], key: str, module: bytes) -> Any:
    import jax
    import jax.numpy as jnp
    from jax import export

    batch = export.symbolic_shape("batch")[0] if key == "any" else int(key)
    held = read_safetensors(inside(root, manifest["weights"]))
    weights = {name: jax.ShapeDtypeStruct(array.shape, array.dtype) for name, array in held.items()}
    wire = [jax.ShapeDtypeStruct((batch, *s["shape"][1:]), _named_dtype(s["dtype"])) for s in manifest["inputs"]]

    def empty(_: Any, first: Any, *rest: Any) -> Any:
        made = manifest["outputs"]
        return {s["name"]: jnp.zeros((first.shape[0], *s["shape"][1:]), _named_dtype(s["dtype"])) for s in made}

    try:
        template = export.export(jax.jit(empty), platforms=manifest["platforms"])(weights, *wire)
        facts = manifest["programs"][key]["facts"]
        changed: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()
        }
        return dataclasses.replace(template, mlir_module_serialized=module, **changed)
    except (TypeError, ValueError) as error:
        raise BundleError(
            f"the program of {root} cannot be put together by jax {jax.__version__} (it was exported with "
            f"{manifest['jax']}): install flatbuffers, or that jax ({error})"
        ) from error


def _x64(wanted: bool) -> Any:
    import jax

    if jax.config.read("jax_enable_x64") == wanted:
        return contextlib.nullcontext()
    if hasattr(jax, "enable_x64"):
        return jax.enable_x64(wanted)
    from jax import experimental

    return getattr(experimental, "enable_x64")(wanted)  # noqa: B009  jax before 0.8


def check_client(returned: Any, specs: Any, batch: int) -> None:
    """Raise unless what a postprocess returned is what the bundle says a client receives.

    Args:
        returned: what the postprocess gave: a mapping of names to arrays, such as `{"probabilities": f32[batch, 10]}`.
        specs: the manifest's `client_outputs`; None in a shape stands for any size.
        batch: the number of samples.
    """
    if not hasattr(returned, "keys"):
        raise BundleError(f"the postprocess returned {type(returned).__name__}, a mapping of names to arrays was due")
    names = [spec["name"] for spec in specs]
    if set(returned) != set(names):
        raise BundleError(f"the postprocess gives {', '.join(sorted(returned))}; declared are {', '.join(names)}")
    for spec in specs:
        array = np.asarray(returned[spec["name"]])
        want = (batch, *spec["shape"][1:])
        fits = array.ndim == len(want) and all(w in (None, n) for n, w in zip(array.shape, want))  # noqa: B905
        if array.dtype.name != spec["dtype"] or not fits:
            raise BundleError(
                f"the postprocess gives {spec['name']} as {array.dtype.name}{list(array.shape)}, declared is "
                f"{spec['dtype']}{list(want)}"
            )


def read_manifest(root: Path) -> dict[str, Any]:
    """The manifest of a bundle, its format checked."""
    try:
        manifest = json.loads((root / MANIFEST).read_text())
    except FileNotFoundError:
        raise NoBundleError(f"{root} is no bundle: it has no {MANIFEST}") from None
    except (ValueError, OSError) as error:
        raise DamagedBundleError(f"{root / MANIFEST} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != "nitro-bundle":
        raise DamagedBundleError(f"{root / MANIFEST} is no manifest of a bundle")
    if not isinstance(manifest.get("format"), int):
        raise DamagedBundleError(f"{root / MANIFEST} names no format")
    if manifest["format"] > FORMAT:
        raise BundleError(
            f"the bundle has format {manifest['format']} (nitro {manifest.get('nitro')}), this loader reads {FORMAT}"
        )
    return manifest


def inside(root: Path, name: str) -> Path:
    """The path of a file of the bundle; one that leads outside is refused, links included."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name:
        raise DamagedBundleError(f"{name!r} leads outside the bundle {root}")
    path = root / pure
    if not path.resolve().is_relative_to(root.resolve()):
        raise DamagedBundleError(f"{name!r} leads outside the bundle {root}")
    return path


def verify(root: Path, manifest: dict[str, Any]) -> None:
    """Compare the manifest and every file with the digests written at export."""
    sealed = {key: value for key, value in manifest.items() if key != "seal"}
    if seal(sealed) != manifest.get("seal"):
        raise DamagedBundleError(f"{root / MANIFEST} was changed after the export")
    used = [manifest["weights"], manifest["postprocess"], manifest["patch"], PROVENANCE, CONFIG, DEVICE]
    used += [entry[part] for entry in manifest["programs"].values() for part in ("serialized", "module")]
    for name in used:
        if name is not None and name not in manifest["files"]:
            inside(root, name)
            raise DamagedBundleError(f"{name} of the bundle {root} has no digest in its {MANIFEST}")
    for name, facts in manifest["files"].items():
        path = inside(root, name)
        if not path.is_file():
            raise DamagedBundleError(f"{name} is missing from the bundle {root}")
        data = path.read_bytes()
        if len(data) != facts["bytes"] or hashlib.sha256(data).hexdigest() != facts["sha256"]:
            raise DamagedBundleError(f"{name} of the bundle {root} is not the file that was exported")


def seal(manifest: dict[str, Any]) -> str:
    """Digest of a manifest's content, however it is laid out."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file: an 8-byte header length, a JSON header, raw little-endian data."""
    data = path.read_bytes()
    if len(data) < 8:
        raise DamagedBundleError(f"{path} is no safetensors file")
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8:
        raise DamagedBundleError(f"{path} is truncated")
    try:
        header = json.loads(data[8 : 8 + length])
    except ValueError:
        raise DamagedBundleError(f"{path} is no safetensors file") from None
    body = memoryview(data)[8 + length :]
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        start, end = entry["data_offsets"]
        dtype = _dtype(entry["dtype"])
        if not 0 <= start <= end <= len(body) or end - start != dtype.itemsize * math.prod(entry["shape"]):
            raise DamagedBundleError(f"{path}: {name} does not fit its data")
        arrays[name] = np.frombuffer(body[start:end], dtype=dtype).reshape(entry["shape"])
    return arrays


def _dtype(name: str) -> Any:
    if name not in _DTYPES:
        raise DamagedBundleError(f"unknown dtype {name} in the weights")
    return _named_dtype(_DTYPES[name])


def _named_dtype(name: str) -> Any:
    if name.startswith(("bfloat", "float8")):
        import ml_dtypes

        return np.dtype(getattr(ml_dtypes, name))
    return np.dtype(name)


def _postprocess(path: Path) -> Any:
    scope: dict[str, Any] = {"__name__": "postprocess", "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), scope)
    return scope["postprocess"]
