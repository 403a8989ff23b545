"""The check of `flowstone doctor` on open transactions, which hold up read_committed consumers."""

from __future__ import annotations

from flowstone.cli.common.text import counted
from flowstone.cli.doctor.checks import Finding, Status
from flowstone.cli.group.tables import duration
from flowstone.cli.txn.broker_link import BrokerLink
from flowstone.cli.txn.hanging import Candidate, open_transactions, with_coordinators
from flowstone.cli.txn.leaders import PartitionLeaders
from flowstone.cli.txn.places import place_text
from flowstone.errors import FlowstoneError
from flowstone.ports.clock import SystemClock

NAME = "transactions"
# An open transaction older than this is reported.
HOLDS_UP_S = 60.0
# More are not examined: each is one element of a request to its leader.
PARTITIONS_MAX = 5000


def check_transactions(bootstrap: str) -> Finding:
    """Check the open transactions of all partitions: bad if one hangs, a warning if one is old."""
    try:
        with BrokerLink(bootstrap) as link:
            leaders = PartitionLeaders(link)
            partitions = leaders.partitions()
            if len(partitions) > PARTITIONS_MAX:
                found = f"not checked, {len(partitions)} partitions are too many"
                return Finding(NAME, Status.GOOD, found, "run `flowstone txn find-hanging --broker N` for each broker")
            limit_s = leaders.max_timeout_ms() / 1000
            candidates = with_coordinators(link, open_transactions(link, partitions))
    except FlowstoneError as error:
        return Finding(NAME, Status.WARNING, f"they cannot be read: {error}")
    return judge(candidates, limit_s, SystemClock().time_ms())


def judge(candidates: list[Candidate], limit_s: float, now_ms: int) -> Finding:
    """Return the finding about these open transactions; none may be open for longer than `limit_s`."""
    hanging = [
        each for each in candidates if not each.is_known and (each.found.producer.idle_s(now_ms) or 0.0) > limit_s
    ]
    if hanging:
        first = place_text(hanging[0].found.partition, hanging[0].found.start_offset)
        told = f"{counted(len(hanging), 'transaction')} of no coordinator; read_committed consumers wait at {first}"
        return Finding(NAME, Status.BAD, told, "see `flowstone txn find-hanging`, then `flowstone txn abort`")
    old = [(each.described.open_s(now_ms) or 0.0, each) for each in candidates if each.is_known and each.described]
    age_s, oldest = max(old, key=lambda pair: pair[0], default=(0.0, None))
    if oldest is not None and age_s > HOLDS_UP_S:
        first = place_text(oldest.found.partition, oldest.found.start_offset)
        told = f"{oldest.transactional_id} is open for {duration(age_s)}; read_committed consumers wait at {first}"
        advice = f"see `flowstone txn describe {oldest.transactional_id}`; stop the producer, or wait for its timeout"
        return Finding(NAME, Status.WARNING, told, advice)
    return Finding(
        NAME, Status.GOOD, f"{counted(len(candidates), 'open one')}, none for longer than {HOLDS_UP_S:.0f} s"
    )
