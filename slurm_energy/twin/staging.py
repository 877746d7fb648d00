"""What a job waits for between its start and its first instruction."""


class Staging:
    """Data that a job waits for before it computes."""

    __slots__ = ("joules", "seconds")

    def __init__(self, seconds: float = 0.0, joules: float = 0.0) -> None:
        self.seconds, self.joules = seconds, joules


NO_STAGING = Staging()
