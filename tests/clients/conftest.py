"""One broker for all the tests of real clients, the three libraries as parameters, and a topic name per test.

The broker runs in a thread, in a temporary directory: what these tests show is what clients and broker say to each
other, and a process of its own would add nothing to that.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import pytest

from flowstone.embedded import Broker

# The drivers are a package of the tests, and scripts one of the repository: neither is installed.
ROOT = str(Path(__file__).parents[2])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

from scripts.fetch_kafka import FetchError, cache_folder, java_command  # noqa: E402 - after the path is set

from tests.clients.aiokafka_driver import AiokafkaDriver  # noqa: E402
from tests.clients.confluent_driver import ConfluentDriver  # noqa: E402
from tests.clients.driver import IS_CLUSTER, Driver  # noqa: E402
from tests.clients.hunted import HuntedCluster  # noqa: E402
from tests.clients.kafka_python_driver import KafkaPythonDriver  # noqa: E402
from tests.support.security.secured_suites import java_arguments  # noqa: E402

DRIVERS: tuple[type[Driver], ...] = (ConfluentDriver, KafkaPythonDriver, AiokafkaDriver)
AUTO_CREATED_PARTITIONS = 3

JAVA_TIMEOUT_S = 60
# Fast to start, which is most of what such a run costs.
JVM_FLAGS = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

Java = Callable[..., str]

_numbers = count()


@contextmanager
def serving(directory: Path, settings: Mapping[str, str]) -> Iterator[Broker | HuntedCluster]:
    """One broker, or a cluster in its place."""
    with HuntedCluster(directory, settings) if IS_CLUSTER else Broker(settings=settings) as broker:
        yield broker


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | HuntedCluster]:
    with serving(tmp_path_factory.mktemp("cluster"), {"num.partitions": str(AUTO_CREATED_PARTITIONS)}) as broker:
        yield broker


@pytest.fixture(scope="module")
def group_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker | HuntedCluster]:
    """Sessions may be short here: some tests wait for one to end."""
    with serving(tmp_path_factory.mktemp("cluster"), {"group.min.session.timeout.ms": "500"}) as broker:
        yield broker


@pytest.fixture(scope="session")
def drivers(broker: Broker) -> Iterator[dict[str, Driver]]:
    """Every library, by its name."""
    drivers = {kind.name: kind(broker.bootstrap) for kind in DRIVERS}
    yield drivers
    for driver in drivers.values():
        driver.close()


@pytest.fixture(params=[kind.name for kind in DRIVERS])
def client(request: pytest.FixtureRequest, drivers: dict[str, Driver]) -> Driver:
    return drivers[request.param]


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses; the topic is not there yet."""
    for name in {"broker", "group_broker"} & set(request.fixturenames) if IS_CLUSTER else ():
        request.getfixturevalue(name).wait_whole()
    return f"topic-{next(_numbers)}"


@pytest.fixture
def topic(client: Driver, topic_name: str) -> str:
    """A topic of one partition, created by the client under test."""
    client.create_topic(topic_name, 1)
    return topic_name


@pytest.fixture(scope="session")
def java() -> Java:
    """Runs a program out of Kafka's jars and returns what it printed, standard error last.

    Skipped where Java or the jars are not at hand: a test must not need the network.
    """
    try:
        command = java_command()
    except FetchError as error:
        pytest.skip(str(error))
    jars = cache_folder()
    if not jars.is_dir():
        pytest.skip("Kafka's jars are not in the cache; `python scripts/fetch_kafka.py` fetches them")

    def run(program: str, *arguments: str, input: str = "") -> str:
        done = subprocess.run(
            [command, *JVM_FLAGS, "-cp", f"{jars}/*", program, *java_arguments(arguments)],
            input=input,
            capture_output=True,
            text=True,
            timeout=JAVA_TIMEOUT_S,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run
