"""Ask nodes which partition they hold."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from logging import WARNING

from flwr.common import Code, GetPropertiesIns
from flwr.common.logger import log
from flwr.server.client_proxy import ClientProxy

from zerofl_flwr.errors import ClientFailedError, SettingsError

# Enough for a first start that downloads data. Flower itself answers for a node that is gone after
# a minute; this bounds the wait for one that is there and hangs. It must not be short: the limit is
# a time of day on the server's clock, and a node whose clock runs ahead of it would be late always.
ANSWER_SECONDS = 600
_WORKERS = 16

Identity = int | ClientFailedError | SettingsError


def ask_partitions(nodes: Sequence[ClientProxy]) -> list[Identity]:
    """Ask nodes for their partition ids, several at a time.

    Parameters
    ----------
    nodes : sequence of ClientProxy
        Whom to ask; each has 600 seconds to answer.

    Returns
    -------
    list
        One item a node, in their order: the partition id; ClientFailedError if the node did not
        answer; SettingsError if it told no usable id. A node that tells none at all goes by its
        node id, with a warning.
    """
    if not nodes:
        return []
    with ThreadPoolExecutor(max_workers=_WORKERS) as executor:
        return list(executor.map(_ask, nodes))


def _ask(node: ClientProxy) -> Identity:
    try:
        result = node.get_properties(GetPropertiesIns({}), timeout=ANSWER_SECONDS, group_id=None)
    except Exception as error:  # whatever it was, the other nodes can go on
        return ClientFailedError(f"node {node.cid} did not tell its properties: {error}")
    identity = result.properties.get("partition-id")
    if result.status.code != Code.OK or identity is None:
        log(
            WARNING,
            "node %s tells no partition-id (its --node-config, or get_properties): it is "
            "known by its node id, and runs with it do not repeat by seed",
            node.cid,
        )
        return int(node.cid)
    if isinstance(identity, bool) or not isinstance(identity, int) or identity < 0:
        return SettingsError(f"node {node.cid} tells partition-id {identity!r}; expected 0, 1, ...")
    return identity
