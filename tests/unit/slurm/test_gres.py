import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.job import GpuDemand
from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.gres import TresRequest, gpu_demands, gpu_indices, held_gpus, parse_gpus


@pytest.mark.parametrize(
    ("request_", "total"),
    [
        (TresRequest(per_node="gres:gpu:2"), 2),  # --gres=gpu:2
        (TresRequest(per_node="gres:gpu:a100:2"), 2),  # --gres=gpu:a100:2
        (TresRequest(per_job="gres:gpu:4"), 4),  # --gpus=4
        (TresRequest(per_job="gres/gpu:a100:2,gres/gpu:h100:2"), 4),  # --gpus=a100:2,h100:2
        (TresRequest(per_node="gres:gpu:2", nodes_min=2), 4),  # --gpus-per-node=2 -N2
        (TresRequest(per_task="gres:gpu:1", tasks=4), 4),  # --gpus-per-task=1 -n4
        (TresRequest(per_task="gres/gpu=2", tasks=2), 4),  # the same, as 24.11 and newer write it
        (TresRequest(per_socket="gres:gpu:1", nodes_min=2), 2),  # --gpus-per-socket=1 -N2
        (TresRequest(per_node="gres:gpu:4", nodes_min=2), 8),  # -N2 --gres=gpu:4
        (TresRequest(per_node="gres/gpu:1g.10gb:3"), 3),
        (TresRequest(per_node="gpu:a100-sxm4-80gb:8(S:0-1)"), 8),
        (TresRequest(per_node="gres/gpu"), 1),
        (TresRequest(per_node="gres:gpu:a100"), 1),
        (TresRequest(per_node="gres:craynetwork:1,gres:nvme:2,license/matlab:1"), 0),
        (TresRequest(), 0),
    ],
)
def test_every_form_of_a_gpu_request_gives_the_total_of_the_job(request_: TresRequest, total: int) -> None:
    assert sum(demand.count for demand in gpu_demands(request_)) == total


@pytest.mark.parametrize(
    ("text", "count", "slurm_type"),
    [
        ("gpu:3090:1", 1, "3090"),
        ("gres/gpu:3090=4,gres/gpu=4", 4, "3090"),
        ("gres:gpu:2080:2", 2, "2080"),
        ("gpu:3090", 3090, None),  # Slurm's own reading: a count of any type
        ("gpu:3090:no_consume", 1, "3090"),
        ("gpu:tesla:no_consume:2", 2, "tesla"),
        ("gpu:tesla:NO_CONSUME:2(S:0-1)", 2, "tesla"),
        ("gpu:no_consume:4", 4, None),
        ("gpu:2080ti:8(S:0-1)", 8, "2080ti"),
        ("gpu:(null):2(IDX:0-1)", 2, None),
        ("gpu:1g.10gb", 1, "1g.10gb"),
        ("gpu:2g.10gb:3", 3, "2g.10gb"),
        ("gpu:a100-sxm4-80gb:8(S:0-1)", 8, "a100-sxm4-80gb"),
        ("gpu:nvidia_h100_80gb_hbm3_1g.20gb+me:1", 1, "nvidia_h100_80gb_hbm3_1g.20gb+me"),
        ("gpu:a100:1k", 1024, "a100"),
        ("gpu:a100:1KiB", 1024, "a100"),
        ("gpu:a100:2kb", 2000, "a100"),
        ("gpu=2", 2, None),
        ("7696487:2", 2, None),  # how old releases of sacct print what slurmctld knew as gpu
    ],
)
def test_type_and_count_are_told_apart_as_slurm_does(text: str, count: int, slurm_type: str | None) -> None:
    assert parse_gpus(text) == (GpuDemand(count=count, slurm_type=slurm_type),)


@pytest.mark.parametrize("text", ["shard:8", "gres/mps=100", "gres/gpumem=40G", "gres/gpuutil=90", "gres:shard:3090:1"])
def test_what_is_no_whole_gpu_is_passed_over(text: str) -> None:
    assert parse_gpus(text) == ()


def test_types_of_digits_keep_apart() -> None:
    assert held_gpus(["gpu:3090:2(IDX:0-1),gpu:2080:1(IDX:2)", "gpu:3090:1(IDX:0)"]) == (
        GpuDemand(count=3, slurm_type="3090"),
        GpuDemand(count=1, slurm_type="2080"),
    )
    assert gpu_indices("gpu:(null):2(IDX:0,3)") == (0, 3)


