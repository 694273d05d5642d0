"""ZeroFL's Flower client: decode, train sparse, select, encode."""

from __future__ import annotations

import logging

from flwr.common import Scalar

from zerofl_flwr.exchange import Received, read_downlink, write_reply
from zerofl_flwr.follow import apply_plan
from zerofl_flwr.model_arrays import Array, array_names, get_arrays, get_specs, set_arrays
from zerofl_flwr.model_client import ModelClient, training_metrics
from zerofl_flwr.settings import RoundPlan
from zerofl_flwr.sparsify import masked_weight_names

_log = logging.getLogger("zerofl_flwr")


class ZeroFLClient(ModelClient):
    """A client that trains with sparse weights and activations and uploads the top of them.

    Parameters
    ----------
    model : nn.Module
        The model, already through :func:`zerofl_flwr.sparsify`. A plain model trains dense and
        uploads every weight; in a frozen round, those that the server's masks keep.
    *arguments, **options
        Data, training, partition and device, as for :class:`zerofl_flwr.model_client.ModelClient`.

    Raises
    ------
    SettingsError
        If there is no such device.

    Notes
    -----
    Under :class:`strategies.ZeroFL` the round's sparsity, rule and mask ratio come with the
    message. Under any other strategy the client replies with its plain dense weights. Behind the
    mod :func:`zerofl_flwr.sparse_uplink`, which it does not need, it works as without.
    """

    def fit(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[list[Array], int, dict[str, Scalar]]:
        """Train one round and return the payload, the number of samples, and metrics.

        Metrics are ``train_loss`` (mean per sample), ``train_seconds``, and ``client_memory_mb``
        (peak of the process).

        Raises
        ------
        PayloadError
            If the global model cannot be decoded, does not fit, or is another round's.
        SettingsError
            If an entry of the config has a wrong type or value.
        ClientFailedError
            If there is no data or training diverges.
        """
        plan = RoundPlan.from_config(config)
        received = self._receive(parameters, plan)
        outcome = self.train(config, plan.server_round if plan else None)
        return (
            self._reply(plan, received, get_arrays(self.model)),
            outcome.num_examples,
            training_metrics(outcome),
        )

    def evaluate(
        self, parameters: list[Array], config: dict[str, Scalar]
    ) -> tuple[float, int, dict[str, Scalar]]:
        """Test the global model, sparse, on the validation data.

        Returns
        -------
        tuple
            Mean loss, number of samples, and ``{"accuracy": share of right answers}``.
        """
        self._receive(parameters, RoundPlan.from_config(config))
        return self.test()

    def _receive(self, arrays: list[Array], plan: RoundPlan | None) -> Received:
        """Load the global model and set the round's sparsity.

        Everything that an earlier message left in the model is overwritten, so that a process may
        keep one model for all of its clients.
        """
        names = array_names(self.model)
        received = read_downlink(arrays, get_specs(self.model), plan, names=names)
        set_arrays(self.model, received.arrays)
        if plan is None:
            return received
        if masked_weight_names(self.model):
            patterns = {names[position]: where for position, where in received.patterns.items()}
            apply_plan(self.model, plan, patterns if received.encoded else None)
        elif plan.sparsity:
            _log.warning(
                "client %d trains and uploads dense: its model did not go through sparsify(), but "
                "the round's sparsity is %g",
                self.partition_id,
                plan.sparsity,
            )
        return received

    def _reply(
        self, plan: RoundPlan | None, received: Received, trained: list[Array]
    ) -> list[Array]:
        # A frozen model that is no payload has been through the mod, which kept the positions: it
        # alone can write the values there.
        if plan is None or (plan.frozen and not received.encoded):
            return trained
        names, masked = array_names(self.model), set(masked_weight_names(self.model))
        # Where masks are frozen the server takes values there, whatever this client masks.
        positions = [p for p, name in enumerate(names) if name in masked or p in received.patterns]
        return write_reply(plan, received, trained, positions, names=names)
