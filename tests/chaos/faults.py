"""The nine ways in which a cluster is broken, and healed again. Which one comes, to whom and for how long follows from
a seed; the moment within the load does not.

A fault is a function: it strikes, waits for as long as it is to last, and returns when the cause is gone (`heal`), with
a sentence that says what it did. Whether the cluster copes is for others to say.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence

from .cluster import NODE_IDS, ChaosCluster, Node
from .network import CLIENTS, ZOOKEEPER, Namespaces

PAUSE_S_MAX = 15.0
ALL_AT_ONCE_CHANCE = 0.2
CLOCK_BACK_S_MAX = 55 * 60  # records an hour ahead of a broker's clock are refused, as Kafka does
CLOCK_AHEAD_S_MAX = 5 * 24 * 3600

Strike = Callable[[ChaosCluster, random.Random], str]


def pick(cluster: ChaosCluster, chance: random.Random) -> Node:
    """Someone whose loss is felt: mostly a leader, sometimes the controller, sometimes anybody."""
    leaders = [replicas.leader for replicas in cluster.describe().values() if replicas.leader in cluster.nodes]
    roll = chance.random()
    chosen = chance.choice(NODE_IDS)
    if roll < 0.6 and leaders:
        chosen = chance.choice(leaders)
    elif roll < 0.8:
        chosen = max(cluster.controller_id(), NODE_IDS[0])
    return cluster.nodes[chosen]


def _some(cluster: ChaosCluster, chance: random.Random) -> list[Node]:
    """One, or now and then all of them."""
    if chance.random() < ALL_AT_ONCE_CHANCE:
        return list(cluster.nodes.values())
    return [pick(cluster, chance)]


def _names(nodes: Sequence[Node]) -> str:
    return " and ".join(str(node.node_id) for node in nodes)


def kill(cluster: ChaosCluster, chance: random.Random) -> str:
    nodes, down_s = _some(cluster, chance), chance.choice((0.0, 1.0, 5.0))
    for node in nodes:
        node.kill()
    time.sleep(down_s)
    for node in nodes:
        node.start()
    return f"SIGKILL of {_names(nodes)}, down for {down_s} s"


def pause(cluster: ChaosCluster, chance: random.Random) -> str:
    """Shorter than its session or longer; then it finds out, or never does."""
    node, paused_s = pick(cluster, chance), min(1.0 + chance.expovariate(0.3), PAUSE_S_MAX)
    assert node.process is not None
    node.process.pause()
    time.sleep(paused_s)
    if chance.random() < 0.5:
        node.kill()
        node.start()
        return f"pause of {node.node_id} for {paused_s:.1f} s, then SIGKILL"
    node.process.resume()
    return f"pause of {node.node_id} for {paused_s:.1f} s"


def restart(cluster: ChaosCluster, chance: random.Random) -> str:
    node = pick(cluster, chance)
    status = node.terminate()
    assert status == 0, "".join(node.output[-1:])
    node.start()
    return f"clean restart of {node.node_id}"


def cut(cluster: ChaosCluster, chance: random.Random) -> str:
    """Its peers, ZooKeeper and the clients, or some of them, do not hear a broker, or also not the other way."""
    network = cluster.network
    assert isinstance(network, Namespaces)
    victim, cut_s = pick(cluster, chance).node_id, chance.uniform(1.0, 9.0)
    peers = [node_id for node_id in NODE_IDS if node_id != victim]
    others = chance.choice(
        ([*peers, ZOOKEEPER, CLIENTS], [*peers, ZOOKEEPER], peers, peers[:1], [ZOOKEEPER], [ZOOKEEPER, peers[0]])
    )
    way = chance.choice(("to", "from", "to and from"))
    if "to" in way:
        network.cut([victim], others)
    elif CLIENTS not in others:  # ZooKeeper sends from their machine: it can only be cut off the other way
        network.cut([victim], [each for each in others if each == ZOOKEEPER])
    if "from" in way:
        network.cut([each for each in others if each != ZOOKEEPER], [victim])
    time.sleep(cut_s)
    network.heal()
    names = {ZOOKEEPER: "ZooKeeper", CLIENTS: "clients"}
    told = ", ".join(names.get(each, str(each)) for each in others)
    for node in cluster.nodes.values():
        if not node.is_running:
            node.start()
    return f"cut of {victim} {way} {told} for {cut_s:.1f} s"


def lose_zookeeper(cluster: ChaosCluster, chance: random.Random) -> str:
    lost_s = chance.uniform(0.5, 8.0)
    if chance.random() < 0.5:
        cluster.zookeeper.pause()
        time.sleep(lost_s)
        cluster.zookeeper.resume()
        return f"pause of ZooKeeper for {lost_s:.1f} s"
    cluster.zookeeper.kill()
    time.sleep(lost_s)
    cluster.zookeeper.start()
    return f"SIGKILL of ZooKeeper, down for {lost_s:.1f} s"


def fill_disk(cluster: ChaosCluster, chance: random.Random) -> str:
    """While it is full the broker may also be killed: it has to start on it, or say why it cannot."""
    node, full_s = pick(cluster, chance), chance.uniform(1.0, 5.0)
    node.fill_disk()
    time.sleep(full_s)
    is_killed = chance.random() < 0.3
    if is_killed:
        node.kill()
    node.empty_disk()
    if not node.is_running:
        node.start()
    return f"full disk of {node.node_id} for {full_s:.1f} s{', then SIGKILL' if is_killed else ''}"


def fail_disk(cluster: ChaosCluster, chance: random.Random) -> str:
    """The file system turns read-only: the broker gives up by itself, and starts again once the disk is mended."""
    node, down_s = pick(cluster, chance), chance.uniform(3.0, 8.0)
    node.turn_disk_read_only()
    time.sleep(down_s)
    gave_up = not node.is_running
    node.kill()
    node.mend_disk()
    node.start()
    return f"read-only disk of {node.node_id} for {down_s:.1f} s; it {'gave up' if gave_up else 'was killed'}"


def jump_clock(cluster: ChaosCluster, chance: random.Random) -> str:
    """There, and back again: two jumps."""
    node, wrong_s = pick(cluster, chance), chance.uniform(1.0, 4.0)
    by_s = chance.choice((-chance.randint(60, CLOCK_BACK_S_MAX), chance.randint(60, CLOCK_AHEAD_S_MAX)))
    node.set_clock(by_s)
    time.sleep(wrong_s)
    node.set_clock(0)
    return f"clock of {node.node_id} {by_s:+d} s for {wrong_s:.1f} s"


def lose_power(cluster: ChaosCluster, chance: random.Random) -> str:
    nodes, dark_s = _some(cluster, chance), chance.choice((0.0, 1.0, 5.0))
    for node in nodes:
        assert node.process is not None
        node.process.pause()  # all at the same moment
    for node in nodes:
        node.lose_power()
    time.sleep(dark_s)
    for node in nodes:
        node.restore_power()
        node.start()
    return f"power loss of {_names(nodes)}, dark for {dark_s} s"


CLASSES: Mapping[str, Strike] = {
    "kill": kill,
    "pause": pause,
    "restart": restart,
    "network": cut,
    "zookeeper": lose_zookeeper,
    "disk full": fill_disk,
    "disk read-only": fail_disk,
    "clock": jump_clock,
    "power loss": lose_power,
}


def schedule(count: int, chance: random.Random, classes: Sequence[str]) -> list[str]:
    """Each class as often as the others, in no order."""
    chosen = [classes[at % len(classes)] for at in range(count)]
    chance.shuffle(chosen)
    return chosen
