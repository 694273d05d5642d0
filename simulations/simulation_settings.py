"""How a simulation runs: rounds, clients, model, server optimizer, machine."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from simulations.slow import parse_slow
from zerofl_flwr.errors import SettingsError
from zerofl_flwr.naming import unknown_name

ALGORITHMS = ("zerofl", "adasplit", "baseline")
BACKENDS = ("ray", "in-process")
FLOWER_STRATEGIES = ("fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedprox")
STRATEGIES = (*FLOWER_STRATEGIES, "scaffold", "fednova", "alone")
DEFAULT_SERVER_LEARNING_RATES = {"fedadam": 0.01, "fedyogi": 0.01, "fedadagrad": 0.01}


@dataclass(frozen=True)
class SimulationSettings:
    """How long to run, with whom, on what, and where the results go.

    Parameters
    ----------
    algorithm : str
        Method to run: zerofl, adasplit or baseline.
    rounds : int
        Rounds of training.
    clients_per_round : int
        Clients that train in a round, drawn by (seed, round). With client-weights relayed, it is
        one client after the other, whatever this says.
    model : str
        resnet18, femnist_cnn, lenet, digits_cnn, or package.module:function of your own.
    masked : str, optional
        Layers that train sparse, by module name, with commas between; default: everything but the
        input layer, 1x1 convolutions and the last layer; with --paper, the input layer of the two
        small models too.
    strategy : str
        Flower strategy that zerofl wraps, or baseline runs as it is: fedavg, fedavgm, fedadam,
        fedyogi, fedadagrad or fedprox. For baseline also scaffold, fednova, and alone, where each
        client trains by itself.
    server_learning_rate : float, optional
        Learning rate of the server; default: 1 for fedavgm and scaffold, 0.01 for fedadam, fedyogi
        and fedadagrad.
    server_momentum : float
        Momentum of fedavgm.
    server_tau : float
        Adaptivity (tau) of fedadam, fedyogi and fedadagrad.
    proximal_mu : float
        Proximal weight of fedprox.
    evaluate_every : int
        Rounds between two tests, of the global model on the server or of each client's network; the
        last round is always tested.
    fraction_evaluate : float, optional
        Share of clients that test on their validation samples in these rounds; default: 0 for
        zerofl, whose server tests the one model, and 1 for adasplit and baseline. With 0 the server
        of baseline tests the one model too.
    backend : str
        ray, or in-process for tests, notebooks and debugging; flwr run always takes Ray.
    cpus_per_client : int
        CPUs, and so threads, of each simulated client. Under flwr run its threads alone: the
        CPUs come from flwr federation simulation-config.
    gpus_per_client : float
        GPUs of each simulated client. Under flwr run they come from flwr federation
        simulation-config.
    ray_address : str
        Address of a running Ray cluster; not for flwr run. Default: start one on this machine.
    device : str
        Device that clients train on: cpu or cuda. The server of zerofl and baseline tests on it
        too; with a Ray address, where this machine has no such device, on the CPU. That of adasplit
        trains and tests on the CPU always.
    checkpoint_every : int
        Rounds between two checkpoints; the last round is always saved. 0 keeps none, and none of
        what clients keep for themselves (adasplit, scaffold, alone) either, unless state-dir is
        given.
    slow : str, optional
        Clients that train slower than they could, as PARTITION:FACTOR with commas between, such as
        0:2,3:10; for studies of stragglers.
    tensorboard : bool
        Also write the rounds as TensorBoard scalars, into the run's folder (extra: tensorboard).
    """

    algorithm: str = "zerofl"
    rounds: int = 10
    clients_per_round: int = 10
    model: str = "digits_cnn"
    masked: str | None = None
    strategy: str = "fedavg"
    server_learning_rate: float | None = None
    server_momentum: float = 0.9
    server_tau: float = 1e-3
    proximal_mu: float = 0.01
    evaluate_every: int = 1
    fraction_evaluate: float | None = None
    backend: str = "ray"
    cpus_per_client: int = 1
    gpus_per_client: float = 0.0
    ray_address: str | None = None
    device: str = "cpu"
    checkpoint_every: int = 1
    slow: str | None = None
    tensorboard: bool = False

    def __post_init__(self) -> None:
        """Refuse values that cannot run on any machine."""
        for name, choices in (
            ("algorithm", ALGORITHMS),
            ("backend", BACKENDS),
            ("strategy", STRATEGIES),
        ):
            if getattr(self, name) not in choices:
                raise SettingsError(unknown_name(name, getattr(self, name), choices))
        if self.algorithm == "zerofl" and self.strategy not in FLOWER_STRATEGIES:
            raise SettingsError(
                f"strategy is {self.strategy!r}, which is a baseline: zerofl wraps one of "
                f"{', '.join(FLOWER_STRATEGIES)}; for the other, the algorithm is baseline"
            )
        for name in ("rounds", "clients_per_round", "evaluate_every", "cpus_per_client"):
            if getattr(self, name) < 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be at least 1")
        rate = self.server_learning_rate
        for name, value in (("server_learning_rate", rate), ("server_tau", self.server_tau)):
            if value is not None and not (math.isfinite(value) and value > 0):
                raise SettingsError(f"{name} is {value}; it must be a positive number")
        for name in ("proximal_mu", "gpus_per_client", "checkpoint_every"):
            if not 0 <= getattr(self, name) < math.inf:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be a number from 0")
        for name in ("fraction_evaluate", "server_momentum"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise SettingsError(f"{name} is {getattr(self, name)}; it must be in [0, 1]")
        if self.device != "cpu" and not re.fullmatch(r"cuda(:\d+)?", self.device):
            raise SettingsError(f"device is {self.device!r}; it must be cpu or cuda")
        if self.slow is not None:
            parse_slow(self.slow)

    @property
    def evaluating_fraction(self) -> float:
        """Share of clients that test, by the method's default where it is not given."""
        if self.fraction_evaluate is not None:
            return self.fraction_evaluate
        return 0.0 if self.algorithm == "zerofl" else 1.0

    def tests_in(self, server_round: int) -> bool:
        """Say whether networks are tested after a round; 0 is before the first."""
        return server_round % self.evaluate_every == 0 or server_round == self.rounds
