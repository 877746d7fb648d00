"""What the daemon keeps from one job to the next, and puts off until a reply is sent, changes no decision."""

import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from random import Random

import numpy as np
import pytest
from policy_parts import NODE, PARTITION
from test_reuse import ONE_GPU, ROOT, Desk

from slurm_energy.config import Config, PolicyConfig
from slurm_energy.daemon.decide import Decided, Decider, Known, KnownUser
from slurm_energy.daemon.recorder.entries import decision_line
from slurm_energy.domain.cluster import ClusterSnapshot, NodeGpus
from slurm_energy.domain.decision import AnswerDetails, DeferredDetails, OptionCost, PolicyAnswer
from slurm_energy.domain.ids import ClusterName, DecisionId, NodeName, PartitionName
from slurm_energy.domain.job import EnergyOptions, JobRequest
from slurm_energy.domain.plain import to_plain
from slurm_energy.estimation.job_history import JobHistory
from slurm_energy.estimation.run_time import EndedRun, RunTimeModel
from slurm_energy.graph.job_features import MOVING_COLUMNS, QueueFacts, moving_columns, submitted_vector
from slurm_energy.policy.automatic import chosen_policy
from slurm_energy.policy.base import Case, Policy
from slurm_energy.policy.gnn import priced_answers
from slurm_energy.policy.gnn.policy import load_policy
from slurm_energy.policy.gnn.priced_answers import PricedAnswers, PricedRule
from slurm_energy.policy.gnn.serving import PricedPolicy
from slurm_energy.policy.guard import Guard
from slurm_energy.policy.guard.answer import checked_answer
from slurm_energy.policy.placement import PlacementRule
from slurm_energy.policy.registry import create_policy
from slurm_energy.policy.rules.total_cost import TotalCostRule
from slurm_energy.policy.submission.adapter import SubmissionAdapter
from slurm_energy.wire.codec import Message, encode
from slurm_energy.wire.messages import SubmittedFields, decision_reply

NOW = 1_800_000_000.0
JOBS, JOBS_OF_A_SNAPSHOT = 1_000, 25
TYPES = ("a100", "a40", "h100", "v100", "a100", "no-such-type", None)


class EachAnew:
    """The same answers with nothing kept from another job, all of it worked out at once."""

    name = "gnn"

    def __init__(self, answers: PricedAnswers) -> None:
        self._answers, self.version = answers, answers.version

    def decide(self, case: Case) -> PolicyAnswer:
        priced_answers._prepared.clear()
        rule = PricedRule(self._answers.look, self._answers.default_mode, version=self.version)
        rule._is_still = False
        return SubmissionAdapter(self._answers.configured).answer(rule, case)


def random_snapshot(random: Random) -> ClusterSnapshot:
    partitions, nodes = [], []
    for number in range(random.randint(1, 4)):
        name = PartitionName(f"p{number}")
        limit = random.choice((None, 120.0, 6000.0))
        partitions.append(replace(PARTITION, name=name, is_default=number == 0, max_time_minutes=limit))
        types = random.choice(TYPES), random.choice(TYPES)
        for node in range(random.randint(1, 4)):
            gpus = random.randint(1, 8)
            taken = random.choice((0, random.randint(0, gpus)))
            slurm_type = types[node % 2 if random.random() < 0.5 else 0]
            nodes.append(
                replace(
                    NODE,
                    name=NodeName(f"n{number}-{node}"),
                    partitions=(name,),
                    gpus=(NodeGpus(slurm_type=slurm_type, count=gpus, allocated=taken),),
                )
            )
    return ClusterSnapshot(
        cluster=ClusterName("lab"), taken_at_seconds=NOW - 1.0, partitions=tuple(partitions), nodes=tuple(nodes)
    )


def random_job(random: Random) -> SubmittedFields:
    return SubmittedFields(
        user_id=random.choice((0, 1000, 1001)),
        name=random.choice(("known", "short", "other")),
        partitions=random.choice(((), (), (PartitionName("p0"),), (PartitionName("p0"), PartitionName("p1")))),
        time_limit_minutes=random.choice((None, 60.0, 60.0, float(random.randint(1, 8000)))),
        tres_per_node=random.choice(("gres:gpu:1", "gres:gpu:2", "gres:gpu:8", "gres:gpu:a100:1", "")),
        max_slowdown=random.choice((None, 0.02, 0.5, 0.9)),
        deadline=random.choice((None, None, None, str(int(NOW) + 9000))),
        quiet=random.random() < 0.1,
        open=random.choice((None, True, False)),
    )


def random_history(random: Random) -> JobHistory:
    def runs(name: str) -> list[EndedRun]:
        return [
            EndedRun(user=1000, name=name, seconds=random.uniform(30.0, 9000.0)) for _ in range(random.randint(1, 8))
        ]

    return JobHistory(runtimes={(1000, name): RunTimeModel().of_runs(runs(name)) for name in ("known", "short")})


def random_site(random: Random) -> Config:
    base = Config()
    return replace(
        base,
        policy=replace(base.policy, name="auto", min_saving_per_slowdown=random.choice((0.0, 0.3))),
        routing=replace(base.routing, open=random.random() < 0.6, invite=random.random() < 0.7),
    )


def told(decided: Decided) -> tuple[object, ...]:
    """Return all that anybody is told of a decision."""
    replies = (encode(decision_reply(decided.decision, decided.entry, explained=said)) for said in (False, True))
    return (decided, *replies, decision_line(decided.decision, decided.job))


def at_prices() -> Callable[[Config, ClusterSnapshot], tuple[Policy, Policy]]:
    network = load_policy(chosen_policy(Config()).config)
    assert isinstance(network, PricedPolicy)

    def make(_config: Config, snapshot: ClusterSnapshot) -> tuple[Policy, Policy]:
        network.warm_up(snapshot)
        answers = network.detached()
        assert answers is not None
        return answers, EachAnew(answers)

    return make


