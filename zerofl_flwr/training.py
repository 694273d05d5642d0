"""One client's local training and evaluation: plain functions on a torch model, no Flower."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from zerofl_flwr.errors import ClientFailedError, SelectionError, SettingsError
from zerofl_flwr.naming import unknown_name

LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Batches = Iterable[tuple[torch.Tensor, torch.Tensor]]
OPTIMIZERS = ("sgd", "adam")


@dataclass(frozen=True)
class TrainingSettings:
    """How a client trains over its own data: with SGD (section 4.1 of the ZeroFL paper), or Adam.

    Parameters
    ----------
    optimizer : str
        Optimizer of the clients: sgd, or adam with torch's betas. It starts anew in each round, but
        for the strategy alone, whose clients keep theirs.
    learning_rate : float
        Learning rate of the first round.
    learning_rate_end : float, optional
        Learning rate of the last round, reached exponentially; default: same.
    momentum : float
        Momentum of sgd.
    weight_decay : float
        Weight decay, as part of the gradient.
    batch_size : int
        Samples in a training batch.
    local_epochs : int
        Epochs a client trains in a round.

    Raises
    ------
    SettingsError
        If a value is out of range.
    """

    optimizer: str = "sgd"
    learning_rate: float = 0.1
    learning_rate_end: float | None = None
    momentum: float = 0.0
    weight_decay: float = 0.0
    batch_size: int = 32
    local_epochs: int = 1

    def __post_init__(self) -> None:
        """Refuse values that cannot train."""
        if self.optimizer not in OPTIMIZERS:
            raise SettingsError(unknown_name("optimizer", self.optimizer, OPTIMIZERS))
        rates = [("learning_rate", self.learning_rate)]
        if self.learning_rate_end is not None:
            rates.append(("learning_rate_end", self.learning_rate_end))
        for name, rate in rates:
            if not (math.isfinite(rate) and rate > 0):
                raise SettingsError(f"{name} is {rate}; it must be a positive number")
        if not 0 <= self.momentum < 1:
            raise SettingsError(f"momentum is {self.momentum}; it must be in [0, 1)")
        if self.momentum and self.optimizer == "adam":
            raise SettingsError(f"momentum is {self.momentum}, which only sgd has; adam has betas")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise SettingsError(f"weight_decay is {self.weight_decay}; it must not be negative")
        for name in ("batch_size", "local_epochs"):
            value = getattr(self, name)
            if type(value) is not int or value < 1:
                raise SettingsError(f"{name} is {value!r}; it must be a whole number from 1")

    def learning_rate_at(self, server_round: int, num_rounds: int) -> float:
        """Give the learning rate of a round.

        The paper's ``lr_start * exp((t / T) * ln(lr_end / lr_start))``, with t running from 0 in
        the first round to T in the last, so that both printed rates are reached exactly.

        Parameters
        ----------
        server_round : int
            Round number, from 1.
        num_rounds : int
            Rounds of the whole run.
        """
        if self.learning_rate_end is None or num_rounds <= 1:
            return self.learning_rate
        progress = min(server_round - 1, num_rounds - 1) / (num_rounds - 1)
        if progress == 1:
            return self.learning_rate_end
        ratio = self.learning_rate_end / self.learning_rate
        return self.learning_rate * math.exp(progress * math.log(ratio))


@dataclass(frozen=True)
class TrainingOutcome:
    """What local training did: mean loss per sample, samples seen once, seconds, batches taken."""

    loss: float
    num_examples: int
    seconds: float
    steps: int


@dataclass(frozen=True)
class EvaluationOutcome:
    """Mean loss per sample and share of right answers over ``num_examples`` samples."""

    loss: float
    accuracy: float
    num_examples: int


def seed_of(*parts: int) -> int:
    """Derive one 63-bit seed from several integers, e.g. (seed, round, partition)."""
    words = np.random.SeedSequence([part & 0xFFFFFFFFFFFFFFFF for part in parts]).generate_state(2)
    return (int(words[0]) << 32 | int(words[1])) & 0x7FFFFFFFFFFFFFFF


def train_locally(
    model: nn.Module,
    batches: Batches,
    settings: TrainingSettings,
    *,
    seed: int | None,
    device: str = "cpu",
    proximal_mu: float = 0.0,
    optimizer: torch.optim.Optimizer | None = None,
    correct: Callable[[], None] | None = None,
    loss_function: LossFunction = nn.functional.cross_entropy,
) -> TrainingOutcome:
    """Train ``model`` in place.

    Parameters
    ----------
    model : nn.Module
        Already on ``device``, holding the round's global weights.
    batches : iterable of (inputs, labels)
        One epoch each time it is iterated. Shuffling that draws from torch's global generator is
        repeatable, because that generator is seeded here (and restored afterwards).
    settings : TrainingSettings
        ``learning_rate`` is used as it is: give the round's own.
    seed : int or None
        Seed of this round and client; None leaves torch's global generator alone. On a CPU, the
        same seed, data and number of threads give the same weights bit for bit. On CUDA, cuDNN is
        held to its repeatable convolutions for the time of the call; some other operations of torch
        remain that are not (see ``torch.use_deterministic_algorithms``, which is yours to set).
    device : str
        ``"cpu"`` or ``"cuda"``.
    proximal_mu : float
        Weight of FedProx's penalty ``mu / 2 * |w - w_global|^2``; 0 leaves it out. The penalty is
        in the gradient, and not in the loss that is returned.
    optimizer : torch.optim.Optimizer, optional
        Of the model's parameters, to go on with; default: a new one, as the settings say.
    correct : callable, optional
        Called before each step, when the gradients are there, to change them.
    loss_function : callable
        Mean loss of a batch.

    Raises
    ------
    ClientFailedError
        If there are no samples, or training diverges: the loss of a batch is not finite, or a
        sparse layer meets NaN.
    """
    started = time.perf_counter()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    anchors = [parameter.detach().clone() for parameter in trained] if proximal_mu else None
    if optimizer is None:
        optimizer = new_optimizer(trained, settings)
    model.train()
    loss_sum, samples, steps = 0.0, 0, 0
    try:
        with seeded(seed, device):
            for _ in range(settings.local_epochs):
                for inputs, labels in batches:
                    inputs, labels = inputs.to(device), labels.to(device)
                    optimizer.zero_grad(set_to_none=True)
                    loss = loss_function(model(inputs), labels)
                    loss_sum += _finite(loss) * len(labels)
                    samples += len(labels)
                    loss.backward()  # type: ignore[no-untyped-call]
                    if anchors is not None:
                        _pull_back(trained, anchors, proximal_mu)
                    if correct is not None:
                        correct()
                    optimizer.step()
                    steps += 1
    except (SelectionError, _NotFinite) as error:
        raise ClientFailedError(
            f"training diverged at learning rate {settings.learning_rate}: {error}"
        ) from error
    if samples == 0:
        raise ClientFailedError("there is no training data: the loader gave no batch")
    return TrainingOutcome(
        loss=loss_sum / samples,
        num_examples=samples // settings.local_epochs,
        seconds=time.perf_counter() - started,
        steps=steps,
    )


def new_optimizer(
    parameters: Iterable[nn.Parameter], settings: TrainingSettings
) -> torch.optim.Optimizer:
    """Make the optimizer that the settings ask for."""
    rate, decay = settings.learning_rate, settings.weight_decay
    if settings.optimizer == "adam":
        return torch.optim.Adam(parameters, lr=rate, weight_decay=decay, fused=True)
    return torch.optim.SGD(parameters, lr=rate, momentum=settings.momentum, weight_decay=decay)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Batches,
    *,
    device: str = "cpu",
    loss_function: LossFunction = nn.functional.cross_entropy,
) -> EvaluationOutcome:
    """Test ``model``; sparse layers use their top-K weights here too.

    Raises
    ------
    ClientFailedError
        If there are no samples.
    """
    model.eval()
    loss_sum, correct, samples = 0.0, 0, 0
    for inputs, labels in batches:
        inputs, labels = inputs.to(device), labels.to(device)
        outputs = model(inputs)
        loss_sum += float(loss_function(outputs, labels)) * len(labels)
        correct += int((outputs.argmax(dim=1) == labels).sum())
        samples += len(labels)
    if samples == 0:
        raise ClientFailedError("there is no data to evaluate on: the loader gave no batch")
    return EvaluationOutcome(loss_sum / samples, correct / samples, samples)


class _NotFinite(ArithmeticError):
    """A batch's loss is infinite or NaN."""


