"""Training of the network of option outcomes: sites, the loss, and that the served arrays say what torch says."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("torch_geometric")

from slurm_energy.learning.outcomes.sites import random_site  # noqa: E402
from slurm_energy.learning.outcomes.training import (  # noqa: E402  # needs torch
    OutcomeModel,
    graph_data,
    outcome_loss,
    pinball,
    site_graph,
    trained,
)
from slurm_energy.policy.gnn.outcomes.graph import option_graph, run_graph  # noqa: E402
from slurm_energy.policy.gnn.outcomes.inference import OutcomeNetwork, layer_shapes  # noqa: E402


def test_the_served_arrays_say_what_torch_says() -> None:
    torch.manual_seed(3)
    model = OutcomeModel().eval()
    arrays = model.arrays()
    assert {name: value.shape for name, value in arrays.items()} == layer_shapes()
    for seed in (11, 12):
        site = random_site(seed)
        graph = run_graph(site.runs, site.facts, site.now_seconds)
        options = option_graph(graph, [one.ask for one in site.asked])
        with torch.no_grad():
            clock, time = model(graph_data(graph, options))
        network = OutcomeNetwork(weights=arrays)
        found = network.outcomes(network.encoded(graph), options)
        assert np.allclose(found.clock, clock.numpy(), atol=1e-5)
        assert np.allclose(found.time, time.numpy(), atol=1e-5)


def test_a_site_without_any_run_is_answered() -> None:
    site = random_site(11)
    graph = run_graph((), site.facts, 0.0)
    options = option_graph(graph, [one.ask for one in site.asked[:3]])
    network = OutcomeNetwork(weights=OutcomeModel().arrays())
    assert np.isfinite(network.outcomes(network.encoded(graph), options).clock).all()


def test_a_seed_gives_one_site_with_jobs_of_every_split() -> None:
    one, other = random_site(5), random_site(5)
    assert one.runs == other.runs and list(one.asked) == list(other.asked)
    splits = {asked.split for seed in range(4) for asked in random_site(seed).asked}
    assert splits == {"time", "name", "user"}


def test_names_and_users_that_are_held_out_have_no_run() -> None:
    for seed in range(4):
        site = random_site(seed)
        names, users = {(run.user, run.group) for run in site.runs}, {run.user for run in site.runs}
        for asked in site.asked:
            name = asked.ask.user, asked.ask.group
            assert (name in names) == (asked.split == "time")
            assert (asked.ask.user in users) == (asked.split != "user")


def test_a_lower_clock_of_a_drawn_kind_takes_at_most_what_the_clock_alone_costs() -> None:
    for asked in random_site(8).asked:
        assert all(-1e-9 <= share <= 1.0 + 1e-9 for row in asked.share for share in row)


def test_the_pinball_loss_is_least_at_the_quantile() -> None:
    values = torch.arange(100, dtype=torch.float32)
    losses = [float(pinball(values - guess, 0.9).mean()) for guess in range(100)]
    assert abs(losses.index(min(losses)) - 90) <= 1


def test_a_run_that_was_cut_off_is_no_error_of_a_longer_prediction() -> None:
    data = site_graph(random_site(11))
    data["option"].cut_off[:] = True
    clock = torch.full((len(data["option"].x), 6, 7), 0.5)
    longer = data["option"].log_hours[:, None].expand(-1, 3)
    assert float(outcome_loss(data, clock, longer + 1.0)) == pytest.approx(float(outcome_loss(data, clock, longer)))
    assert float(outcome_loss(data, clock, longer - 1.0)) > float(outcome_loss(data, clock, longer))


def test_training_lowers_the_loss() -> None:
    graphs = [site_graph(random_site(seed)) for seed in (21, 22)]
    before, after = (trained(graphs, rounds=rounds) for rounds in (0, 40))
    with torch.no_grad():
        losses = [sum(float(outcome_loss(graph, *model(graph))) for graph in graphs) for model in (before, after)]
    assert losses[1] < 0.7 * losses[0]
