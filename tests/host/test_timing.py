"""What all measurements of time share."""

from maskjet.host.timing import percentile, play, rotate


def test_playing_stops_in_time_and_closes():
    def endless():
        try:
            while True:
                yield [1, 2]
        finally:
            closed.append(True)

    closed = []
    counts, fps = play(endless(), budget_s=0.01)
    assert set(counts) == {2}
    assert fps > 0
    assert closed == [True]
    assert play(pair for pair in [("frame", [0]), ("frame", [0, 0, 0])])[0] == [1, 3]


def test_inputs_are_rotated_and_percentiles_are_of_them():
    assert list(rotate([1, 2, 3], 5, start=1)) == [2, 3, 1, 2, 3]
    assert list(rotate([1, 2, 3], 0)) == []
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([*range(100)], 0.99) == 99
