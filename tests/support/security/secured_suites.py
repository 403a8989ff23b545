"""A pytest plugin that runs suites which know nothing of security over SASL_SSL.

    export FLOWSTONE_SUITES_SECURITY=sasl_tls
    python -m pytest -p tests.support.security.secured_suites tests/clients tests/spark

Every embedded broker is then secured, by one authority and with one user. Clients that name no security get the one of
these brokers: the three libraries of Python, Flowstone's own client and commands, Kafka's tools that take
`--command-config`, and Spark's readers and writers. Without the variable the plugin does nothing.
"""

from __future__ import annotations

import functools
import os
import ssl
import tempfile
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiokafka
import aiokafka.admin
import confluent_kafka
import confluent_kafka.admin
import pytest

from flowstone.client.security import ClientSecurity, parse_security, set_default_security
from flowstone.config.properties import format_properties, parse_properties
from flowstone.embedded import broker as embedded
from flowstone.embedded.security import PROTOCOLS, BrokerSecurity
from flowstone.ports.secret_files import write_secret

with warnings.catch_warnings():
    # It reads its schemas, as it is imported, by a call that Python 3.11 calls deprecated.
    warnings.filterwarnings("ignore", "(read|open)_text is deprecated", DeprecationWarning)
    import kafka
    import kafka.admin

VARIABLE = "FLOWSTONE_SUITES_SECURITY"
# Modules and tests that cannot run over a secured connection, with the reason.
LEFT_OUT = {
    "tests/clients/test_versions.py": "records the bytes of the connections",
    "tests/clients/security": "is secured already",
    "tests/clients/test_access": "chooses users by client id",
    "tests/spark/test_security.py": "is secured already",
    "tests/spark/test_batch.py::test_a_bad_option": "names options of security that are wrong",
    "tests/spark/test_exactly_once_on_kafka.py": "uses Kafka's broker",
    "tests/spark/test_cluster.py": "starts a query of its own in another process",
    "tests/spark/test_kills.py": "starts a query of its own in another process",
}
AIOKAFKA = (aiokafka.AIOKafkaProducer, aiokafka.AIOKafkaConsumer, aiokafka.admin.AIOKafkaAdminClient)
_KAFKA_OPTION = "kafka.bootstrap.servers"
# The settings of `added_listener`, once the plugin is installed.
_LISTENER: dict[str, str] = {}


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Install before any conftest imports a client."""
    kind = os.environ.get(VARIABLE, "")
    if not kind:
        return
    if kind not in PROTOCOLS or kind == "none":
        raise pytest.UsageError(f"{VARIABLE}={kind}: expected one of {', '.join(PROTOCOLS)}")
    directory = tempfile.TemporaryDirectory(prefix="flowstone-suites-")
    early_config.add_cleanup(directory.cleanup)
    install(BrokerSecurity(kind, directory.name), kind, directory.name)  # type: ignore[arg-type]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if VARIABLE not in os.environ:
        return
    for item in items:
        if "kafka-python" in item.nodeid:  # it leaves sockets to the garbage collector, which only those of TLS report
            item.add_marker(pytest.mark.filterwarnings("ignore:.*ssl.SSLSocket"))
        for left_out, reason in LEFT_OUT.items():
            if item.nodeid.startswith(left_out):
                item.add_marker(pytest.mark.skip(reason=f"not over SASL_SSL: it {reason}"))


def install(security: BrokerSecurity, kind: str, directory: str) -> None:
    """Secure all embedded brokers that are created from now on, and all clients that name no security."""
    assert embedded.Broker.__init__.__kwdefaults__ is not None
    embedded.Broker.__init__.__kwdefaults__["security"] = kind
    embedded.BrokerSecurity = lambda kind, _: security if kind != "none" else BrokerSecurity("none", "")  # type: ignore
    path = os.path.join(directory, "client.properties")
    write_secret(path, format_properties(security.properties()))
    os.environ["FLOWSTONE_CONFIG"] = path
    _LISTENER.update(security.settings, listeners=f"PLAINTEXT://127.0.0.1:0,{security.protocol}://127.0.0.1:0")
    install_clients()
    _secure_spark({f"kafka.{name}": value for name, value in security.properties().items()})


def added_listener() -> dict[str, str]:
    """Return settings that add a secured listener to a broker that is not an embedded one; none without the plugin."""
    return dict(_LISTENER)


def is_installed() -> bool:
    """Return whether this process, or the one that started it, runs with secured brokers."""
    return VARIABLE in os.environ and "FLOWSTONE_CONFIG" in os.environ


def java_arguments(arguments: Sequence[str]) -> Sequence[str]:
    """Return the arguments of one of Kafka's tools, with the option by which it connects to secured brokers."""
    if not is_installed() or "--bootstrap-server" not in arguments or "--command-config" in arguments:
        return arguments
    after = arguments.index("--bootstrap-server") + 2  # before what some tools call a command
    return [*arguments[:after], "--command-config", os.environ["FLOWSTONE_CONFIG"], *arguments[after:]]