def _finite(loss: torch.Tensor) -> float:
    value = float(loss.detach())
    if not math.isfinite(value):
        raise _NotFinite(f"the loss of a batch is {value}")
    return value


def _pull_back(
    parameters: list[nn.Parameter], anchors: list[torch.Tensor], proximal_mu: float
) -> None:
    """Add the gradient of FedProx's penalty."""
    for parameter, anchor in zip(parameters, anchors, strict=True):
        if parameter.grad is not None:
            parameter.grad.add_(parameter.detach() - anchor, alpha=proximal_mu)


@contextmanager
def seeded(seed: int | None, device: str) -> Iterator[None]:
    """Seed what training draws from, hold cuDNN to repeatable work, and restore both afterwards.

    Parameters
    ----------
    seed : int or None
        Seed of torch's global generators, from 0 below 2**63; None leaves everything alone.
    device : str
        ``"cpu"``, or the CUDA device whose generator is seeded as well.
    """
    if seed is None:
        yield
        return
    devices: list[int] = []
    if device.startswith("cuda"):
        index: int | None = torch.device(device).index  # None means the current one
        devices = [torch.cuda.current_device() if index is None else index]
    with torch.random.fork_rng(devices=devices):
        # Not torch.manual_seed: it seeds every accelerator, also those that are not restored.
        torch.default_generator.manual_seed(seed)
        for number in devices:
            torch.cuda.default_generators[number].manual_seed(seed)
        with _repeatable_convolutions() if devices else nullcontext():
            yield


@contextmanager
def _repeatable_convolutions() -> Iterator[None]:
    """Let cuDNN choose no algorithm by timing it and none that adds in any order."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        cudnn.deterministic, cudnn.benchmark = before
