"""The cost of every option, worked out one by one from the formula, beside the flat and pruned table."""

from dataclasses import dataclass
from itertools import product
from math import inf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_energy.policy.placement import OptionTable, PlaceInfo
from slurm_energy.policy.rules.cost_table import CostTable, PlaceCosts, PricedJob, Prices
from slurm_energy.policy.rules.tables import Bounds

COUNTS = (1, 2, 4)


@dataclass
class Nodes:
    """What a start opens and wakes, by place and count."""

    opened: dict[tuple[int, int], int]
    joules: dict[tuple[int, int], float]

    def opened_nodes(self, place: int, gpus: int) -> int:
        return self.opened[place, gpus]

    def wakeup_joules(self, place: int, gpus: int) -> float:
        return self.joules[place, gpus] if self.opened[place, gpus] else 0.0


@dataclass
class Question:
    """All that a cost depends on."""

    places: list[PlaceInfo]
    seconds: np.ndarray
    watts: np.ndarray
    free_watts: np.ndarray
    job: PricedJob
    prices: Prices
    room: list[int]
    nodes: Nodes

    def parts(self, place: int, count: int, clock: int) -> dict[str, float]:
        """Return the cost of one option by part, as the page of the rule has it."""
        info, prices, units = self.places[place], self.prices, self.job.units
        gpus, seconds = COUNTS[count], float(self.seconds[place, count, clock])
        run, default = units * seconds, units * float(self.seconds[place, count, -1])
        beyond_free = float(self.watts[place, count, clock] - self.free_watts[place, count, clock])
        can_sleep = any(one.node_watts > 0.0 for one in self.places)
        opened = self.nodes.opened_nodes(place, gpus) if can_sleep else 0
        waking = self.nodes.wakeup_joules(place, gpus) if can_sleep else 0.0
        resume = info.resume_seconds if waking > 0.0 else 0.0
        return {
            "energy": run * beyond_free,
            "host": run * (beyond_free * info.host_share + gpus * info.busy_watts),
            "time": prices.time_watts * (run + resume),
            "slowdown": prices.slowdown_joules * ((run + resume) / default - 1.0),
            "share": prices.share * run * gpus * info.node_watts / info.gpus_per_node,
            "opened_nodes": prices.opened_nodes * opened * info.node_watts * (run + info.idle_seconds),
            "waking": prices.waking * waking,
            "scarcity": float(prices.device_watts[place]) * run * gpus,
            "power": prices.power * run * (beyond_free + gpus * info.free_watts),
            "makespan": prices.makespan_watts * max(0.0, run - prices.last_end_seconds),
        }

    @property
    def is_in_bounds(self) -> bool:
        """Whether no bound had to give way but the deadline."""
        bounds = self.job.bounds
        return bounds is None or any(
            self.seconds[one] <= min(bounds.slowdown * self.seconds[one[0], one[1], -1], bounds.limit_seconds_per_unit)
            for one in self.allowed()
        )

    def allowed(self) -> list[tuple[int, int, int]]:
        """Return the options with room inside the bounds; a bound that none keeps gives way."""
        every = [
            (place, count, clock)
            for place, count, clock in product(*(range(size) for size in self.seconds.shape))
            if COUNTS[count] <= self.room[place]
        ]
        bounds = self.job.bounds
        if bounds is None:
            return every
        slow = [one for one in every if self.seconds[one] <= bounds.slowdown * self.seconds[one[0], one[1], -1]]
        for limit in (bounds.deadline_seconds_per_unit, bounds.limit_seconds_per_unit):
            in_time = [one for one in slow if self.seconds[one] <= limit]
            if in_time:
                return in_time
        return every

    def least(self) -> dict[int, dict[str, float]]:
        """Return the parts of the cheapest option of each place with room."""
        found: dict[int, dict[str, float]] = {}
        for place, count, clock in self.allowed():
            parts = self.parts(place, count, clock)
            if place not in found or sum(parts.values()) < sum(found[place].values()):
                found[place] = parts
        return found


def number(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False).map(lambda value: round(value, 3))


