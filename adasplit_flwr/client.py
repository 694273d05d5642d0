"""AdaSplit's Flower client: trains its part of the network, and uploads activations if picked."""

from __future__ import annotations

import time
from io import BytesIO
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from flwr.app import RecordDict
from flwr.client import NumPyClient
from flwr.common import Scalar

from adasplit_flwr.activation_payload import ActivationBatch, encode_activations
from adasplit_flwr.batches import BatchWalk, Position, Seekable
from adasplit_flwr.client_resume import resume
from adasplit_flwr.dry_run import try_part
from adasplit_flwr.exchange import Progress, apply_gradients, infer, take_batches, take_none
from adasplit_flwr.kept_states import KeptStates
from adasplit_flwr.local_trainer import LocalTrainer
from adasplit_flwr.plans import ExchangePlan, TestPlan
from adasplit_flwr.reply_metrics import exchange_metrics
from adasplit_flwr.split import SplitModel
from adasplit_flwr.weights_payload import (
    SERVER,
    decode_server_part,
    encode_weights,
    load_named,
    named_specs,
)
from zerofl_flwr.errors import PayloadError, SettingsError
from zerofl_flwr.memory import memory_metric
from zerofl_flwr.model_arrays import Array, get_arrays
from zerofl_flwr.threads import use_hardware
from zerofl_flwr.training import Batches, evaluate

PlanType = TypeVar("PlanType", ExchangePlan, TestPlan)


