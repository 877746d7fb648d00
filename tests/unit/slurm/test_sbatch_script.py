"""#SBATCH lines are read as sbatch reads them; the expected words are what `sbatch -vvv` printed for these lines."""

import pytest

from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.sbatch_options import directive_words, script_directives


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (" --time=5 # c --nodes=3", ("--time=5",)),
        ("--time=5", ("--time=5",)),
        (" --partition=a#b -J x", ("--partition=a",)),
        ("\t-N2", ("-N2",)),
        (r" --comment=c\ d", ("--comment=c", "d")),
        (r" --comment=c\"d", ('--comment=c"d',)),
        (r' --comment="c\"d"', ('--comment=c"d',)),
        (r" --comment=c\\d", (r"--comment=c\d",)),
        (r" --comment=c\#d", ("--comment=c#d",)),
        (" --comment='c#d'", ("--comment=c#d",)),
        (" --comment=c'd e'f\"g h\"", ("--comment=cd efg h",)),
        (" -J 'a\"b' --comment=\"it's \\\\ x\"", ("-J", 'a"b', r"--comment=it's \ x")),
        (' --comment "" -N x', ("--comment",)),
        (" -C a100", ("-C", "a100")),
        (" -J 'x; rm $(id)'", ("-J", "x; rm $(id)")),
    ],
)
def test_words_of_a_line(line: str, words: tuple[str, ...]) -> None:
    assert directive_words(line, 1) == words


@pytest.mark.parametrize(("line", "message"), [(' -J "x', 'quote " is not closed'), (" -N2 : -N3", "unexpected ':'")])
def test_lines_that_sbatch_refuses_are_named_with_their_number(line: str, message: str) -> None:
    with pytest.raises(ValueRangeError, match=f"line 7 .*{message}"):
        directive_words(line, 7)


def test_reading_stops_at_the_first_command_and_not_at_blank_lines_or_comments() -> None:
    script = (
        "#!/bin/sh\n\n# words\n##SBATCH --nodes=9\n #SBATCH --nodes=8\n#SBATCH -N2\n   \n#SBATCH -t5\n:\n#SBATCH -N7\n"
    )
    assert script_directives(script).components == (("-N2", "-t5"),)


def test_a_heterogeneous_script_gives_one_list_for_each_component() -> None:
    assert script_directives("#!/bin/sh\n#SBATCH -N2\n#SBATCH hetjob\n#SBATCH -N3\n").components == (("-N2",), ("-N3",))


def test_dos_line_breaks_are_read_and_told() -> None:
    found = script_directives("#!/bin/sh\r\n#SBATCH -N2\r\n")
    assert (found.components, found.dos_line_breaks, found.is_script) == ((("-N2",),), True, True)


def test_an_empty_text_has_no_words_and_is_no_script() -> None:
    found = script_directives("")
    assert (found.components, found.is_script) == (((),), False)
