"""Two processes take turns; a difference inside the spread decides nothing."""

import pytest

from loopwright.plans.duel import Duel, is_worth


@pytest.mark.parametrize(
    ("own", "challenger", "outcome"),
    [
        ([], [], "open"),
        ([48.0, 47.0], [70.0, 71.0], "open"),
        ([48.0, 47.0, 50.0], [70.0, 66.0, 71.0], "won"),
        ([48.0, 47.0, 50.0], [48.0, 49.0, 47.0], "lost"),
        ([100.0], [40.0], "lost"),
        ([48.0, 47.0, 60.0], [70.0, 58.0, 71.0], "open"),
        ([48.0, 47.0, 60.0, 50.0] * 2, [70.0, 58.0, 71.0, 66.0] * 2, "won"),
        ([48.0, 47.0, 70.0, 50.0] * 2, [52.0, 50.0, 73.0, 49.0] * 2, "lost"),
        ([48.0] * 7 + [70.0], [52.0] * 7 + [60.0], "won"),
        ([48.0] * 7 + [70.0], [49.0] * 7 + [60.0], "lost"),
        ([50.0] * 3, [51.0] * 3, "open"),
        ([50.0] * 8, [51.0] * 8, "lost"),
    ],
)
def test_a_challenger_wins_beyond_the_spread_or_in_nearly_every_round(
    own: list[float], challenger: list[float], outcome: str
):
    assert Duel(own, challenger).outcome == outcome


def test_a_trial_is_made_only_where_the_rest_of_the_run_pays_for_it():
    assert not is_worth(100.0, start_seconds=20.0)
    assert is_worth(1000.0, start_seconds=20.0)
    assert not is_worth(1000.0, start_seconds=200.0)
