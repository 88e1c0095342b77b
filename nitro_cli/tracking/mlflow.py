"""MLflow runs, through its client: no global state, no active run."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any

from nitro_cli.errors import ConfigError, warn
from nitro_cli.installation import import_extra
from nitro_cli.text import json_ready, message_of
from nitro_cli.tracking.metric_line import finite_metrics
from nitro_cli.tracking.names import TrackerNames, tracker_name

__all__ = ["MLflowAdapter"]

_ALLOW_FILES = "MLFLOW_ALLOW_FILE_STORE"
_BATCH = 1000
_BATCH_PARAMS = 100
_FLUSH_SECONDS = 10.0
_LONGEST_NAME = 200  # MLflow takes 250, and a tag or a file adds to it
_NOT_A_NAME = re.compile(r"[^\w\-. /]")
_STATUS = {"completed": "FINISHED", "early_stop": "FINISHED", "requested": "KILLED", "error": "FAILED"}


class MLflowAdapter:
    """Scalars as `<context>/<metric>`, arrays and other values as JSON artefacts, parameters as parameters.

    Metrics are sent in batches: at 1,000 values, after 10 seconds, and at the end of every epoch.

    Args:
        experiment: name of the MLflow experiment, created if there is none.
        tracking_uri: server or directory; None is MLflow's own setting.
        run_name: the name shown.
        tags: tags of the run.
    """

    identity = "mlflow"

    def __init__(
        self,
        experiment: str,
        *,
        tracking_uri: str | None = None,
        run_name: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        self.experiment = experiment
        self._library = import_extra("mlflow", use="Logging to MLflow", where="logger")
        self._entities = import_extra("mlflow.entities", use="Logging to MLflow", where="logger")
        self._client = self._open_store(tracking_uri)
        self._tracking_uri = tracking_uri
        self._run_name = run_name
        self._tags = dict(tags or {})
        self._run_id: str | None = None
        self._buffer: list[Any] = []
        self._sent = time.monotonic()
        self._name = TrackerNames("MLflow", _allowed)
        self._step = 0

    def _open_store(self, uri: str | None) -> Any:
        try:
            return self._library.MlflowClient(tracking_uri=uri)
        except Exception as error:
            raise ConfigError(
                f"MLflow cannot use the store {uri or self._library.get_tracking_uri()}",
                where="logger.tracking_uri" + ("" if uri else ", not given: MLflow's own setting"),
                why=message_of(error).strip().split(". ")[0],
                fix=f"for a directory set {_ALLOW_FILES}=true in the environment, without which MLflow 3 refuses one; "
                "stores that need no such word are the address of a server, and `sqlite:///mlflow.db` with "
                "`pip install mlflow` in place of mlflow-skinny",
            ) from error

    @property
    def backend(self) -> Any:
        """The `MlflowClient`."""
        return self._client

    @property
    def run_id(self) -> str | None:
        """The id of the MLflow run, None before anything is logged."""
        return self._run_id

    @property
    def run_url(self) -> str | None:
        """The page of the run, where the tracking server is a web server."""
        uri = self._tracking_uri or self._library.get_tracking_uri()
        if self._run_id is None or not uri.startswith("http"):
            return None
        experiment = self._client.get_run(self._run_id).info.experiment_id
        return f"{uri.rstrip('/')}/#/experiments/{experiment}/runs/{self._run_id}"

    def _run(self) -> str:
        if self._run_id is None:
            found = self._client.get_experiment_by_name(self.experiment)
            experiment = found.experiment_id if found else self._client.create_experiment(self.experiment)
            run = self._client.create_run(experiment, tags=self._tags, run_name=self._run_name)
            self._run_id = run.info.run_id
        return self._run_id

    def log_params(self, params: Mapping[str, Any]) -> None:
        """Log the parameters; MLflow never changes one that is logged, so a changed one is the tag `resumed.<name>`."""
        run = self._run()
        data = self._client.get_run(run).data
        there = data.params
        plain = {self._name(k): _text(v) for k, v in json_ready(params).items()}
        new = [self._entities.Param(k, v) for k, v in plain.items() if k not in there]
        for start in range(0, len(new), _BATCH_PARAMS):
            self._client.log_batch(run, params=new[start : start + _BATCH_PARAMS])
        # Against what was told last, which another resume may have made a tag.
        now = {k: data.tags.get(f"resumed.{k}", v) for k, v in there.items()}
        changed = {k: v for k, v in plain.items() if k in now and now[k] != v}
        for key, value in changed.items():
            self._client.set_tag(run, f"resumed.{key}", value)
        if changed:
            warn(f"MLflow keeps the first value of {', '.join(changed)}; the new values are tags `resumed.<name>`.")

    def log_metrics(self, metrics: Mapping[str, Any], *, step: int, epoch: int, context: str) -> None:
        """Queue scalars, at the step; arrays are written as an artefact `<context>/<metric>/<step>.json`."""
        run = self._run()
        self._step = max(self._step, step)
        now = int(time.time() * 1000)
        metric = self._entities.Metric
        for name, value in finite_metrics(metrics).items():
            key = self._name(tracker_name(context, name))
            if isinstance(value, bool | int | float):
                self._buffer.append(metric(key, float(value), now, step))
            else:
                self._client.log_dict(
                    run, json_ready({"step": step, "epoch": epoch, "value": value}), f"{key}/{step}.json"
                )
        due = len(self._buffer) >= _BATCH or time.monotonic() - self._sent > _FLUSH_SECONDS
        if due or context != "train":
            self._flush()

    def _flush(self) -> None:
        while self._buffer:
            self._client.log_batch(self._run(), metrics=self._buffer[:_BATCH])
            del self._buffer[:_BATCH]
        self._sent = time.monotonic()

    def log_other(self, key: str, value: Any) -> None:
        """Write the value as an artefact: text as `<key>.txt`, other things as `<key>.json`."""
        if isinstance(value, str):
            self._client.log_text(self._run(), value, f"{self._name(key)}.txt")
        else:
            self._client.log_dict(self._run(), json_ready({"value": value}), f"{self._name(key)}.json")

    def log_tags(self, tags: Any) -> None:
        """Set tags: a mapping as it is, others as empty tags of their names."""
        named = tags if isinstance(tags, Mapping) else dict.fromkeys([tags] if isinstance(tags, str) else tags, "")
        for key, value in named.items():
            self._client.set_tag(self._run(), self._name(str(key)), value)

    def log_confusion(self, matrix: Any, labels: Sequence[Any], *, epoch: int) -> None:
        """Write the matrix as an artefact `confusion/epoch-<epoch>.json`."""
        line = json_ready({"epoch": epoch, "labels": list(labels), "matrix": matrix})
        self._client.log_dict(self._run(), line, f"confusion/epoch-{epoch:04d}.json")

    def finish(self, status: str) -> None:
        """Send what is queued and end the run."""
        self._flush()
        self._client.set_terminated(self._run(), _STATUS.get(status, "FINISHED"))

    def state(self) -> dict[str, Any]:
        """The run's id, after sending what is queued."""
        self._flush()
        return {"run_id": self._run(), "names": self._name.state()}

    def reattach(self, state: Any) -> None:
        """Continue the MLflow run."""
        self._run_id = str(state["run_id"])
        self._name.load_state(state.get("names", {}))
        self._client.update_run(self._run_id, status="RUNNING")


def _allowed(name: str) -> str:
    """The nearest name that MLflow takes: it also serves as a path below a directory."""
    parts = [part if part.strip(".") else "_" for part in _NOT_A_NAME.sub("_", name).split("/")]
    return "/".join(parts)[:_LONGEST_NAME]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else str(value)
