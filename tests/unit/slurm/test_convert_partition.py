from slurm_energy.domain.cluster import PartitionState
from slurm_energy.domain.ids import PartitionName
from slurm_energy.slurm.convert_cluster import convert_partitions

REAL_22_05 = (
    "PartitionName=a100 AllowGroups=ALL AllowAccounts=ALL AllowQos=ALL AllocNodes=ALL Default=YES QoS=N/A "
    "DefaultTime=NONE DisableRootJobs=NO ExclusiveUser=NO GraceTime=0 Hidden=NO MaxNodes=UNLIMITED MaxTime=01:00:00 "
    "MinNodes=0 LLN=NO MaxCPUsPerNode=UNLIMITED Nodes=n1 PriorityJobFactor=1 PriorityTier=1 RootOnly=NO ReqResv=NO "
    "OverSubscribe=NO OverTimeLimit=NONE PreemptMode=OFF State=UP TotalCPUs=8 TotalNodes=1 SelectTypeParameters=NONE "
    "JobDefaults=(null) DefMemPerNode=UNLIMITED MaxMemPerNode=UNLIMITED TRES=cpu=8,mem=4000M,node=1,billing=8\n"
)


def test_a_real_line_is_read() -> None:
    assert convert_partitions(REAL_22_05).items == (
        PartitionState(name=PartitionName("a100"), is_default=True, up=True, max_time_minutes=60.0),
    )


def test_limits_and_lists_are_read() -> None:
    line = (
        "PartitionName=big AllowGroups=hpc,root DenyAccounts=guest AllowQos=long,short Default=NO "
        "DefaultTime=00:30:00 MaxNodes=4 MaxTime=2-00:00:00 PriorityTier=10 RootOnly=YES ReqResv=YES State=DRAIN"
    )
    assert convert_partitions(line).items == (
        PartitionState(
            name=PartitionName("big"),
            is_default=False,
            up=False,
            max_time_minutes=2880.0,
            default_time_minutes=30.0,
            max_nodes=4,
            allow_groups=("hpc", "root"),
            deny_accounts=("guest",),
            allow_qos=("long", "short"),
            root_only=True,
            needs_reservation=True,
            priority_tier=10,
            list_terms=("AllowGroups=hpc,root",),
            placing_terms=("MaxNodes=4",),
        ),
    )


def test_what_makes_a_partition_differ_from_others_is_read() -> None:
    line = REAL_22_05.replace("MinNodes=0", "MinNodes=2").replace("MaxCPUsPerNode=UNLIMITED", "MaxCPUsPerNode=4")
    line = line.replace("MaxMemPerNode=UNLIMITED", "MaxMemPerNode=8000").replace("QoS=N/A", "QoS=part")
    line = line.replace("PriorityJobFactor=1", "PriorityJobFactor=7").replace("AllocNodes=ALL", "AllocNodes=login1")
    line = line.replace("JobDefaults=(null)", "JobDefaults=DefCpuPerGPU=2").replace("LLN=NO", "LLN=YES")
    (partition,) = convert_partitions(line).items
    assert (partition.min_nodes, partition.max_cpus_per_node, partition.max_memory_per_node_mib) == (2, 4, 8000.0)
    assert partition.priority_job_factor == 7
    assert partition.list_terms == ("AllocNodes=login1", "QoS=part")
    assert partition.default_terms == ("JobDefaults=DefCpuPerGPU=2",)
    assert partition.placing_terms == ("MinNodes=2", "LLN=YES")


def test_unlimited_is_no_limit() -> None:
    (partition,) = convert_partitions("PartitionName=p State=UP MaxTime=UNLIMITED DefaultTime=NONE MaxNodes=0").items
    assert (partition.max_time_minutes, partition.default_time_minutes, partition.max_nodes) == (None, None, None)


def test_lines_that_are_no_partition_are_counted() -> None:
    result = convert_partitions("No partitions in the system\n\n" + REAL_22_05)
    assert [partition.name for partition in result.items] == ["a100"]
    assert result.skipped == {"no partition name": 1}
