from flowstone.replication.lease import Lease


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_there_is_no_lease_before_the_first_renewal():
    assert not Lease(Clock()).holds()


def test_a_lease_runs_out_by_itself():
    clock = Clock()
    lease = Lease(clock)
    lease.extend(104.0)
    assert lease.holds()
    clock.now_s = 104.0
    assert not lease.holds()


def test_a_renewal_that_comes_late_shortens_nothing():
    lease = Lease(Clock())
    lease.extend(110.0)
    lease.extend(105.0)
    lease._monotonic.now_s = 109.0  # type: ignore[attr-defined]
    assert lease.holds()


def test_listeners_hear_only_of_a_lease_that_had_run_out():
    clock, heard = Clock(), []
    lease = Lease(clock)
    lease.on_regained(lambda: heard.append(clock.now_s))
    lease.extend(104.0)
    lease.extend(106.0)
    clock.now_s = 110.0
    lease.extend(109.0)
    lease.extend(114.0)
    assert heard == [100.0, 110.0]


def test_a_lease_that_was_given_up_holds_again_after_a_renewal():
    lease = Lease(Clock())
    lease.extend(110.0)
    lease.end()
    assert not lease.holds()
    lease.extend(105.0)
    assert lease.holds()


def test_the_only_broker_has_its_lease_for_ever():
    lease = Lease.forever()
    assert lease.is_forever
    assert lease.holds()


def test_how_long_a_lease_holds_is_known():
    clock = Clock()
    lease = Lease(clock)
    lease.extend(104.0)
    assert lease.left_s == 4.0
    clock.now_s = 105.0
    assert lease.left_s == -1.0
    assert Lease.forever().left_s > 1e300


def test_a_renewal_that_is_over_when_it_arrives_does_not_wake_listeners():
    clock, heard = Clock(), []
    lease = Lease(clock)
    lease.on_regained(lambda: heard.append(clock.now_s))
    lease.extend(99.0)
    lease.extend(100.0)
    assert heard == []
    lease.extend(101.0)
    assert heard == [100.0]
