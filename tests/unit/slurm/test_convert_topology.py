import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurm_energy.domain.cluster import SwitchState
from slurm_energy.domain.ids import NodeName
from slurm_energy.slurm.convert_cluster import MAX_LEVELS, MAX_NAMES, MAX_SWITCHES, Topology, convert_topology

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=tux[0-2]
SwitchName=s1 Level=0 LinkSpeed=400 Nodes=tux[3,5]
SwitchName=s2 Level=1 LinkSpeed=1 Nodes=tux[0-3,5] Switches=s[0-1]
SwitchName=s3 Level=2 Nodes=tux[0-3,5] Switches=s2
"""


def leaves(**leaf_by_node: str) -> dict[NodeName, str]:
    return {NodeName(node): leaf for node, leaf in leaf_by_node.items()}


def test_a_tree_gives_leaves_to_nodes_and_parents_to_switches() -> None:
    assert convert_topology(TREE) == Topology(
        switches=(
            SwitchState(name="s0", parent="s2"),
            SwitchState(name="s1", parent="s2"),
            SwitchState(name="s2", parent="s3"),
            SwitchState(name="s3"),
        ),
        leaf_by_node=leaves(tux0="s0", tux1="s0", tux2="s0", tux3="s1", tux5="s1"),
    )


def test_the_order_of_the_lines_does_not_matter() -> None:
    whole, turned = convert_topology(TREE), convert_topology("\n".join(reversed(TREE.splitlines())))
    assert turned.leaf_by_node == whole.leaf_by_node
    assert set(turned.switches) == set(whole.switches)


def test_a_block_is_a_leaf() -> None:
    text = "BlockName=b1 BlockIndex=0 Nodes=n[01-02] BlockSize=2\nAggregatedBlock=b1 Nodes=n[01-02] BlockSize=4"
    topology = convert_topology(text)
    assert topology == Topology(switches=(SwitchState(name="b1"),), leaf_by_node=leaves(n01="b1", n02="b1"))


@pytest.mark.parametrize("text", ["", "No topology information available\n", "SwitchName=\n", "Nodes=n1", "\0="])
def test_no_topology_gives_nothing(text: str) -> None:
    assert convert_topology(text) == Topology()


def test_a_node_under_two_leaves_belongs_to_the_first() -> None:
    topology = convert_topology("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n[1-2]\nSwitchName=a Nodes=n3")
    assert topology.leaf_by_node == {"n1": "a", "n2": "b"}


def test_switches_in_a_circle_and_unreadable_lists_are_left_out() -> None:
    text = "SwitchName=a Switches=b\nSwitchName=b Switches=a,b,zz\nSwitchName=c Nodes=n[1-\nSwitchName=d Nodes=(null)"
    topology = convert_topology(text)
    assert topology.switches == (
        SwitchState(name="a"),
        SwitchState(name="b", parent="a"),
        SwitchState(name="c"),
        SwitchState(name="d"),
    )
    assert topology.leaf_by_node == {}


@pytest.mark.slow
def test_an_endless_list_is_cut_off() -> None:
    text = "\n".join(f"SwitchName=s{number} Nodes=n{number}" for number in range(MAX_SWITCHES + 5))
    assert len(convert_topology(text).switches) == MAX_SWITCHES
    crowded = "\n".join(f"SwitchName=s{number} Nodes=n{number}x[1-60000]" for number in range(12))
    assert len(convert_topology(crowded).leaf_by_node) <= MAX_NAMES + 60_000


def test_a_tower_of_switches_is_cut_into_low_ones() -> None:
    text = "\n".join(f"SwitchName=s{number} Switches=s{number + 1}" for number in range(2 * MAX_LEVELS))
    parents = {switch.name: switch.parent for switch in convert_topology(text).switches}
    assert sum(parent is None for parent in parents.values()) == 2


@given(st.text(alphabet="SwitchName=dsNo[]0-1, \nLvl", max_size=300))
def test_any_text_gives_a_forest(text: str) -> None:
    topology = convert_topology(text)
    parents = {switch.name: switch.parent for switch in topology.switches}
    for name in parents:
        above: str | None = name
        for _ in range(len(parents) + 1):
            above = None if above is None else parents[above]
        assert above is None
