from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurm_energy.domain.script import MAX_FEATURES_BYTES, MAX_NUMBER, ScriptFeatures
from slurm_energy.errors import ValueRangeError

RESNET = ScriptFeatures(
    programs=("python",),
    launchers=("srun", "torchrun"),
    frameworks=("pytorch",),
    model="resnet50",
    dataset="imagenet",
    precision="bf16",
    batch_size=256,
    epochs=90,
    code="0123abcd",
)
WORD = st.from_regex(r"[a-z0-9][a-z0-9_.+-]{0,31}", fullmatch=True)
NUMBER = st.none() | st.integers(1, MAX_NUMBER)
FEATURES = st.builds(
    ScriptFeatures,
    programs=st.lists(WORD, max_size=4).map(tuple),
    frameworks=st.lists(WORD, max_size=4).map(tuple),
    model=st.just("") | WORD,
    batch_size=NUMBER,
    steps=NUMBER,
    code=st.just("") | st.from_regex(r"[0-9a-f]{8}", fullmatch=True),
)


@settings(max_examples=30, deadline=None)
@given(FEATURES)
def test_what_is_written_is_read_back_within_its_bound(features: ScriptFeatures) -> None:
    text = features.encode()
    assert text.isascii() and " " not in text and len(text) <= MAX_FEATURES_BYTES
    assert ScriptFeatures.decode(text) == features


def test_features_at_every_bound_fit() -> None:
    longest = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)
    words = ScriptFeatures(
        programs=longest, launchers=longest, frameworks=longest[:3], model="m" * 32, dataset="d" * 32
    )
    assert len(words.encode()) <= MAX_FEATURES_BYTES


@given(st.text(max_size=600))
def test_a_forgers_text_is_refused_or_read_as_features(text: str) -> None:
    try:
        found = ScriptFeatures.decode(text)
    except ValueRangeError:
        return
    assert ScriptFeatures.decode(found.encode()) == found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "v=2;model=a",
        "v=1;model=",
        "v=1;model=A B",
        "v=1;batch_size=0",
        "v=1;batch_size=1e9",
        "v=1;epochs=²",
        "v=1;code=xyz",
        "v=1;model=a;model=b",
        "v=1;programs=a,b,c,d,e",
        "v=1;model=" + "a" * 33,
        "v=1;" + "x=1;" * 200,
    ],
)
def test_what_is_out_of_its_form_is_refused(text: str) -> None:
    with pytest.raises(ValueRangeError):
        ScriptFeatures.decode(text)


def test_a_key_of_a_newer_wrapper_is_left_out() -> None:
    assert ScriptFeatures.decode("v=1;model=bert;optimizer=adam") == ScriptFeatures(model="bert")


def test_one_kind_of_work_has_one_key() -> None:
    assert RESNET.key == replace(RESNET, batch_size=250, epochs=80, launchers=("mpirun",), code="ffffffff").key
    others = [
        replace(RESNET, model="bert"),
        replace(RESNET, dataset="cifar10"),
        replace(RESNET, precision="fp32"),
        replace(RESNET, frameworks=("tensorflow",)),
        replace(RESNET, batch_size=32),
        replace(RESNET, epochs=9),
    ]
    assert len({RESNET.key, *(other.key for other in others)}) == 7


def test_the_code_tells_programs_apart_where_no_model_is_known() -> None:
    one, other = (ScriptFeatures(programs=("python",), code=code) for code in ("0123abcd", "ffffffff"))
    assert one.key != other.key and len(one.key) == 16


def test_a_script_that_says_nothing_of_its_work_has_no_key() -> None:
    assert ScriptFeatures(programs=("python",), launchers=("srun",), epochs=3).key == ""
    assert ScriptFeatures(programs=("gromacs",)).key != ""


def test_a_sentence_says_what_is_known() -> None:
    assert RESNET.sentence() == (
        "python under srun, torchrun, pytorch, resnet50 on imagenet, bf16, batch size 256, epochs 90"
    )
    assert ScriptFeatures(code="0123abcd").sentence() == "a program with digest 0123abcd"
    assert ScriptFeatures().sentence() == ""
