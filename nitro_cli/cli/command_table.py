"""Which commands there are: the one table that help, completion and dispatch read without importing any of them."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["COMMANDS", "SECTIONS", "CommandEntry", "visible_commands"]

SECTIONS = ("Train and use", "Look", "Registry", "Keep", "Machine and projects")


@dataclass(frozen=True)
class CommandEntry:
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
    group: dict[str, CommandEntry] = field(default_factory=dict)


def _sub(help: str, function: str, *, reports: bool = True) -> CommandEntry:
    return CommandEntry(help, function=function, reports=reports)


COMMANDS: dict[str, CommandEntry] = {
    "train": CommandEntry("Train an experiment.", SECTIONS[0], "train"),
    "resume": CommandEntry("Continue a run from its own configuration.", SECTIONS[0], "resume"),
    "validate": CommandEntry("Metrics of the val split.", SECTIONS[0], "validate"),
    "evaluate": CommandEntry("Metrics of a split.", SECTIONS[0], "evaluate"),
    "predict": CommandEntry("Run the forward on new data, batch by batch.", SECTIONS[0], "predict"),
    "analyze": CommandEntry("What predictions are worth: metrics, classes, mistakes, parts.", SECTIONS[0], "analyze"),
    "calibrate": CommandEntry("Fit a calibrator of probabilities, and report it.", SECTIONS[0], "calibrate"),
    "abstain": CommandEntry("Choose which decisions are sure enough to be taken.", SECTIONS[0], "abstain"),
    "export": CommandEntry("Write an artefact that runs without nitro.", SECTIONS[0], "export"),
    "profile": CommandEntry("Where a run's time goes, and a trace of some of its steps.", SECTIONS[0], "profile"),
    "render": CommandEntry("Draw samples, or what the model makes of them, to files.", SECTIONS[0], "render"),
    "runs": CommandEntry("Runs and their checkpoints.", SECTIONS[1], "runs"),
    "history": CommandEntry("A run's metrics per epoch.", SECTIONS[1], "history"),
    "plot": CommandEntry("Draw a run's metrics to a file.", SECTIONS[1], "plot"),
    "compare": CommandEntry("Configurations and results of runs, differences first.", SECTIONS[1], "compare"),
    "list": CommandEntry("Experiments and presets found.", SECTIONS[2], "list"),
    "show": CommandEntry("Fields of an experiment: kind, type, value, origin.", SECTIONS[2], "show"),
    "presets": CommandEntry(
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
    "average": CommandEntry("Average checkpoints of a run into one record.", SECTIONS[3], "average"),
    "checkpoint": CommandEntry(
        "Look into, verify and delete checkpoints.",
        SECTIONS[3],
        "checkpoint",
        group={
            "info": _sub("Metadata of a checkpoint, without its arrays.", "info"),
            "verify": _sub("Sizes and digests of every file of a checkpoint.", "verify"),
            "prune": _sub("Delete checkpoints that a selection does not keep.", "prune"),
        },
    ),
    "bundle": CommandEntry(
        "Look into, verify and run an exported bundle.",
        SECTIONS[3],
        "bundle",
        group={
            "info": _sub("What a bundle takes and gives, and where it comes from.", "info"),
            "verify": _sub("Digests of every file of a bundle.", "verify"),
            "run": _sub("Run a bundle on an .npz.", "run"),
        },
    ),
    "tokenizer": CommandEntry(
        "Train, look into and try tokenizers.",
        SECTIONS[3],
        "tokenizer",
        group={
            "train": _sub("Train a tokenizer on text files.", "train"),
            "info": _sub("Ids, specials and digest of a tokenizer.", "info"),
            "encode": _sub("The ids of a text.", "encode"),
            "decode": _sub("The text of ids.", "decode"),
        },
    ),
    "smoke": CommandEntry("One tiny run of experiments and presets, end to end.", SECTIONS[4], "smoke"),
    "devices": CommandEntry("The devices JAX sees.", SECTIONS[4], "devices"),
    "cache": CommandEntry(
        "The program cache.",
        SECTIONS[4],
        "cache",
        group={
            "info": _sub("Where the program cache is and what it holds.", "info"),
            "clear": _sub("Empty the program cache.", "clear"),
        },
    ),
    "doctor": CommandEntry("Check the installation.", SECTIONS[4], "doctor"),
    "new": CommandEntry("Write a plugin project: package, experiment, presets, tests.", SECTIONS[4], "new"),
}


def visible_commands() -> dict[str, list[tuple[str, str]]]:
    """The commands per section, as (name, help)."""
    sections: dict[str, list[tuple[str, str]]] = {section: [] for section in SECTIONS}
    for name, entry in COMMANDS.items():
        sections[entry.section].append((name, entry.help))
    return {section: rows for section, rows in sections.items() if rows}
