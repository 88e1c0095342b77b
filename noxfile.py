"""Sessions: `nox -s tests lint types docs bench smoke`."""

from __future__ import annotations

import nox

nox.options.sessions = ["tests", "lint", "types", "docs"]
nox.options.reuse_existing_virtualenvs = True


@nox.session
def tests(session: nox.Session) -> None:
    """Everything but the slow tests; under ten minutes on two cores."""
    session.install(".[test]")
    session.run("python", "-m", "pytest", *session.posargs)


@nox.session
def slow(session: nox.Session) -> None:
    """The tests that need minutes: accuracy figures, the long kill matrix."""
    session.install(".[test,savedmodel]")
    session.run("python", "-m", "pytest", "-m", "slow", "-n", "0", *session.posargs)


@nox.session
def lint(session: nox.Session) -> None:
    """Style, and the import contract."""
    session.install("ruff", "import-linter>=2.17", ".")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("lint-imports")


@nox.session
def types(session: nox.Session) -> None:
    """Type hints."""
    session.install(".[test]", "mypy")
    session.run("mypy")


@nox.session
def docs(session: nox.Session) -> None:
    """The documentation, with every warning an error."""
    session.install(".[docs]")
    session.run("mkdocs", "build", "--strict")


@nox.session
def bench(session: nox.Session) -> None:
    """The benchmarks, with the frameworks nitro is compared with; they print tables of ratios and judge nothing."""
    session.install(".[test,bench]")
    session.run("python", "benchmarks/run_all.py", *session.posargs)


@nox.session
def smoke(session: nox.Session) -> None:
    """One tiny real run of every experiment and preset."""
    session.install(".")
    session.run("nitro", "smoke", *session.posargs)