def by_total_cost() -> Callable[[Config, ClusterSnapshot], tuple[Policy, Policy]]:
    def make(config: Config, _snapshot: ClusterSnapshot) -> tuple[Policy, Policy]:
        config = replace(config, policy=replace(config.policy, name="total-cost"))
        served, at_once = create_policy(config), create_policy(config)
        assert isinstance(at_once, TotalCostRule)
        at_once.explaining = partial(PlacementRule.explaining, at_once)  # type: ignore[method-assign, assignment]
        return served, at_once

    return make


@pytest.mark.slow
@pytest.mark.parametrize("policies_of", [at_prices, by_total_cost])
def test_what_is_kept_and_put_off_changes_no_decision_note_or_record(
    policies_of: Callable[[], Callable[[Config, ClusterSnapshot], tuple[Policy, Policy]]],
) -> None:
    random, differing, explained, policies = Random(11), 0, 0, policies_of()
    for _ in range(JOBS // JOBS_OF_A_SNAPSHOT):
        config, snapshot = random_site(random), random_snapshot(random)

        def decider(asked: Policy, config: Config = config) -> Decider:
            numbers = count()
            return Decider(asked, Guard(config, lambda: DecisionId(f"decision{next(numbers)}")))

        known = Known(snapshot=snapshot, history=random_history(random), user=KnownUser())
        jobs = [random_job(random) for _ in range(JOBS_OF_A_SNAPSHOT)]
        served, anew = map(decider, policies(config, snapshot))
        at_once = [served.decide(job, known, NOW) for job in jobs]  # what is put off is read after the last of them
        for job, decided in zip(jobs, at_once, strict=True):
            assert told(decided) == told(anew.decide(job, known, NOW)), job
            differing += bool(decided.decision.clocks or decided.decision.partitions)
            explained += bool(decided.decision.details.options)
    assert differing > 50
    assert explained > 300


def test_columns_of_a_job_that_is_submitted_are_those_of_many_at_once() -> None:
    random = Random(5)
    for _ in range(200):
        limit, deadline = (
            random.choice((None, random.uniform(1.0, 9e4))),
            random.choice((None, random.uniform(-9e4, 9e4))),
        )
        job = JobRequest(
            user_id=7,
            time_limit_minutes=limit,
            submitted_at_seconds=random.choice((0.0, NOW - random.uniform(0.0, 100.0))),
            options=EnergyOptions(deadline_seconds=None if deadline is None else NOW + deadline),
        )
        facts = QueueFacts(user_shares={7: random.random()})
        nothing, estimate = float("nan"), float("nan") if limit is None else 30.0 * limit
        until = nothing if deadline is None else NOW + deadline
        times = np.array([(job.submitted_at_seconds or NOW, nothing, 0.0, until, estimate)])
        queue = np.array([(0.0, facts.user_shares[7], estimate, 0.0)])
        expected = moving_columns(times, queue, NOW, 0.0)[0]
        assert submitted_vector(job, NOW, facts)[MOVING_COLUMNS].tobytes() == expected.tobytes()


def priced_desk(directory: Path) -> Desk:
    desk = Desk(directory)
    config = chosen_policy(replace(Config(), policy=PolicyConfig(name="auto"))).config
    policy = load_policy(config)
    assert isinstance(policy, PricedPolicy)
    assert desk.state.snapshot is not None
    policy.warm_up(desk.state.snapshot)
    answers = policy.detached()
    assert answers is not None
    desk.state.config, desk.state.decider = config, Decider(answers, Guard(config))
    return desk


def test_a_job_does_not_wait_for_what_explains_its_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk, explain, asked = priced_desk(tmp_path), PricedRule.explained, count()
    monkeypatch.setattr(PricedRule, "explained", lambda *given: (next(asked), explain(*given))[1])
    reply, afterwards = desk.link.answer_now(encode(Message("decide", ONE_GPU)), ROOT)
    assert b" ok\n" in reply
    assert next(asked) == 0, "nothing was explained"
    assert afterwards is not None
    afterwards()
    assert next(asked) == 2, "explained once, when the reply was on its way"
    (line,) = desk.recorded()
    assert line.decision.details.options


def test_a_decision_that_cannot_be_explained_is_recorded_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_asked: object) -> None:
        raise ArithmeticError("no costs")

    desk = priced_desk(tmp_path)
    monkeypatch.setattr(PricedRule, "explained", fail)
    assert desk.decide().verb == "ok"
    (line,) = desk.recorded()
    assert line.decision.details == AnswerDetails()


DETAILS = AnswerDetails(
    options=(OptionCost(partition=PartitionName("a"), parts={"energy": 1.0}),), factors={"time": 2.0}
)


def counted(calls: list[int]) -> Callable[[], AnswerDetails]:
    def make() -> AnswerDetails:
        calls.append(1)
        return DETAILS

    return make


def test_details_that_are_put_off_are_like_those_that_are_not() -> None:
    calls: list[int] = []
    deferred = DeferredDetails(counted(calls))
    checked = checked_answer(PolicyAnswer(details=deferred)).details
    assert calls == []
    assert checked == DETAILS == deferred
    assert deferred != AnswerDetails()
    assert deferred == DeferredDetails(lambda: DETAILS)
    assert to_plain(checked) == to_plain(DETAILS)
    assert (checked.attention, checked.preference) == ({}, {})
    assert type(pickle.loads(pickle.dumps(deferred))) is AnswerDetails
    assert pickle.loads(pickle.dumps(checked)) == DETAILS
    assert calls == [1], "worked out once"
