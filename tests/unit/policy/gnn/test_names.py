from slurm_energy.policy.gnn.names import printable


def test_names_lose_what_a_terminal_could_take_amiss() -> None:
    assert printable("a100\x1b[31m\n") == "a100?[31m?"
    assert printable("größe") == "gr??e"
    assert printable("  ") == "unnamed"
    assert printable("x" * 100) == "x" * 32
    assert printable("{name}%s") == "{name}%s"