@st.composite
def questions(draw: st.DrawFn) -> Question:
    places, clocks = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    shape = (places, len(COUNTS), clocks)
    size = int(np.prod(shape))
    steps = np.array(draw(st.lists(number(0.05, 1.0), min_size=size, max_size=size))).reshape(shape)
    seconds = np.flip(np.cumsum(np.flip(steps, axis=2), axis=2), axis=2)  # a higher clock is faster
    free = np.array(draw(st.lists(number(0.0, 60.0), min_size=size, max_size=size))).reshape(shape)
    watts = free + np.array(draw(st.lists(number(1.0, 400.0), min_size=size, max_size=size))).reshape(shape)
    sleeps = draw(st.booleans())
    infos = [
        PlaceInfo(
            name=f"p{index}",
            partition=f"p{index}",
            device="a100",
            total_gpus=8,
            gpus_per_node=draw(st.sampled_from((1, 2, 4))),
            relative_clocks=tuple((clock + 1) / clocks for clock in range(clocks)),
            free_watts=draw(number(0.0, 60.0)),
            node_watts=draw(number(1.0, 300.0)) if sleeps else 0.0,
            busy_watts=draw(number(0.0, 50.0)),
            idle_seconds=draw(number(0.0, 600.0)),
            resume_seconds=draw(number(0.0, 120.0)),
            host_share=draw(number(0.0, 0.5)),
        )
        for index in range(places)
    ]
    price = st.one_of(st.just(0.0), number(0.0, 4.0))  # J per J
    watts_price = st.one_of(st.just(0.0), number(0.0, 500.0))
    pairs = list(product(range(places), COUNTS))
    return Question(
        places=infos,
        seconds=seconds,
        watts=watts,
        free_watts=free,
        job=PricedJob(
            units=draw(st.sampled_from((1.0, 30.0, 900.0))),
            bounds=draw(
                st.none()
                | st.builds(
                    lambda slowdown, limit, share: Bounds(slowdown, limit, share * limit),
                    number(1.0, 3.0),
                    number(0.05, 5.0),
                    number(0.0, 1.0),
                )
            ),
            spare_watts=inf,
        ),
        prices=Prices(
            time_watts=draw(watts_price),
            slowdown_joules=draw(watts_price.map(lambda value: 100.0 * value)),
            share=draw(price),
            opened_nodes=draw(price),
            waking=draw(price),
            power=draw(price),
            device_watts=np.array([draw(watts_price) for _ in range(places)]),
            makespan_watts=draw(watts_price),
            last_end_seconds=draw(number(0.0, 2_000.0)),
        ),
        room=[draw(st.sampled_from((0, *COUNTS))) for _ in range(places)],
        nodes=Nodes(
            opened={pair: draw(st.integers(0, 2)) for pair in pairs},
            joules={pair: draw(st.sampled_from((0.0, 5_000.0, 60_000.0))) for pair in pairs},
        ),
    )


@settings(max_examples=60)
@given(questions())
def test_the_table_prices_each_place_as_its_cheapest_option_worked_out_alone(asked: Question) -> None:
    table = OptionTable(
        gpu_counts=COUNTS,
        seconds_per_unit=asked.seconds,
        watts=asked.watts,
        free_watts=asked.free_watts,
        joules_per_unit=asked.watts * asked.seconds,
    )
    flat = CostTable(table, PlaceCosts.of(asked.places))
    found = flat.place_costs(
        asked.job,
        asked.prices,
        asked.room,
        asked.nodes,  # type: ignore[arg-type]  # all that is asked of a view
    )
    least = asked.least()
    assert {one.place for one in found} == least.keys()
    totals = [sum(one.parts.values()) for one in found]
    assert totals == pytest.approx(sorted(sum(parts.values()) for parts in least.values()), rel=1e-9, abs=1e-9)
    assert totals == pytest.approx(sorted(totals), rel=1e-9, abs=1e-9), "the cheapest place stands first"
    every_row = np.ones(len(flat._placements), dtype=bool)
    ranked = flat._costs(asked.job, asked.prices, every_row, asked.nodes) * asked.job.units  # type: ignore[arg-type]
    for placement, cost_joules in zip(flat._placements, ranked.tolist(), strict=True):
        parts = asked.parts(placement.place, COUNTS.index(placement.gpus), placement.clock)
        # What is ranked has the whole slowdown, the part only what is beyond 1: the same for every option.
        total = sum(parts.values()) + asked.prices.slowdown_joules
        assert cost_joules == pytest.approx(total, rel=1e-9, abs=1e-9)
    chosen = flat.choose(asked.job, asked.prices, asked.room, asked.nodes)  # type: ignore[arg-type]  # as above
    if least and (asked.job.bounds is None or asked.is_in_bounds):
        assert chosen is not None
        cost = asked.parts(chosen.place, COUNTS.index(chosen.gpus), chosen.clock)
        assert sum(cost.values()) == pytest.approx(totals[0], rel=1e-9, abs=1e-9)
    for one in found:
        every = [asked.parts(one.place, count, one.clock) for count in range(len(COUNTS))]
        assert any(one.parts == pytest.approx(parts, rel=1e-9, abs=1e-6) for parts in every), "each part, not the sum"