class AdaSplitClient(NumPyClient):
    """A client that trains its part of a cut network by itself (AdaSplit, arXiv 2112.01637).

    Parameters
    ----------
    split : SplitModel
        The cut network. One may serve many clients of a process: a message overwrites all of its
        state. Of its server part only the architecture matters.
    train_batches : Seekable, or iterable of (inputs, labels)
        Such as :class:`adasplit_flwr.ShuffledBatches`, which exchanges of less than an epoch can
        enter anywhere, or a ``DataLoader`` that shuffles; see
        :class:`adasplit_flwr.batches.BatchWalk`.
    validation_batches : iterable of (inputs, labels), optional
        What ``evaluate`` tests on, in a fixed order; without it, evaluating is an error.
    partition_id : int
        Who this client is, usually ``context.node_config["partition-id"]``.
    state : RecordDict
        ``context.state``, where the states of the last two rounds are kept: a server that lost a
        reply goes on from the round before. See :mod:`adasplit_flwr.kept_states`.
    state_dir : Path, optional
        Folder where that is saved instead, for a client that is started again, and for a run that
        is resumed from a checkpoint. `state` then holds the number of the last round only.
    checkpoint_every : int
        Rounds between two checkpoints of the server, 0 for none: the states that the last two name
        stay in the folder as well.
    seed : int
        Seed of the run; order of batches and dropout derive from it, the partition, and the epoch
        or iteration.
    device : str
        ``"cpu"`` or ``"cuda"``.
    threads : int, optional
        CPUs given to this client; None leaves torch's setting alone.
    num_classes : int, optional
        How many classes the labels have; default: as many as the server part has outputs.

    Raises
    ------
    SettingsError
        If `split` is no SplitModel, or there is no such device.

    Notes
    -----
    It answers :class:`strategies.AdaSplit` only, whose plans say what to do.
    """

    def __init__(
        self,
        split: SplitModel,
        train_batches: Batches | Seekable,
        validation_batches: Batches | None = None,
        *,
        partition_id: int,
        state: RecordDict,
        state_dir: Path | None = None,
        checkpoint_every: int = 0,
        seed: int = 0,
        device: str = "cpu",
        threads: int | None = None,
        num_classes: int | None = None,
    ) -> None:
        if not isinstance(split, SplitModel):
            raise SettingsError(
                f"a client's network must be a SplitModel, such as split_sequential makes, not a "
                f"{type(split).__name__}"
            )
        use_hardware(device, threads)
        self.split = split.to(device)
        self.train_batches = train_batches
        self.validation_batches = validation_batches
        self.partition_id = partition_id
        self.kept = KeptStates(
            state, state_dir, partition_id=partition_id, checkpoint_every=checkpoint_every
        )
        self.seed = seed
        self.device = device
        self.num_classes = num_classes

    def get_properties(self, config: dict[str, Scalar]) -> dict[str, Scalar]:
        """Tell the strategy who this client is."""
        return {"partition-id": self.partition_id}

    def get_parameters(self, config: dict[str, Scalar]) -> list[Array]:
        """Return the arrays of the client part, then those of the head, in state_dict order."""
        return [*get_arrays(self.split.client), *get_arrays(self.split.head)]

    def fit(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[list[Array], int, dict[str, Scalar]]:
        """Take one exchange, or end some.

        Returns
        -------
        tuple
            What the plan asks for: a payload of activations, and behind it one of weights; the
            number of samples taken, 0 of a finishing message; and the metrics ``train_loss`` (mean
            contrastive loss per sample, 0.0 without a loss of the client's own), ``train_seconds``,
            ``client_memory_mb`` (peak of the process), ``iterations`` (batches taken),
            ``activation_arrays`` (how many arrays belong to the first payload), and ``round``.

        Raises
        ------
        SettingsError
            If the config holds no plan or a bad one, or the client's state is of another network.
        PayloadError
            If what came is not what the plan says, or of another round or network; or if gradients
            came with weights, which are not those that they belong to.
        ClientFailedError
            If the client's state is lost, there is no data, or training diverges.
        DataError
            If the client's state is damaged or cannot be used.
        """
        plan = _plan_in(config, ExchangePlan)
        if plan.server_round <= plan.state_round:
            raise _wrong_round(plan)
        weights, gradients = _cut(parameters, plan.weight_arrays, plan.gradient_arrays)
        if weights and gradients:
            reason = "gradients came together with weights, which they were not computed for"
            raise PayloadError(reason, sender="server", field="arrays")
        started = time.perf_counter()
        trainer, progress = self._resumed(plan, weights)
        if gradients:
            apply_gradients(trainer, self._walk_from, progress, gradients, plan)
        if plan.finish:
            outcome = take_none(progress)
        else:
            walk = self._walk_from(progress.position)
            outcome = take_batches(trainer, walk, plan, progress.iterations)
        seconds = time.perf_counter() - started
        activations = self._encoded(outcome.activations, plan.server_round, plan.precision)
        trained: list[Array] = []
        if plan.upload_weights:
            trained = encode_weights(trainer.weights(), server_round=plan.server_round)
        progress = outcome.progress
        self.kept.keep(plan, trainer.state() | progress.to_arrays(), progress.iterations)
        metrics = exchange_metrics(
            loss=outcome.loss,
            seconds=seconds,
            memory=memory_metric(),
            iterations=outcome.iterations,
            activation_arrays=len(activations),
            server_round=plan.server_round,
        )
        return [*activations, *trained], outcome.samples, metrics

    def evaluate(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Test the whole network on the validation data, or upload its activations.

        Returns
        -------
        tuple
            At the client: mean loss, number of samples, and ``{"accuracy": share of right
            answers}``. With upload: 0.0, number of samples, ``batches`` (how many), and a payload
            of activations in float32 as the metrics ``payload-0``, ``payload-1``, ..., each the
            ``.npy`` bytes of one array.

        Raises
        ------
        SettingsError, PayloadError, ClientFailedError, DataError
            As :meth:`fit`; SettingsError also if this client has no validation data.
        """
        if self.validation_batches is None:
            raise SettingsError("this client was given no validation data to evaluate on")
        plan = _plan_in(config, TestPlan)
        if plan.server_round < plan.state_round:
            raise _wrong_round(plan)
        weights, server_part = _cut(parameters, plan.weight_arrays, plan.server_arrays)
        if plan.upload == bool(server_part):
            reason = (
                f"{plan.server_arrays} arrays of a server part came for a test at the "
                f"{'server' if plan.upload else 'client'}"
            )
            raise PayloadError(reason, sender="server", field="arrays")
        self._resumed(plan, weights)
        if plan.upload:
            batches = infer(self.split.client, self.validation_batches, device=self.device)
            metrics: dict[str, Scalar] = {"batches": len(batches)}
            for number, array in enumerate(self._encoded(batches, plan.server_round, "float32")):
                metrics[f"payload-{number}"] = _npy(array)
            return 0.0, sum(len(batch.labels) for batch in batches), metrics
        server = {SERVER: self.split.server}
        specs = named_specs(server)
        came = decode_server_part(server_part, specs, server_round=plan.server_round)
        load_named(server, came, sender="server")
        outcome = evaluate(self.split, self.validation_batches, device=self.device)
        return outcome.loss, outcome.num_examples, {"accuracy": outcome.accuracy}

    def _resumed(
        self, plan: ExchangePlan | TestPlan, weights: list[Array]
    ) -> tuple[LocalTrainer, Progress]:
        """Bring the network to where this client's training stands, and load what came."""
        trainer = LocalTrainer(
            self.split.client,
            self.split.head,
            seed=self.seed,
            partition_id=self.partition_id,
            device=self.device,
        )
        return trainer, resume(trainer, plan, weights, lambda: self.kept.find(plan))

    def _walk_from(self, position: Position) -> BatchWalk:
        return BatchWalk(
            self.train_batches, position, seed=self.seed, partition_id=self.partition_id
        )

    def _encoded(
        self, batches: list[ActivationBatch], server_round: int, precision: str
    ) -> list[Array]:
        if not batches:
            return []
        if self.num_classes is None:
            shape = batches[0].activations.shape[1:]
            example = next(self.split.server.parameters(), torch.zeros(()))
            zeros = torch.zeros(2, *shape, dtype=example.dtype)
            self.num_classes = try_part(self.split.server, "server", zeros).shape[1]
        return encode_activations(
            batches, server_round=server_round, num_classes=self.num_classes, precision=precision
        )


def _plan_in(config: dict[str, Scalar], plan_type: type[PlanType]) -> PlanType:
    plan = plan_type.from_config(config)
    if plan is None:
        raise SettingsError(
            "the message holds no plan of AdaSplit: this client needs the strategy AdaSplit at the "
            "server"
        )
    return plan


def _wrong_round(plan: ExchangePlan | TestPlan) -> PayloadError:
    reason = (
        f"a message of round {plan.server_round} came for a client whose state is that of round "
        f"{plan.state_round}"
    )
    return PayloadError(reason, sender="server", field="round")


def _cut(arrays: list[Array], first: int, second: int) -> tuple[list[Array], list[Array]]:
    """Cut a message's arrays where the first payload ends."""
    if min(first, second) < 0 or len(arrays) != first + second:
        reason = f"the plan announces {first} + {second} arrays, {len(arrays)} came"
        raise PayloadError(reason, sender="server", field="arrays")
    return arrays[:first], arrays[first:]


def _npy(array: Array) -> bytes:
    buffer = BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()
