"""The constrained hybrid soft actor-critic with adaptive frequency (CHSAC-AF).

The policy chooses partition and device count, the exact oracle the clock. What departs from the paper is told where it
departs: in `learner`, `losses`, `multipliers`, `temperature`, `quantile_loss` and `replay`.
"""
