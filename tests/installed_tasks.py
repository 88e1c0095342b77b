"""A distribution that declares tasks, laid into a folder as pip would: metadata with entry points, and its module."""

from __future__ import annotations

from pathlib import Path

MODULE = '''
"""Tasks of a test; nothing here imports JAX before it computes."""

from nitro_cli import Mean
from nitro_cli.experiment import Device, Hook, Host
from nitro_cli.tasks import Task, register_task


@register_task("soft")
class Soft(Task):
    """Classes with label smoothing."""

    classes: int = 3
    smoothing: Device[float] = 0.0
    """The share of a target that is spread over all classes."""
    target: str = "y"
    note: Host[str] = ""

    def loss(self, outputs, *, target):
        import jax
        import jax.numpy as jnp

        wanted = jax.nn.one_hot(target, self.classes) * (1 - self.smoothing) + self.smoothing / self.classes
        return -jnp.mean(jnp.sum(wanted * jax.nn.log_softmax(outputs), axis=-1))

    def metrics(self, outputs, *, target):
        return {"acc": Mean((outputs.argmax(-1) == target).sum(), target.size)}

    def hooks(self):
        return {
            "loss": Hook(self.loss, {"target": self.target}),
            "metrics": Hook(self.metrics, {"target": (self.target, "label")}),
        }


@register_task("soft", version=2)
class Softer(Soft):
    """The second version, which another field came with."""

    margin: float = 0.0
'''


def install_tasks(folder: Path) -> Path:
    """Write the distribution `soft-tasks` into `folder`, which is to be put on the import path."""
    info = folder / "soft_tasks-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: soft-tasks\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[nitro.tasks]\nsoft = soft_tasks:Soft\nsoft@2 = soft_tasks:Softer\n")
    (folder / "soft_tasks.py").write_text(MODULE)
    return folder