def install_clients() -> None:
    """Have clients of this process that name no security connect with the properties of FLOWSTONE_CONFIG."""
    path = os.environ["FLOWSTONE_CONFIG"]
    properties = parse_properties(Path(path).read_text(encoding="utf-8"), path)
    security = parse_security(properties)
    set_default_security(security)
    librdkafka = security.librdkafka()
    for name in ("Producer", "Consumer"):  # native types, whose initialization cannot be replaced
        setattr(confluent_kafka, name, _secured(getattr(confluent_kafka, name), librdkafka))
    _replace(confluent_kafka.admin.AdminClient, lambda given: {**librdkafka, **given})
    keywords = _keywords(security, properties.get("ssl.truststore.location"))
    for kind in (kafka.KafkaProducer, kafka.KafkaConsumer, kafka.KafkaAdminClient, *AIOKAFKA):
        _add_keywords(kind, keywords)


def _keywords(security: ClientSecurity, trusted: str | None) -> dict[str, Any]:
    """Return what kafka-python and aiokafka take."""
    keywords: dict[str, Any] = {"security_protocol": security.protocol}
    if security.has_tls:
        keywords["ssl_context"] = ssl.create_default_context(cafile=trusted)
    if security.has_sasl:
        login = {"sasl_plain_username": security.username, "sasl_plain_password": security.password}
        keywords |= {"sasl_mechanism": security.mechanism, **login}
    return keywords


def _secured(kind: Any, settings: dict[str, Any]) -> Any:
    class Secured(kind):  # type: ignore[misc]
        def __init__(self, given: dict[str, Any], *arguments: Any, **more: Any) -> None:
            super().__init__({**settings, **given}, *arguments, **more)

    Secured.__name__ = kind.__name__
    return Secured


def _replace(kind: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Change the settings with which objects of the type are initialized."""
    initialize = kind.__init__

    def secured(self: Any, given: dict[str, Any], *arguments: Any, **more: Any) -> None:
        initialize(self, change(given), *arguments, **more)

    kind.__init__ = secured


def _add_keywords(kind: Any, keywords: dict[str, Any]) -> None:
    """Add keyword arguments to those with which objects of the type are initialized."""
    initialize = kind.__init__

    def secured(self: Any, *arguments: Any, **more: Any) -> None:
        initialize(self, *arguments, **{**keywords, **more})

    kind.__init__ = secured


def _secure_spark(options: dict[str, str]) -> None:
    """Have readers and writers that are told brokers also be told how to connect to them."""
    from pyspark.sql.readwriter import DataFrameReader, DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

    from pyspark_flowstone.foreach_batch import direct

    write = direct.write
    direct.write = lambda rows, given: write(rows, {**options, **given})
    for kind in (DataFrameReader, DataFrameWriter, DataStreamReader, DataStreamWriter):
        for name in ("load", "save", "start", "saveAsTable", "toTable"):
            if hasattr(kind, name):
                setattr(kind, name, _told(getattr(kind, name), options))
        kind.option = _noting(kind.option)
        kind.options = _noting(kind.options)


def _noting(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        names = {*more, *(arguments[:1])}
        if _KAFKA_OPTION in names:
            self.has_brokers = True
        if any(str(name).startswith("kafka.security.") for name in names):
            self.has_security = True
        return method(self, *arguments, **more)

    return call


def _told(method: Callable[..., Any], options: dict[str, str]) -> Callable[..., Any]:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        is_told = getattr(self, "has_brokers", False) or _KAFKA_OPTION in more
        if is_told and not getattr(self, "has_security", False):
            self.options(**options)
        return method(self, *arguments, **more)

    return call
