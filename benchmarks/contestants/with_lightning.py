"""PyTorch Lightning: a module, a `DataLoader` that gathers whole batches, `Trainer.fit`, CSV logger, no bar."""

from __future__ import annotations

import logging
import tempfile
import warnings
from typing import Any

import lightning
import numpy as np
import torch
from lightning.pytorch.loggers import CSVLogger
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from .jobs import Job
from .torch_models import adam, cross_entropy, model_of, tensors
from .watch import Watch

__all__ = ["fit"]


class _Module(lightning.LightningModule):
    def __init__(self, job: Job) -> None:
        super().__init__()
        self.model = model_of(job)

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        x, y = batch
        loss = cross_entropy(self.model(x), y)
        self.log("loss", loss, on_step=True, on_epoch=True)
        return loss

    def configure_optimizers(self) -> Any:
        return adam(self.model)


class _Watching(lightning.Callback):
    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        self._watch.begin()

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, index: int) -> None:
        self._watch.first()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        self._watch.end(float(trainer.callback_metrics["loss_epoch"]))


def fit(job: Job, data: dict[str, np.ndarray], epochs: int, watch: Watch) -> None:
    """Train."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(0)
    dataset = TensorDataset(*tensors(job, data))
    batches = BatchSampler(RandomSampler(dataset), job.batch, drop_last=True)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = lightning.Trainer(
            accelerator="cpu",
            max_epochs=epochs,
            logger=CSVLogger(folder),
            callbacks=[_Watching(watch)],
            default_root_dir=folder,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(_Module(job), DataLoader(dataset, sampler=batches, batch_size=None))
