"""sbatch's argument vector is split as getopt_long splits it."""

import pytest

from slurm_energy.errors import ValueRangeError
from slurm_energy.slurm.sbatch_options import (
    ENERGY_OPTIONS,
    GivenOption,
    SplitArguments,
    Takes,
    learned_options,
    split_arguments,
)


def split(*words: str) -> SplitArguments:
    return split_arguments(words, ENERGY_OPTIONS)


def pairs(*words: str) -> list[tuple[str, str | None]]:
    return [(option.name, option.value) for option in split(*words).options]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-N2", "-pa,b", "-t1:00", "-n", "4", "-J", "name"),
         [("nodes", "2"), ("partition", "a,b"), ("time", "1:00"), ("ntasks", "4"), ("job-name", "name")]),
        (("-HsN2",), [("hold", None), ("oversubscribe", None), ("nodes", "2")]),
        (("-QW", "-vvv"), [("quiet", None), ("wait", None)] + [("verbose", None)] * 3),
        (("-k",), [("no-kill", None)]),
        (("-koff",), [("no-kill", "off")]),
        (("--time=5", "--partition", "a"), [("time", "5"), ("partition", "a")]),
        (("--part=a",), [("partition", "a")]),
        (("--time", "--nodes"), [("time", "--nodes")]),
        (("--exclusive", "--nice", "--exclusive=user", "--nice=5"),
         [("exclusive", None), ("nice", None), ("exclusive", "user"), ("nice", "5")]),
        (("--cluster=x", "--tasks-per-node=2"), [("clusters", "x"), ("ntasks-per-node", "2")]),
        (("--comment=", "-J", ""), [("comment", ""), ("job-name", "")]),
        (("--energy=saver", "--energy-max=5"), [("energy", "saver"), ("energy-max-slowdown", "5")]),
        (("-C", "a100", "-c40"), [("constraint", "a100"), ("cpus-per-task", "40")]),
    ],
)  # fmt: skip
def test_options_are_found_in_every_form_that_getopt_takes(
    words: tuple[str, ...], expected: list[tuple[str, str | None]]
) -> None:
    assert pairs(*words) == expected
    assert split(*words).rest == ()


def test_options_after_the_script_belong_to_the_script() -> None:
    result = split("-N1", "job.sh", "--energy=off", "-N9")
    assert [option.name for option in result.options] == ["nodes"]
    assert result.rest == ("job.sh", "--energy=off", "-N9")
    assert result.rest_index == 1


@pytest.mark.parametrize(
    ("words", "rest"),
    [
        (("-N1", "--", "--time"), ("--time",)),
        (("-",), ("-",)),
        (("",), ("",)),
        (("job", ":", "-N2"), ("job", ":", "-N2")),
    ],
)
def test_options_end_where_getopt_ends_them(words: tuple[str, ...], rest: tuple[str, ...]) -> None:
    assert split(*words).rest == rest


def test_components_of_a_heterogeneous_job_are_split_at_the_colon() -> None:
    result = split("-N1", ":", "-N2", "-pb", "job.sh", ":")
    assert [[(option.name, option.value) for option in component] for component in result.components] == [
        [("nodes", "1")],
        [("nodes", "2"), ("partition", "b")],
    ]
    assert result.rest == ("job.sh", ":")


def test_each_option_tells_which_words_it_fills() -> None:
    assert split("-t", "5", "--energy=off", "--energy-deadline", "noon").options == (
        GivenOption(name="time", value="5", first=0, end=2),
        GivenOption(name="energy", value="off", first=2, end=3),
        GivenOption(name="energy-deadline", value="noon", first=3, end=5),
    )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--bogus",), "unrecognized option --bogus"),
        (("-Z",), "invalid option -Z"),
        (("--time",), "--time requires an argument"),
        (("-Ht",), "-t .--time. requires an argument"),
        (("--hold=1",), "--hold does not allow an argument"),
        (("--ntasks-per",), "--ntasks-per is ambiguous: --ntasks-per-core, --ntasks-per-gpu"),
    ],
)
def test_words_that_sbatch_refuses_are_named(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueRangeError, match=message):
        split(*words)


def test_options_of_other_plugins_are_learned_from_the_help_text() -> None:
    text = (
        "Parallel run options:\n"
        "  -a, --array=indexes         job array index values\n"
        "      --container-image=[USER@][REGISTRY#]IMAGE[:TAG]|PATH\n"
        "                              [pyxis] the image, as in --not-an-option=x\n"
        "      --no-container-remap-root\n"
        "      --x11[=mode]            forward\n"
    )
    assert learned_options(text) == {
        "container-image": Takes.REQUIRED,
        "no-container-remap-root": Takes.NOTHING,
        "x11": Takes.OPTIONAL,
    }
    result = split_arguments(["--container-image", "a/b", "job.sh"], learned_options(text))
    assert result.rest == ("job.sh",)
