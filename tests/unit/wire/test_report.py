import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.energy import EnergyScope, EnergySource, GpuEnergy, HostEnergy, NodeReport, QualityFlag
from slurm_energy.domain.ids import ClusterName, DecisionId, GpuTypeName, GpuUuid, JobId, NodeName
from slurm_energy.errors import WireError
from slurm_energy.wire.report import (
    ReportBatch,
    batch_fields,
    decode_report,
    decode_reports,
    encode_batch,
    encode_report,
)

GPU = GpuEnergy(
    gpu_uuid=GpuUuid("GPU-1f2e"),
    gpu_name="NVIDIA A100-SXM4-80GB",
    gpu_type=GpuTypeName("a100-sxm4-80gb"),
    joules=1234.5,
    reason=None,
    source=EnergySource.COUNTER,
    scope=EnergyScope.GPU,
    coverage_seconds=10.0,
    flags=(QualityFlag.SOURCES_DISAGREE, QualityFlag.RESCUED),
    counter_joules=1234.5,
    polled_joules=900.0,
    asked_clock_mhz=1275,
    applied_clock_mhz=1275,
    observed_clock_mhz=1270.5,
    default_clock_mhz=1410,
    utilisation=0.97,
)
UNKNOWN = GpuEnergy(
    gpu_uuid=GpuUuid("GPU-2"),
    gpu_name="",
    gpu_type=None,
    joules=None,
    reason="no start reading",
    source=EnergySource.NONE,
    scope=EnergyScope.MIG_ESTIMATE,
    coverage_seconds=0.0,
)
REPORT = NodeReport(
    cluster=ClusterName("lab"),
    job_id=JobId(7),
    restart_count=1,
    node=NodeName("n1"),
    user_id=1000,
    partition="a100",
    decision_id=DecisionId("abcdef0123"),
    started_at_seconds=1_800_000_000.25,
    ended_at_seconds=1_800_000_010.5,
    time_scale=60.0,
    gpus=(GPU, UNKNOWN),
    host=HostEnergy(joules=None, reason="no RAPL", coverage_seconds=0.0, flags=(QualityFlag.NODE_SHARED,)),
    exit_code=137,
    events=("rescued after 9 minutes", 'quote " and \u2028 and <b>'),
)


def test_report_comes_back_as_it_went() -> None:
    assert decode_report(json.loads(json.dumps(encode_report(REPORT)))) == REPORT


def test_batch_comes_back_as_it_went() -> None:
    assert decode_reports(batch_fields(encode_batch([encode_report(REPORT)]))) == ReportBatch(reports=(REPORT,))
    assert decode_reports(batch_fields(encode_batch([]))) == ReportBatch(reports=())


def changed(path: list[Any], value: object) -> Any:
    document = json.loads(json.dumps(encode_report(REPORT)))
    target = document
    for step in path[:-1]:
        target = target[step]
    target[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (["job_id"], 0),
        (["job_id"], "7"),
        (["job_id"], True),
        (["job_id"], 7.0),
        (["cluster"], ""),
        (["cluster"], "a\nb"),
        (["node"], "../x"),
        (["decision_id"], "$(id)"),
        (["restart_count"], -1),
        (["started_at_seconds"], -1.0),
        (["started_at_seconds"], None),
        (["time_scale"], 0),
        (["surprise"], 1),
        (["events"], ["x" * 5000]),
        (["events"], [1]),
        (["exit_code"], 1 << 40),
        (["partition"], "\x00"),
        (["partition"], "\ud800"),
        (["gpus"], {}),
        (["gpus"], [{}]),
        (["gpus", 0, "gpu_uuid"], "GPU-2"),
        (["gpus", 0, "joules"], -1.0),
        (["gpus", 0, "joules"], 1e30),
        (["gpus", 0, "joules"], 10_000_000.0),
        (["gpus", 0, "joules"], None),
        (["gpus", 0, "joules"], True),
        (["gpus", 0, "source"], "guess"),
        (["gpus", 0, "scope"], []),
        (["gpus", 0, "flags"], ["unheard_of"]),
        (["gpus", 0, "gpu_type"], "A100; DROP"),
        (["gpus", 0, "utilisation"], 97),
        (["gpus", 0, "asked_clock_mhz"], 99_999),
        (["gpus", 1, "reason"], None),
        (["host", "joules"], -5),
        (["host", "extra"], 1),
    ],
)
def test_malformed_member_is_refused(path: list[Any], value: object) -> None:
    with pytest.raises(WireError):
        decode_report(changed(path, value))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        '{"format":2,"reports":[]}',
        '{"format":1,"reports":{}}',
        '{"format":1,"reports":[NaN]}',
        '{"format":1,"reports":[' + "1" * 5000 + "]}",
        "[" * 100_000,
        '{"format":1,"reports":[{"job_id":1e400}]}',
        b"\xff\xfe",
    ],
)
def test_text_that_is_no_batch_is_refused(text: str) -> None:
    with pytest.raises(WireError):
        decode_reports(batch_fields(text))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)


@given(st.sampled_from(sorted(encode_report(REPORT))), json_values)
def test_any_value_anywhere_is_taken_or_refused_and_nothing_else(key: str, value: object) -> None:
    document = encode_report(REPORT)
    document[key] = value
    with suppress(WireError):
        decode_report(document)


@given(st.sampled_from(sorted(GpuEnergy.__dataclass_fields__)), json_values)
def test_any_gpu_member_is_taken_or_refused_and_nothing_else(key: str, value: object) -> None:
    document = encode_report(REPORT)
    gpus = document["gpus"]
    assert isinstance(gpus, list)
    gpus[0][key] = value
    with suppress(WireError):
        decode_report(document)
