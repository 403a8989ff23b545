import pytest

from flowstone.broker.network.receive_buffers import CLASS_BYTES_MIN, KEPT_BYTES_MAX, BufferPool


def test_a_buffer_is_at_least_as_large_as_asked_and_wastes_at_most_half():
    pool = BufferPool(1 << 30)
    for size in (1, 4096, 4097, 6144, 6145, 100_000, 1_000_000, 3 << 20):
        buffer = pool.take(size)
        assert buffer is not None
        assert size <= len(buffer) <= max(CLASS_BYTES_MIN, 2 * size)


def test_a_freed_buffer_is_used_again():
    pool = BufferPool(1 << 30)
    first = pool.take(1_000_000)
    assert first is not None
    pool.give_back(first)
    assert pool.take(1_000_000) is first


def test_beyond_the_limit_there_is_no_buffer_until_one_is_given_back():
    pool = BufferPool(1 << 20)
    first = pool.take(700_000)
    assert first is not None
    assert pool.take(700_000) is None
    waited = []
    pool.on_available(lambda: waited.append(pool.take(700_000)))
    pool.give_back(first)
    assert waited[0] is not None


def test_a_request_larger_than_the_limit_still_has_space_when_it_is_alone():
    pool = BufferPool(1 << 20)
    assert pool.take(5 << 20) is not None


def test_a_request_that_still_finds_no_space_can_queue_up_again_without_a_loop():
    pool = BufferPool(1 << 20)
    buffers = [pool.take(500_000), pool.take(400_000)]
    tried = []

    def again() -> None:
        tried.append(pool.take(1 << 20))
        if tried[-1] is None:
            pool.on_available(again)

    pool.on_available(again)
    for buffer in buffers:
        assert buffer is not None
        pool.give_back(buffer)
    assert [each is not None for each in tried] == [False, True]


def test_of_those_who_wait_the_smallest_tries_first():
    pool = BufferPool(1 << 20)
    taken = pool.take(1 << 20)
    assert taken is not None
    tried = []
    for size_bytes in (300_000, 100_000, 200_000):
        pool.on_available(lambda size_bytes=size_bytes: tried.append(size_bytes), size_bytes)
    pool.give_back(taken)
    assert tried == [100_000, 200_000, 300_000]


def test_memory_kept_for_reuse_is_bounded():
    pool = BufferPool(1 << 40)
    buffers = [pool.take(8 << 20) for _ in range(20)]
    for buffer in buffers:
        assert buffer is not None
        pool.give_back(buffer)
    assert pool.taken_bytes == 0
    assert sum(len(each) for kept in pool._kept.values() for each in kept) <= KEPT_BYTES_MAX


def test_buffers_that_are_used_again_and_again_are_kept_every_time():
    pool = BufferPool(1 << 30)
    first = pool.take(KEPT_BYTES_MAX // 2)
    assert first is not None
    for _ in range(5):
        pool.give_back(first)
        assert pool.take(KEPT_BYTES_MAX // 2) is first


@pytest.mark.parametrize(
    ("size_bytes", "buffer_bytes"),
    [
        (1, 4096),
        (3072, 4096),
        (4096, 4096),
        (4097, 6144),
        (6144, 6144),
        (6145, 8192),
        (8192, 8192),
        (8193, 12288),
        (3 << 20, 3 << 20),
        ((3 << 20) + 1, 4 << 20),
        (4 << 20, 4 << 20),
        ((4 << 20) + 1, 6 << 20),
    ],
)
def test_buffers_have_the_size_of_a_power_of_two_or_three_quarters_of_it(size_bytes: int, buffer_bytes: int):
    pool = BufferPool(1 << 30)
    buffer = pool.take(size_bytes)
    assert buffer is not None
    assert (len(buffer), pool.taken_bytes) == (buffer_bytes, buffer_bytes)
    pool.give_back(buffer)
    assert pool.taken_bytes == 0


def test_all_buffers_together_are_as_large_as_the_limit():
    pool = BufferPool(3 * 4096)
    buffers = [pool.take(4096) for _ in range(3)]
    assert None not in buffers
    assert pool.take(1) is None
    assert pool.taken_bytes == 3 * 4096


def test_a_buffer_that_still_holds_a_request_is_counted_no_more_and_not_used_again():
    pool = BufferPool(1 << 20)
    first = pool.take(100_000)
    assert first is not None
    pool.give_back(first, is_free=False)
    assert pool.taken_bytes == 0
    second = pool.take(100_000)
    assert second is not None
    assert second is not first


def test_as_much_memory_is_kept_for_reuse_as_the_limit():
    pool = BufferPool(1 << 40)
    buffers = [pool.take(KEPT_BYTES_MAX // 2) for _ in range(3)]
    for buffer in buffers:
        assert buffer is not None
        pool.give_back(buffer)
    again = [pool.take(KEPT_BYTES_MAX // 2) for _ in range(3)]
    assert sum(any(each is buffer for buffer in buffers) for each in again) == 2
    for buffer in again[:2]:
        assert buffer is not None
        pool.give_back(buffer)
    assert pool._kept_bytes == sum(len(each) for kept in pool._kept.values() for each in kept) <= KEPT_BYTES_MAX


def test_the_pool_is_short_while_a_request_waits():
    pool = BufferPool(4096)
    buffer = pool.take(1)
    assert buffer is not None
    assert not pool.is_short
    pool.on_available(lambda: None, 1)
    assert pool.is_short
    pool.give_back(buffer)
    assert not pool.is_short
