"""`flowstone cluster unregister`: removes a broker that will not come back from the cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from flowstone.cli.cluster.state import ClusterReader, check
from flowstone.cli.common.clients import DEFAULT_BOOTSTRAP, Bootstrap
from flowstone.cli.common.json_output import JsonOutput, print_document
from flowstone.cli.common.numbers import BROKER_MAX
from flowstone.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


def unregister(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0, max=BROKER_MAX, help="The broker's node id.")],
    json_output: JsonOutput = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
) -> None:
    """Remove a broker from the cluster's metadata for good. It must be stopped and have no replicas."""
    with ClusterReader(bootstrap) as reader:
        answer = reader.ask(UnregisterBrokerRequest(broker_id=broker), UnregisterBrokerResponse)
    check(answer.error_code, answer.error_message)
    if json_output:
        print_document({"unregistered": broker})
    else:
        print(f"broker {broker} is no part of the cluster any more")
