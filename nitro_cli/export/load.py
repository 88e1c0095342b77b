"""Running an exported bundle, with the standard library, numpy and jax alone.

This file is nitro's own loader and is copied into every bundle as `load.py`, so that a bundle runs where nitro is not
installed:

    from load import load_bundle
    bundle = load_bundle("path/to/bundle")
    outputs = bundle(image=images)
"""

import contextlib
import dataclasses
import errno
import hashlib
import json
import math
import os
import stat
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
    if not isinstance(path, str | os.PathLike):
        raise BundleError(f"{path!r:.60} is no path of a bundle: it is a {type(path).__name__}")
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
    manifest = read_bundle_manifest(root)
    try:
        check_sealed(root, manifest)
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedBundleError(f"{root / MANIFEST} is not as an export writes it: {error!r}") from None
    return manifest


def bundle_info(path: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Manifest and provenance of a bundle; the files are not verified.

    Raises:
        BundleError: there is no bundle, or one of the two cannot be read.
    """
    root = Path(path).expanduser()
    manifest = read_bundle_manifest(root)
    try:
        return manifest, _provenance(root)
    except (OSError, ValueError) as error:
        raise DamagedBundleError(f"{root / PROVENANCE} cannot be read: {error}") from None


def _provenance(root: Path) -> dict[str, Any]:
    found = strict_json(read_file(inside(root, PROVENANCE)))
    if not isinstance(found, dict):
        raise ValueError("it is no table of entries")
    return found


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
        self.provenance = bundle_info(path)[1]
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
            return export.deserialize(bytearray(read_file(inside(root, entry["serialized"]))))
    except ImportError:
        pass
    except Exception as error:
        raise BundleError(f"{entry['serialized']} of {root} cannot be read by this jax: {error}") from error
    return _put_together(root, manifest, key, read_file(inside(root, entry["module"])))


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


def read_bundle_manifest(root: Path) -> dict[str, Any]:
    """The manifest of a bundle, its format checked."""
    try:
        manifest = strict_json(read_file(root / MANIFEST))
    except (FileNotFoundError, NotADirectoryError):
        raise NoBundleError(f"{root} is no bundle: it has no {MANIFEST}") from None
    except (ValueError, OSError) as error:
        raise DamagedBundleError(f"{root / MANIFEST} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("kind") != "nitro-bundle":
        raise DamagedBundleError(f"{root / MANIFEST} is no manifest of a bundle")
    if type(manifest.get("format")) is not int or manifest["format"] < 1:
        raise DamagedBundleError(f"{root / MANIFEST} names no format")
    if manifest["format"] > FORMAT:
        raise BundleError(
            f"the bundle has format {manifest['format']} (nitro {manifest.get('nitro')}), this loader reads {FORMAT}"
        )
    problem = _manifest_problem(manifest)
    if problem is not None:
        raise DamagedBundleError(f"{root / MANIFEST} is not as an export writes it: {problem}")
    return manifest


def read_file(path: Path) -> bytes:
    """What a regular file holds; a link is refused, and so are pipes and devices, which would be waited for."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    descriptor = os.open(path, flags)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        return file.read()


def strict_json(content: bytes) -> Any:
    """JSON in UTF-8; a number that is not finite or has more digits than Python reads is a ValueError, as is depth."""
    try:
        return json.loads(content.decode(), parse_constant=_no_number)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no number of JSON")


def _manifest_problem(manifest: dict[str, Any]) -> "str | None":
    """What in a manifest has another form than an export gives it; None when nothing has."""
    for key in ("nitro", "jax", "exported_at", "valid_until", "weights"):
        if not _is_text(manifest.get(key)):
            return f"`{key}` is no text"
    for key in ("postprocess", "patch"):
        if manifest.get(key, "") is not None and not _is_text(manifest.get(key)):
            return f"`{key}` is no text"
    try:
        date.fromisoformat(manifest["valid_until"])
    except ValueError:
        return "`valid_until` is no date"
    platforms, sizes = manifest.get("platforms"), manifest.get("batch_sizes")
    if not isinstance(platforms, list) or not all(map(_is_text, platforms)):
        return "`platforms` is no list of texts"
    if not isinstance(sizes, list) or not all(type(size) is int and 0 < size < 2**31 for size in sizes):
        return "`batch_sizes` is no list of sizes"
    for key in ("inputs", "outputs", "client_inputs", "client_outputs"):
        specs = manifest.get(key)
        if not isinstance(specs, list) or not specs or not all(map(_is_spec, specs)):
            return f"`{key}` is no list of tensors with name, dtype and shape"
    files, programs = manifest.get("files"), manifest.get("programs")
    if not isinstance(files, dict) or not all(_is_text(name) and _is_file(facts) for name, facts in files.items()):
        return "`files` is no table of sizes and digests"
    if not isinstance(programs, dict) or not programs:
        return "`programs` is no table of programs"
    for name, entry in programs.items():
        if name != "any" and not (name.isascii() and name.isdecimal() and 0 < int(name[:10]) < 2**31):
            return f"`programs` holds {name[:40]!r}, which is neither `any` nor a batch size"
        if not isinstance(entry, dict) or not all(_is_text(entry.get(part)) for part in ("serialized", "module")):
            return f"`programs` names no files for {name}"
        if not isinstance(entry.get("facts"), dict):
            return f"`programs` has no facts for {name}"
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= 4096 and "\0" not in value


def _is_spec(spec: Any) -> bool:
    if not isinstance(spec, dict) or not _is_text(spec.get("name")) or not _is_text(spec.get("dtype")):
        return False
    shape = spec.get("shape")
    if (
        not isinstance(shape, list)
        or not 0 < len(shape) <= 64
        or spec["dtype"] not in (*_DTYPES.values(), "complex64", "complex128")
    ):
        return False
    return all(size is None or (type(size) is int and 0 < size < 2**48) for size in shape)


def _is_file(facts: Any) -> bool:
    if not isinstance(facts, dict) or not isinstance(facts.get("sha256"), str):
        return False
    return type(facts.get("bytes")) is int and facts["bytes"] >= 0


def inside(root: Path, name: str) -> Path:
    """The path of a file of the bundle; one that leads outside is refused, links included."""
    pure = PurePosixPath(name)
    if pure.is_absolute() or ".." in pure.parts or "\\" in name or max(map(len, pure.parts), default=0) > 255:
        raise DamagedBundleError(f"{name!r} leads outside the bundle {root}")
    path = root / pure
    if not path.resolve().is_relative_to(root.resolve()):
        raise DamagedBundleError(f"{name!r} leads outside the bundle {root}")
    return path


def check_sealed(root: Path, manifest: dict[str, Any]) -> None:
    """Compare the manifest and every file with the digests written at export."""
    sealed = {key: value for key, value in manifest.items() if key != "seal"}
    if manifest_seal(sealed) != manifest.get("seal"):
        raise DamagedBundleError(f"{root / MANIFEST} was changed after the export")
    used = [manifest["weights"], manifest["postprocess"], manifest["patch"], PROVENANCE, CONFIG, DEVICE]
    used += [entry[part] for entry in manifest["programs"].values() for part in ("serialized", "module")]
    for name in used:
        if name is not None and name not in manifest["files"]:
            inside(root, name)
            raise DamagedBundleError(f"{name} of the bundle {root} has no digest in its {MANIFEST}")
    for name, facts in manifest["files"].items():
        path = inside(root, name)
        try:
            data = read_file(path)
        except FileNotFoundError:
            raise DamagedBundleError(f"{name} is missing from the bundle {root}") from None
        except OSError as error:
            raise DamagedBundleError(f"{name} of the bundle {root} cannot be read: {error.strerror}") from None
        if len(data) != facts["bytes"] or hashlib.sha256(data).hexdigest() != facts["sha256"]:
            raise DamagedBundleError(f"{name} of the bundle {root} is not the file that was exported")


def manifest_seal(manifest: dict[str, Any]) -> str:
    """Digest of a manifest's content, however it is laid out."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a safetensors file: an 8-byte header length, a JSON header, raw little-endian data."""
    data = read_file(path)
    if len(data) < 8:
        raise DamagedBundleError(f"{path} is no safetensors file")
    (length,) = struct.unpack("<Q", data[:8])
    if length > len(data) - 8:
        raise DamagedBundleError(f"{path} is truncated")
    try:
        header = strict_json(data[8 : 8 + length])
    except ValueError:
        raise DamagedBundleError(f"{path} is no safetensors file") from None
    if not isinstance(header, dict):
        raise DamagedBundleError(f"{path} is no safetensors file")
    body = memoryview(data)[8 + length :]
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if not _is_entry(entry):
            raise DamagedBundleError(f"{path}: {name[:100]} has no dtype, shape and place")
        start, end = entry["data_offsets"]
        dtype = _dtype(entry["dtype"])
        if not 0 <= start <= end <= len(body) or end - start != dtype.itemsize * math.prod(entry["shape"]):
            raise DamagedBundleError(f"{path}: {name} does not fit its data")
        arrays[name] = np.frombuffer(body[start:end], dtype=dtype).reshape(entry["shape"])
    return arrays


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, dict) or not isinstance(entry.get("dtype"), str):
        return False
    shape, place = entry.get("shape"), entry.get("data_offsets")
    if not isinstance(shape, list) or not isinstance(place, list) or len(place) != 2 or len(shape) > 64:
        return False
    return all(type(size) is int and 0 <= size < 2**48 for size in [*shape, *place])


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
    exec(compile(read_file(path), str(path), "exec"), scope)
    return scope["postprocess"]