def test_both_prefixes_mean_the_same() -> None:
    assert parse_gpus("gres:gpu:a100:2") == parse_gpus("gres/gpu:a100:2") == parse_gpus("gpu:a100:2")


def test_typed_and_untyped_counts_of_accounting_are_not_added() -> None:
    assert parse_gpus("billing=8,cpu=8,gres/gpu:a100=2,gres/gpu=2,mem=4G") == (GpuDemand(count=2, slurm_type="a100"),)


def test_untyped_rest_beside_typed_gpus_of_accounting_is_kept() -> None:
    assert parse_gpus("gres/gpu:a100=2,gres/gpu=3") == (GpuDemand(count=2, slurm_type="a100"), GpuDemand(count=1))


def test_a_total_for_the_job_wins_over_its_own_constraints() -> None:
    request = TresRequest(per_job="gres:gpu:8", per_node="gres:gpu:4", per_task="gres:gpu:1", nodes_min=2, tasks=8)
    assert gpu_demands(request) == (GpuDemand(count=8),)


def test_a_range_of_nodes_gives_a_range_of_gpus() -> None:
    request = TresRequest(per_node="gres:gpu:4", nodes_min=2, nodes_max=4)
    assert gpu_demands(request) == (GpuDemand(count=8, max_count=16),)


def test_a_malleable_request_keeps_both_ends() -> None:
    assert parse_gpus("gres/gpu:2-8") == (GpuDemand(count=2, max_count=8),)


def test_gpus_per_socket_are_bounded_by_all_sockets_asked_for() -> None:
    request = TresRequest(per_socket="gres/gpu:2", sockets_per_node=2)
    assert gpu_demands(request) == (GpuDemand(count=2, max_count=4),)


def test_held_gpus_of_several_nodes_and_types_add_up() -> None:
    detail = ["gpu:h100:2(IDX:0-1),gpu:h200:4(IDX:2-5)", "gpu:h100:1(IDX:0,3),gpu:h200:0(IDX:)"]
    assert held_gpus(detail) == (GpuDemand(count=3, slurm_type="h100"), GpuDemand(count=4, slurm_type="h200"))


@pytest.mark.parametrize(
    ("text", "indices"),
    [
        ("gpu:a100:2(IDX:0-1)", (0, 1)),
        ("gpu:3(IDX:0,2-3)", (0, 2, 3)),
        ("gpu:h100:2(IDX:1,0),gpu:h200:1(IDX:2)", (0, 1, 2)),
        ("nic:1(IDX:7),gpu:a100:1(IDX:3),shard:4(IDX:5)", (3,)),
        ("gres:gpu:1(IDX:4)", (4,)),
        ("gpu:4", ()),
        ("gpu:h100:0(IDX:N/A)", ()),
        ("gpu:a100:4(S:0-1)", ()),
        ("gpu:1(IDX:0-9999999)", ()),
        ("gpu:1(IDX:3-1)", ()),
        ("gpu:1(IDX:,)", ()),
        ("gpu:1(IDX:1--2)", ()),
        ("", ()),
    ],
)
def test_indices_of_held_gpus_are_read_where_slurm_tells_them(text: str, indices: tuple[int, ...]) -> None:
    assert gpu_indices(text) == indices


@given(st.text(alphabet="gpu:a10(IDX-,)S", max_size=60))
def test_any_text_gives_indices_that_a_node_can_have(text: str) -> None:
    indices = gpu_indices(text)
    assert list(indices) == sorted(set(indices))
    assert all(0 <= index <= 1023 for index in indices)


@pytest.mark.parametrize(
    "text",
    ["gpu:a100:two", "gres:gpu:-1", "gpu:a:b:2", "gpu::", "gpu:9999999999", "gpu:8-2", "gpu:$(id):2", "gpu:2000000"],
)
def test_an_unreadable_gpu_request_is_an_error_that_shows_it(text: str) -> None:
    with pytest.raises(ValueRangeError, match="GPU"):
        parse_gpus(text)


@pytest.mark.parametrize("text", ["", "(null)", "N/A", "none", ",,", "cpu=4,mem=62.50G"])
def test_nothing_asked_for_is_nothing(text: str) -> None:
    assert parse_gpus(text) == ()


@given(st.text(max_size=200))
def test_any_text_gives_gpus_or_our_own_error(text: str) -> None:
    try:
        total = sum(demand.count for demand in held_gpus([text]))
    except ValueRangeError:
        return
    assert total >= 0
