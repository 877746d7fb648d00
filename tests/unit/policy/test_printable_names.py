from slurm_energy.policy.detail_text import printable_name


def test_names_lose_what_a_terminal_could_take_amiss() -> None:
    assert printable_name("a100\x1b[31m\n") == "a100?[31m?"
    assert printable_name("größe") == "gr??e"
    assert printable_name("  ") == "unnamed"
    assert printable_name("x" * 100) == "x" * 32
    assert printable_name("{name}%s") == "{name}%s"
