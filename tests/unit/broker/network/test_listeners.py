import pytest

from flowstone.broker.network.listeners import ListenerAddress, advertise, parse_listeners
from flowstone.config import parse_broker_config
from flowstone.errors import ConfigError


def parsed(**settings: str) -> tuple[list[ListenerAddress], dict[str, ListenerAddress]]:
    values = {name.replace("_", "."): value for name, value in settings.items()}
    return parse_listeners(parse_broker_config(values)[0])


def test_each_listener_has_a_name_a_host_and_a_port() -> None:
    listeners, _ = parsed(listeners="inside://127.0.0.1:9092, OUTSIDE://[::1]:0")
    assert listeners == [ListenerAddress("INSIDE", "127.0.0.1", 9092), ListenerAddress("OUTSIDE", "::1", 0)]


def test_clients_are_told_the_advertised_address_of_the_listener_they_came_through() -> None:
    listeners, advertised = parsed(
        listeners="INSIDE://127.0.0.1:9092,OUTSIDE://0.0.0.0:9093",
        advertised_listeners="OUTSIDE://broker.example:19093",
    )
    told = [advertise(listener, advertised) for listener in listeners]
    assert told == [("127.0.0.1", 9092), ("broker.example", 19093)]


@pytest.mark.parametrize("host", ["0.0.0.0", "", "[::]"])
def test_an_address_of_all_interfaces_needs_an_advertised_one(host: str) -> None:
    with pytest.raises(ConfigError, match="every address of this machine"):
        parsed(listeners=f"A://{host}:9092")
    assert parsed(listeners=f"A://{host}:9092", advertised_listeners="A://h:1")[1]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"listeners": "127.0.0.1:9092"}, "NAME://HOST:PORT"),
        ({"listeners": "A://host"}, "NAME://HOST:PORT"),
        ({"listeners": "A://host:99999"}, "there is no port 99999"),
        ({"listeners": "A://host:²"}, "NAME://HOST:PORT"),
        ({"listeners": ","}, "at least one"),
        ({"listeners": "A://h:1,a://h:2"}, "a name of its own"),
        ({"listeners": "A://h:1", "advertised_listeners": "B://h:1"}, "no listener named B"),
        ({"listeners": "A://h:1", "advertised_listeners": "A://0.0.0.0:1"}, "cannot connect"),
        ({"listeners": "A://h:1", "advertised_listeners": "A://h:0"}, "cannot connect"),
    ],
)
def test_addresses_that_make_no_sense_are_refused_with_a_sentence(settings: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parsed(**settings)
