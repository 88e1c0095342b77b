"""Which commands there are: the one table that help, completion and dispatch read without importing any of them."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["COMMANDS", "SECTIONS", "Entry", "visible"]

SECTIONS = ("Train and use", "Look", "Registry", "Keep", "Machine and projects")


@dataclass(frozen=True)
class Entry:
    """One command.

    Args:
        help: one line, shown by `nitro --help`.
        section: the heading it stands under.
        module: the module below `nitro_cli.cli.commands` that holds it.
        function: the function in it; empty for a group.
        reports: whether it takes `--json`.
        group: the subcommands, by name.
    """

    help: str
    section: str = ""
    module: str = ""
    function: str = "run"
    reports: bool = True
    group: dict[str, Entry] = field(default_factory=dict)


def _sub(help: str, function: str, *, reports: bool = True) -> Entry:
    return Entry(help, function=function, reports=reports)


COMMANDS: dict[str, Entry] = {
    "train": Entry("Train an experiment.", SECTIONS[0], "train"),
    "resume": Entry("Continue a run from its own configuration.", SECTIONS[0], "resume"),
    "validate": Entry("Metrics of the val split.", SECTIONS[0], "validate"),
    "evaluate": Entry("Metrics of a split.", SECTIONS[0], "evaluate"),
    "predict": Entry("Run the forward on new data, batch by batch.", SECTIONS[0], "predict"),
    "export": Entry("Write an artefact that runs without nitro.", SECTIONS[0], "export"),
    "profile": Entry("Where a run's time goes, and a trace of some of its steps.", SECTIONS[0], "profile"),
    "render": Entry("Draw samples, or what the model makes of them, to files.", SECTIONS[0], "render"),
    "runs": Entry("Runs and their checkpoints.", SECTIONS[1], "runs"),
    "history": Entry("A run's metrics per epoch.", SECTIONS[1], "history"),
    "plot": Entry("Draw a run's metrics to a file.", SECTIONS[1], "plot"),
    "compare": Entry("Configurations and results of runs, differences first.", SECTIONS[1], "compare"),
    "list": Entry("Experiments and presets found.", SECTIONS[2], "list"),
    "show": Entry("Fields of an experiment: kind, type, value, origin.", SECTIONS[2], "show"),
    "presets": Entry(
        "Check, show, compare and create presets.",
        SECTIONS[2],
        "presets",
        group={
            "check": _sub("Validate every preset of every experiment found.", "check"),
            "show": _sub("A preset, with what it inherits.", "show"),
            "diff": _sub("What differs between two presets.", "diff"),
            "new": _sub("Write a preset with the overrides given.", "new"),
        },
    ),
    "average": Entry("Average checkpoints of a run into one record.", SECTIONS[3], "average"),
    "checkpoint": Entry(
        "Look into, verify and delete checkpoints.",
        SECTIONS[3],
        "checkpoint",
        group={
            "info": _sub("Metadata of a checkpoint, without its arrays.", "info"),
            "verify": _sub("Sizes and digests of every file of a checkpoint.", "verify"),
            "prune": _sub("Delete checkpoints that a selection does not keep.", "prune"),
        },
    ),
    "bundle": Entry(
        "Look into, verify and run an exported bundle.",
        SECTIONS[3],
        "bundle",
        group={
            "info": _sub("What a bundle takes and gives, and where it comes from.", "info"),
            "verify": _sub("Digests of every file of a bundle.", "verify"),
            "run": _sub("Run a bundle on an .npz.", "run"),
        },
    ),
    "smoke": Entry("One tiny run of experiments and presets, end to end.", SECTIONS[4], "smoke"),
    "devices": Entry("The devices JAX sees.", SECTIONS[4], "devices"),
    "cache": Entry(
        "The program cache.",
        SECTIONS[4],
        "cache",
        group={
            "info": _sub("Where the program cache is and what it holds.", "info"),
            "clear": _sub("Empty the program cache.", "clear"),
        },
    ),
    "doctor": Entry("Check the installation.", SECTIONS[4], "doctor"),
    "new": Entry("Write a plugin project: package, experiment, presets, tests.", SECTIONS[4], "new"),
}


def visible() -> dict[str, list[tuple[str, str]]]:
    """The commands per section, as (name, help)."""
    sections: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
    for name, entry in COMMANDS.items():
        sections[entry.section].append((name, entry.help))
    return {section: rows for section, rows in sections.items() if rows}
