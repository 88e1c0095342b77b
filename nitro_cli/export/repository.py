"""The state of a git work tree, so that an artefact can be traced to the sources it was made from."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nitro_cli.errors import ConfigError, warn
from nitro_cli.text import user_path

__all__ = ["DIFF", "PATCH", "git_provenance", "repository_facts"]

DIFF = "git_diff"
"""The entry of a backend's own provenance that is a patch, and is written beside the artefact."""

PATCH = "working-tree.patch"
_SECONDS = 60
_NO_WORK_TREE = "not a git repository"
_DIFF = (
    "-c", "diff.noprefix=false", "-c", "diff.mnemonicPrefix=false", "-c", "core.safecrlf=false",
    "diff", "--binary", "--full-index", "--no-ext-diff", "--no-textconv", "--no-color", "--ignore-submodules=none",
    "--src-prefix=a/", "--dst-prefix=b/", "HEAD", "--",
)  # fmt: skip
"""The difference as `git apply` takes it, whatever the user's own git is set to show."""


def repository_facts(backend: Any, root: Path | str | None) -> tuple[dict[str, Any], bytes | None]:
    """What a backend says of the repository that an artefact comes from, and the patch to write beside it.

    Args:
        backend: its own `site_provenance(root)` is asked where it has one, `git_provenance` otherwise.
        root: a folder of the work tree; None collects nothing and says so.

    Returns:
        The facts, and the patch of the tracked files, None on a clean tree.

    Raises:
        ConfigError: the backend's own collector returned no mapping, or a `git_diff` that is neither text nor bytes.
    """
    if root is None:
        return {"repository": "not collected: no provenance_root was given"}, None
    collect = getattr(backend, "site_provenance", git_provenance)
    found = collect(user_path(root))
    if not isinstance(found, Mapping):
        raise ConfigError(
            f"`site_provenance` of the backend {type(backend).__name__} returned {type(found).__name__}",
            fix="return a mapping of names to values",
        )
    facts = dict(found)
    patch = facts.pop(DIFF, None)
    if isinstance(patch, str):
        patch = patch.encode()
    if patch is not None and not isinstance(patch, bytes):
        raise ConfigError(f"`{DIFF}` is {type(patch).__name__}", where=type(backend).__name__, fix="give text or bytes")
    return {**facts, "patch": PATCH if patch else None}, patch or None


def git_provenance(root: Path | str) -> dict[str, Any]:
    """Commit, tree, branch, remote, and whether the work tree differs from the commit.

    Args:
        root: a folder of the work tree.

    Returns:
        The facts; on a dirty tree `git_diff` with the binary patch that turns the commit into it. Untracked files are
        only listed.

    Warns:
        NitroWarning: `root` is not in a git work tree, git refuses the work tree, or git is not installed.
    """
    folder = user_path(root)
    top, refusal = _run_git(folder, "rev-parse", "--show-toplevel")
    if top is None:
        nowhere = _NO_WORK_TREE in refusal
        why = f"{folder} is in no git work tree" if nowhere else f"of {folder} git says: {refusal}"
        warn(f"the artefact names no commit: {why}")
        return {"repository": "none: no git work tree" if nowhere else "none: git refused the work tree"}
    folder = Path(top.decode().strip())
    commit = _git(folder, "rev-parse", "HEAD")
    facts: dict[str, Any] = {
        "commit": _text(commit),
        "tree": _text(_git(folder, "rev-parse", "HEAD^{tree}")),
        "branch": _text(_git(folder, "symbolic-ref", "--short", "-q", "HEAD")),
        "remote": _without_secret(_text(_git(folder, "config", "--get", "remote.origin.url"))),
    }
    patch = _git(folder, *_DIFF) if commit is not None else None
    listed = _git(folder, "ls-files", "--others", "--exclude-standard", "-z") or b""
    untracked = sorted(name.decode(errors="replace") for name in listed.split(b"\0") if name)
    facts["dirty"] = bool(patch) or bool(untracked)
    facts["untracked"] = untracked
    if patch:
        facts[DIFF] = patch
    if patch is None and commit is not None:
        warn(f"git could not compare {folder} with its commit")
        facts["dirty"] = "unknown: git diff failed"
    return facts


def _git(folder: Path, *words: str) -> bytes | None:
    return _run_git(folder, *words)[0]


def _run_git(folder: Path, *words: str) -> tuple[bytes | None, str]:
    """What git answers, None where it refuses; then its reason and its remedy in one line."""
    command = ["git", "-C", str(folder), "-c", "core.quotepath=off", *words]
    try:
        done = subprocess.run(
            command, capture_output=True, check=False, timeout=_SECONDS, env={**os.environ, "LC_ALL": "C"}
        )
    except OSError as error:
        return None, f"it cannot be started ({error.strerror})"
    except subprocess.TimeoutExpired:
        return None, f"nothing within {_SECONDS} s"
    if done.returncode == 0:
        return done.stdout, ""
    return None, " ".join(done.stderr.decode(errors="replace").removeprefix("fatal: ").split())


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace").strip() or None


def _without_secret(url: str | None) -> str | None:
    """A remote without the user and password that may stand in it, and without the folders of this machine."""
    if url is not None and (url.startswith("file:") or Path(url).is_absolute()):
        return f"a local repository, {Path(url).name}"
    if url is None or "://" not in url:
        return url
    scheme, rest = url.split("://", 1)
    host = rest.split("/", 1)
    return f"{scheme}://{'/'.join([host[0].rpartition('@')[2], *host[1:]])}"
