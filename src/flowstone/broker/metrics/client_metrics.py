"""The metrics that clients push to this broker, on `/metrics`: one family, whose labels name client and metric."""

from __future__ import annotations

from flowstone.broker.metrics.exposition import Exposition, label_text
from flowstone.broker.requests.client_telemetry import ClientTelemetry


def write_client_metrics(page: Exposition, telemetry: ClientTelemetry) -> None:
    telemetry.forget_silent()
    clients = telemetry.clients
    page.gauge("flowstone_telemetry_clients", "Clients that push metrics, or may.", len(clients))
    page.counter(
        "flowstone_telemetry_dropped_total",
        "Pushed values that were not kept because their client has too many.",
        telemetry.dropped_count,
    )
    page.gauge(
        "flowstone_client_metric",
        "The last value of a metric that a client has pushed; sums count from its first push.",
        {
            label_text(
                metric=name,
                client_id=client.client_id,
                client_instance_id=instance_id.hex(),
                attributes=",".join(f"{key}={text}" for key, text in attributes),
            ): value
            for instance_id, client in clients.items()
            for (name, attributes), value in client.values.items()
        },
    )
