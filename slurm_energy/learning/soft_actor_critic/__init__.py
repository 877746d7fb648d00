"""The constrained hybrid soft actor-critic with adaptive frequency (CHSAC-AF).

The policy chooses partition and device count, the exact oracle the clock. Departures from the paper are described where
they are made: in `learner`, `multipliers` and `replay`.
"""
