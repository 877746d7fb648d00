"""The doctor's judgement of nodes and GPU types from what nodes told: each fault named with its fix, none invented."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slurm_energy.cli.doctor.finding import Finding, Verdict, by_severity, fail, ok, several, skip, warn
from slurm_energy.cli.doctor.gpu_checks import GPU_TYPES, ORDER, SAVING, NodeGpuTypes, gpu_type_checks
from slurm_energy.cli.doctor.node_judgement import (
    CLOCKS,
    GPUS,
    NUMBERS,
    REPAIRS,
    SETTINGS,
    SPOOLS,
    VERSIONS,
    NodeJudge,
    findings_of,
)
from slurm_energy.cli.doctor.storage_checks import journal_finding
from slurm_energy.config import parse_config
from slurm_energy.domain.ids import ClusterName, GpuTypeName, NodeName
from slurm_energy.domain.node_status import GpuStatus, NodeStatus, ReceivedStatus, SpoolStatus
from slurm_energy.node import status as node_status_module
from slurm_energy.node.status import hook_patterns, hook_problems
from slurm_energy.slurm.gres import parse_gpus

NOW = 1_800_000_000.0
SPOOL = SpoolStatus(path="/var/spool/slurm-energy", owner_user_id=0, mode=0o700, free_bytes=10**12)
A100, V100_PCIE = GpuTypeName("a100-sxm4-80gb"), GpuTypeName("v100-pcie-16gb")


def gpu(index: int, **changes: Any) -> GpuStatus:
    known = GpuStatus(
        uuid=f"GPU-{index}", index=index, minor_number=index, name="NVIDIA A100-SXM4-80GB", gpu_type=A100,
        position=index, slurm_type="a100", proof="slurmd -G",
    )  # fmt: skip
    return replace(known, **changes)


def status(**changes: Any) -> NodeStatus:
    well = NodeStatus(
        cluster=ClusterName("north"), node=NodeName("n1"), sent_at_seconds=NOW, boot_id="b", hook_version="1.0",
        interpreter="/p", spool=SPOOL, gpus=tuple(gpu(index) for index in range(4)), repaired_at_seconds=NOW - 60.0,
        repair_clean=True,
    )  # fmt: skip
    return replace(well, **changes)


def judged(*statuses: NodeStatus, gpu_count: int = 4) -> dict[str, Finding]:
    judge = NodeJudge(cluster="north", version="1.0", now_seconds=NOW)
    found = [
        one
        for number, each in enumerate(statuses, 1)
        for one in judge.judged(f"n{number}", gpu_count, ReceivedStatus(received_at_seconds=NOW, status=each))
    ]
    return {finding.subject: finding for finding in findings_of(found)}


def test_nodes_in_order_give_no_alarm() -> None:
    findings = judged(status(), status())
    assert {finding.verdict for finding in findings.values()} == {Verdict.OK}
    assert len(findings) == 7


@pytest.mark.parametrize(
    ("changes", "subject", "words", "fix"),
    [
        ({"sent_at_seconds": NOW - 200.0, "repaired_at_seconds": NOW - 230.0}, CLOCKS, "200 s behind", "chrony"),
        ({"sent_at_seconds": NOW + 30.0}, CLOCKS, "30 s ahead", "chrony"),
        ({"cluster": ClusterName("south")}, SETTINGS, "cluster.name is south", "[cluster]"),
        ({"problems": ("x.sh runs /gone, which is not there",)}, SETTINGS, "/gone", "install --role node"),
        ({"spool": replace(SPOOL, owner_user_id=1000)}, SPOOLS, "uid 1000", "chown"),
        ({"spool": replace(SPOOL, mode=0o777)}, SPOOLS, "0777", "chmod 700"),
        ({"spool": replace(SPOOL, free_bytes=1024)}, SPOOLS, "1 KiB left", "make room"),
        ({"spool": replace(SPOOL, waiting_reports=3, oldest_waiting_seconds=7200.0)}, SPOOLS, "2.0 h", "flush"),
        ({"gpus": None, "driver_problem": "NVML: no driver"}, GPUS, "no driver", "nvidia-smi"),
        ({"gpus": (gpu(0), gpu(1), gpu(2))}, GPUS, "the driver shows 3", "nvidia-smi"),
        ({"gpus": tuple(gpu(i, proof="", unproven="it differs") for i in range(4))}, NUMBERS, "differs", "slurmd -G"),
        ({"repaired_at_seconds": None}, REPAIRS, "no repair has run", "repair.timer"),
        ({"repaired_at_seconds": NOW - 7200.0}, REPAIRS, "2.0 h ago", "repair.timer"),
        ({"repair_clean": False, "repair_said": ("GPU-1 refuses",)}, REPAIRS, "GPU-1 refuses", "hook repair"),
    ],
)  # fmt: skip
def test_a_fault_of_one_node_is_named_with_its_fix_and_is_the_only_one(
    changes: dict[str, Any], subject: str, words: str, fix: str
) -> None:
    findings = judged(status(), status(**changes))
    assert findings[subject].verdict is Verdict.FAIL
    assert findings[subject].found.startswith("n2: ") and words in findings[subject].found
    assert fix in findings[subject].fix
    assert {one.verdict for one in findings.values() if one.subject != subject} == {Verdict.OK}


def test_another_version_is_a_warning_and_many_nodes_are_one_line() -> None:
    findings = judged(*[status(hook_version="0.9")] * 40)
    assert findings[VERSIONS].verdict is Verdict.WARN
    assert findings[VERSIONS].found.startswith("n1, n2, n3, n4, n5, n6 and 34 more: slurm-energy 0.9")


def test_minor_numbers_that_are_not_the_drivers_order_are_shown_with_what_proves_the_mapping() -> None:
    moved = status(gpus=tuple(gpu(index, minor_number=7 - index) for index in range(4)))
    finding = judged(moved)[NUMBERS]
    assert finding.verdict is Verdict.OK
    assert "/dev/nvidia7 is the driver's 0" in finding.found and "0 = GPU-0" in finding.found


def test_a_gpu_that_slurm_does_not_count_is_worth_knowing_and_no_fault() -> None:
    more = status(gpus=(*(gpu(index) for index in range(4)), gpu(4, position=None, proof="", slurm_type=None)))
    finding = judged(more)[NUMBERS]
    assert finding.verdict is Verdict.WARN and "Slurm does not count 1 of 5 GPUs: GPU-4" in finding.found


def test_slices_are_more_than_gpus_and_a_node_without_gpus_needs_no_driver() -> None:
    slices = status(gpus=(gpu(0, slurm_type="1g.10gb"),))
    assert judged(slices, gpu_count=7)[GPUS].verdict is Verdict.OK
    bare = status(gpus=None, driver_problem="NVML: no driver")
    assert judged(bare, gpu_count=0)[GPUS].verdict is Verdict.OK


def types(gres: str, gpus: tuple[GpuStatus, ...] | None, gpu_types: dict[str, str] | None = None) -> list[Finding]:
    config = parse_config({"gpu_types": gpu_types or {}}, source="test", environment={})
    told = None if gpus is None else status(gpus=gpus)
    return list(gpu_type_checks(config, [NodeGpuTypes(node="n1", demands=parse_gpus(gres), status=told)]))


V100S = tuple(gpu(i, name="Tesla V100-PCIE-16GB", gpu_type=V100_PCIE, slurm_type="v100") for i in range(2))
ODD = tuple(gpu(i, name="NVIDIA RTX 9999", gpu_type=None, slurm_type="odd") for i in range(2))


@pytest.mark.parametrize(
    ("gres", "gpus", "gpu_types", "verdict", "words", "fix"),
    [
        ("gpu:a100:2", (gpu(0), gpu(1)), {}, Verdict.OK, "a100 is a100-sxm4-80gb, as the drivers show", ""),
        ("gpu:v100:2", V100S, {}, Verdict.FAIL, "taken for v100-sxm2-16gb", '"v100" = "v100-pcie-16gb"'),
        ("gpu:v100:2", V100S, {"v100": "v100-pcie-16gb"}, Verdict.OK, "as the drivers show", ""),
        ("gpu:mystery:2", (gpu(0), gpu(1)), {}, Verdict.FAIL, "not in the catalogue", '"mystery" = "a100-sxm4-80gb"'),
        ("gpu:2", (gpu(0), gpu(1)), {}, Verdict.FAIL, "gpu is not in the catalogue", '"gpu" = "a100-sxm4-80gb"'),
        ("gpu:odd:2", ODD, {}, Verdict.WARN, "RTX 9999 is not in the catalogue", "energy_model/catalog"),
        ("gpu:odd:2", ODD, {"odd": "a40"}, Verdict.FAIL, "but it is taken for a40", "remove odd"),
        ("gpu:a100:2", (gpu(0), V100S[1]), {}, Verdict.FAIL, "stands for different models", "GRES type of its own"),
        ("gpu:mystery:2", None, {}, Verdict.FAIL, "no clock is chosen for it", "CATALOGUE-NAME"),
        ("gpu:a100:2", None, {}, Verdict.OK, "no node has reported what it is", ""),
    ],
)
def test_a_gres_type_is_taken_for_what_the_drivers_show(
    gres: str, gpus: Any, gpu_types: dict[str, str], verdict: Verdict, words: str, fix: str
) -> None:
    (finding,) = [one for one in types(gres, gpus, gpu_types) if one.subject == GPU_TYPES]
    assert (finding.verdict, words in finding.found, fix in finding.fix) == (verdict, True, True), finding


@pytest.mark.parametrize(
    ("gres", "words"),
    [
        (
            "gpu:a100:2",
            "a100 (a100-sxm4-80gb): none with a slowdown of at most 5%: 1260 MHz saves 3.9% for 3.2%",
        ),
        ("gpu:a40:2", "a40: none with a slowdown of at most 5%"),
        ("gpu:t4:2", "t4: none by clocks: no clock curve is known"),
        ("gpu:mystery:2", "mystery: none until it is known which GPU it is"),
    ],
)
def test_each_type_is_told_plainly_whether_it_can_save(gres: str, words: str) -> None:
    (finding,) = [one for one in types(gres, None) if one.subject == SAVING]
    assert finding.verdict is Verdict.OK
    assert finding.found.startswith(words)


def test_the_order_of_gpu_types_is_named_where_there_are_several_and_they_compare() -> None:
    (finding,) = [one for one in types("gpu:a100:2,gpu:v100:2,gpu:a40:2", None) if one.subject == ORDER]
    assert finding.verdict is Verdict.OK
    assert finding.found.startswith("least energy for the same work first: a100 (1.00 of the energy, 1.00 of the time)")
    assert "v100 (" in finding.found and "by data sheets" in finding.found and "Weight ascending" in finding.found
    assert not [one for one in types("gpu:a100:2", None) if one.subject == ORDER]


def test_an_assumed_curve_is_told_apart_from_a_measured_one() -> None:
    from slurm_energy.energy_model.curves import shipped_curves

    assumed = [name for name, curves in shipped_curves().items() if curves and curves[0].source == "model"]
    for name in assumed:
        (finding,) = [one for one in types("gpu:x:1", None, {"x": name}) if one.subject == SAVING]
        assert "assumed" in finding.found or "none with" in finding.found
        assert "fewer joules" not in finding.found


def test_what_does_not_work_comes_first_and_every_line_but_ok_has_a_fix() -> None:
    findings = [ok("a", ""), skip("b", ""), warn("c", "", "x"), fail("d", "", "y"), ok("e", "")]
    assert [finding.subject for finding in by_severity(findings)] == ["d", "c", "b", "a", "e"]
    assert all(finding.fix for finding in findings if finding.verdict is not Verdict.OK)
    assert several("abcdefgh") == "a, b, c, d, e, f and 2 more"


@pytest.mark.parametrize(
    ("waits", "verdict"),
    [([0], Verdict.OK), ([500, 0], Verdict.OK), ([500, 400], Verdict.OK), ([500] * 50, Verdict.FAIL),
     ([500, 900] + [900] * 50, Verdict.FAIL), ([None], Verdict.SKIP)],
)  # fmt: skip
def test_a_journal_is_a_fault_only_while_it_does_not_get_shorter(waits: list[int | None], verdict: Verdict) -> None:
    left = iter(waits)
    assert journal_finding(lambda: next(left), lambda _seconds: None).verdict is verdict


def test_a_hook_whose_interpreter_is_gone_or_that_is_not_executable_is_a_problem(tmp_path: Path) -> None:
    folder = tmp_path / "hooks"
    folder.mkdir()
    start = "START='from slurm_energy.node.main import main; main()'"
    text = f"#!/bin/sh\n{start}\nset -- '{{python}}' -I -S -c \"$START\"; HOOK=/opt/none/slurm-energy-hook\n"
    for name, python, mode in (
        ("a.sh", "/gone/python", 0o755),
        ("b.sh", "/bin/true", 0o644),
        ("c.sh", "/bin/true", 0o755),
    ):
        (folder / name).write_text(text.format(python=python))
        (folder / name).chmod(mode)
    (folder / "site.sh").write_text("#!/bin/sh\nexit 0\n")
    conf = tmp_path / "slurm.conf"
    conf.write_text(f'include more.conf\nProlog="{folder}/*"  # ours\n')
    (tmp_path / "more.conf").write_text("Epilog=/elsewhere/x.sh,/elsewhere/y.sh\n")
    assert hook_patterns(conf)[2:] == ("/elsewhere/x.sh", "/elsewhere/y.sh", f"{folder}/*")
    problems = list(hook_problems([f"{folder}/*"]))
    assert [problem.partition(" ")[0] for problem in problems] == [f"{folder}/a.sh", f"{folder}/b.sh"]
    assert "runs /gone/python, which is not there" in problems[0] and "not executable" in problems[1]


def test_an_interpreter_that_two_scripts_run_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = tmp_path / "bin" / "python3"
    python.parent.mkdir()
    python.touch(mode=0o755)
    folder = tmp_path / "hooks"
    folder.mkdir()
    for name in ("prolog", "epilog"):
        (folder / name).write_text(f"# slurm_energy\nset -- '{python}' -I -S -c\nHOOK=/nowhere\n")
        (folder / name).chmod(0o755)
    asked: list[str] = []

    def fault(program: str) -> str:
        asked.append(program)
        return "no module"

    monkeypatch.setattr(node_status_module, "_import_fault", fault)
    problems = list(hook_problems([f"{folder}/*"]))
    assert asked == [str(python)]
    assert [problem.rpartition(": ")[2] for problem in problems] == ["no module"] * 2


def test_only_what_slurm_runs_is_looked_at_for_faults(tmp_path: Path) -> None:
    """slurmd's pattern passes over names that begin with a dot, and may have patterns in its folders."""
    folder = tmp_path / "hooks" / "site"
    folder.mkdir(parents=True)
    text = "#!/bin/sh\nset -- '/gone/python' -I -m slurm_energy.node.main\n"
    for name in (".copy.sh", "ours.sh"):
        (folder / name).write_text(text)
        (folder / name).chmod(0o644)
    found = list(hook_problems([f"{tmp_path}/hooks/*/*", "/", "/etc/**x", "/etc/\0x", "relative", ""]))
    assert [problem.partition(" ")[0] for problem in found if problem.startswith(str(tmp_path))] == [
        f"{folder}/ours.sh"
    ]
