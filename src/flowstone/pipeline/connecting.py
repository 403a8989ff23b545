"""A pipeline's connection to brokers with encryption and a login.

The secrets are in a client's properties file. The model has its path, and an address that carries what the file says
(`SecuredBootstrap`) and shows none of it. Spark is given the path alone: the source and the sink read the file in the
driver and send its content to the tasks with their own objects, so that no plan, log or state of a pipeline has it.
"""

from __future__ import annotations

from dataclasses import replace

from flowstone.client.security import SecuredBootstrap, secured_by, security_of
from flowstone.errors import ConfigError
from flowstone.pipeline.errors import PipelineError
from flowstone.pipeline.model import PipelineModel


def connected(model: PipelineModel, bootstrap: str = "", config: str = "") -> PipelineModel:
    """Return the model with the address and the properties file that are given, or else those that it declares.

    Raises PipelineError, without any secret, if the file is unusable.
    """
    servers, file = bootstrap or model.bootstrap, config or model.config
    if not file:
        return replace(model, bootstrap=servers)
    path = str(model.directory / file)
    try:
        return replace(model, bootstrap=secured_by(path, servers), config=path)
    except ConfigError as error:
        raise PipelineError(f"config: {error}") from None


def spark_options(model: PipelineModel) -> dict[str, str]:
    """Return the options of Spark's source and sink by which they reach the broker."""
    options = {"kafka.bootstrap.servers": str(model.bootstrap)}
    return options | {"configFile": model.config} if isinstance(model.bootstrap, SecuredBootstrap) else options


def librdkafka_options(model: PipelineModel) -> dict[str, str]:
    """Return the properties of librdkafka by which it reaches the broker. They have the secrets."""
    try:
        return {"bootstrap.servers": str(model.bootstrap), **security_of(model.bootstrap).librdkafka()}
    except ConfigError as error:
        raise PipelineError(f"config: {error}") from None
