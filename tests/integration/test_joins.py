"""Joins between two slots: of windows, of intervals, of a whole bounded stream, one behind the other."""

import pytest

from flinkish.common.watermark_strategy import WatermarkStrategy
from flinkish.datastream.join_functions import MapPartitionFunction
from flinkish.datastream.window import TumblingEventTimeWindows

KEYS, RECORDS = 7, 400
BETWEEN = -3, 5


def key(record):
    return record[0]


def timed(env, records):
    """Records (key, number, time), out of order by up to 4."""
    by_time = WatermarkStrategy.for_bounded_out_of_orderness(4).with_timestamp_assigner(lambda record: record[2])
    return env.from_collection(records).assign_timestamps_and_watermarks(by_time)


class Total(MapPartitionFunction):
    def map_partition(self, values):
        yield len(values), sum(value[1] for value in values)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
def test_joins_behind_joins_give_what_nested_loops_give(cluster, collect, backend):
    orders = [(f"k{n % KEYS}", n, n // 3 + (n * 7) % 4) for n in range(RECORDS)]
    payments = [(f"k{n % KEYS}", -n, n // 3 + (n * 5) % 4) for n in range(1, RECORDS)]
    lower, upper = BETWEEN

    env = cluster.get_execution_environment({"state.backend.type": backend})
    env.set_parallelism(2)
    one, other = timed(env, orders), timed(env, payments)
    near = one.key_by(key).interval_join(other.key_by(key)).between(lower, upper).upper_bound_exclusive()
    pairs = near.process(lambda order, payment, ctx: [(order[0], order[1] + payment[1], ctx.get_timestamp())])
    windows = TumblingEventTimeWindows.of(50)
    # The interval join's results have the time of the later record, and none of them is late here.
    counts = pairs.co_group(one).where(key).equal_to(key).window(windows).apply(
        lambda found, alone: [((found or alone)[0][0], len(found) * 1_000 + len(alone))]
    )
    results = collect(counts.key_by(key).full_window_partition().map_partition(Total()))

    windows_of, found = {}, {}
    for order in orders:
        window = order[0], order[2] // 50
        windows_of[window] = windows_of.get(window, 0) + 1
    for order in orders:
        for payment in payments:
            if order[0] == payment[0] and lower <= payment[2] - order[2] < upper:
                window = order[0], max(order[2], payment[2]) // 50
                found[window] = found.get(window, 0) + 1
    expected = {}
    for window in windows_of.keys() | found.keys():
        count, total = expected.get(window[0], (0, 0))
        expected[window[0]] = count + 1, total + found.get(window, 0) * 1_000 + windows_of.get(window, 0)
    assert sorted(results) == sorted(expected.values())
    assert len(results) == KEYS
