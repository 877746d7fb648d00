import pytest
import torch

from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.errors import ValueRangeError
from slurm_energy.estimation.script_embedding import MAX_TOKENS, ScriptEncoder, script_tokens, trained_encoder

FAMILIES = {
    "language": (
        ("transformers", "datasets"),
        ("bert", "gpt2", "roberta", "t5"),
        ("wikitext", "glue", "squad"),
        "bf16",
    ),
    "vision": (
        ("torchvision", "timm"),
        ("resnet50", "vit", "efficientnet", "swin"),
        ("imagenet", "cifar10", "coco"),
        "fp16",
    ),
    "graphs": (("torch-geometric", "dgl"), ("gcn", "gat", "graphsage", "gin"), ("cora", "citeseer", "pubmed"), "fp32"),
}


def history() -> list[tuple[str, ...]]:
    found = []
    for frameworks, models, datasets, precision in FAMILIES.values():
        for number, model in enumerate(models):
            for place, dataset in enumerate(datasets):
                features = ScriptFeatures(
                    programs=("python",),
                    launchers=("srun",) if number % 2 else ("torchrun",),
                    frameworks=("pytorch", frameworks[place % 2]),
                    model=model if place else "",
                    dataset=dataset,
                    precision=precision,
                    batch_size=16 << (number + place) % 4,
                    epochs=3 << place,
                )
                found.append(script_tokens(features))
    return found


def family_nearest(encoder: ScriptEncoder, tokens: tuple[str, ...]) -> str:
    known = encoder.embedded(history()).reshape(len(FAMILIES), -1, encoder.tokens.embedding_dim)
    alike = (known @ encoder.embedded([tokens])[0]).mean(dim=1)
    return list(FAMILIES)[int(alike.argmax())]


def share_of_families_found(encoder: ScriptEncoder) -> float:
    """Return for how many scripts that say one thing of the family, beside words that all share, it is the nearest."""
    found = []
    for family, (frameworks, models, datasets, _) in FAMILIES.items():
        said: list[dict[str, object]] = [{"frameworks": ("pytorch", name)} for name in frameworks]
        said.extend({"model": name} for name in models)
        said.extend({"dataset": name} for name in datasets)
        for one in said:
            shared = {
                "programs": ("python",),
                "launchers": ("srun", "torchrun"),
                "frameworks": ("pytorch",),
                "epochs": 6,
            }
            features = ScriptFeatures(**{**shared, **one})  # type: ignore[arg-type]  # each has its field's type
            found.append(family_nearest(encoder, script_tokens(features)) == family)
    return sum(found) / len(found)


@pytest.mark.slow
def test_training_brings_scripts_together_that_share_what_tells() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        untrained = share_of_families_found(ScriptEncoder().eval())
    assert untrained < 0.6
    assert share_of_families_found(trained_encoder(history(), seed=0, steps=150)) > 0.8


def test_embeddings_have_length_one_and_the_order_of_tokens_means_nothing() -> None:
    encoder = trained_encoder(history(), seed=1, steps=2)
    one, other = encoder.embedded([("a:1", "b:2", "c:3"), ("c:3", "a:1", "b:2")])
    torch.testing.assert_close(one, other)
    assert float(one.norm()) == pytest.approx(1.0)


def test_the_same_scripts_and_seed_give_the_same_encoder() -> None:
    one, other, third = (trained_encoder(history(), seed=seed, steps=2).embedded(history()) for seed in (1, 1, 2))
    assert torch.equal(one, other) and not torch.equal(one, third)


@pytest.mark.parametrize("tokens", [(), ("a:1",) * 100, ("é" * 10_000, "\ud800"), ("never:seen",)])
def test_any_tokens_have_a_finite_embedding(tokens: tuple[str, ...]) -> None:
    assert trained_encoder(history(), seed=1, steps=1).embedded([tokens]).isfinite().all()


def test_too_few_scripts_are_refused() -> None:
    with pytest.raises(ValueRangeError, match="1 different scripts are too few"):
        trained_encoder([("a:1",), ("a:1",), ()], seed=0)


def test_tokens_are_features_by_field_and_words_of_the_name() -> None:
    features = ScriptFeatures(programs=("python",), model="bert-large", batch_size=30, code="0123abcd")
    assert script_tokens(features, "protein_lr0.1_seed3") == (
        "programs:python",
        "code:0123abcd",
        "model:bert-large",
        "model:bert",
        "model:large",
        "batch_size:5",
        "name:protein",
    )
    assert (
        len(script_tokens(features, "_".join(f"w{letter}x" for letter in "abcdefghijklmnopqrstuvwxyz"))) == MAX_TOKENS
    )
