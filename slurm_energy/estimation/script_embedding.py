"""A small transformer over the features of a site's scripts: what is often together comes to lie near.

Trained on a site's own history by two tasks: tell a hidden token from the others, and tell two partly hidden views of
one script from views of other scripts. No figure of any run is needed for it.
"""

import hashlib
from collections.abc import Sequence
from math import log2

import torch
from torch import Tensor, nn
from torch.nn import functional

from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.errors import ValueRangeError
from slurm_energy.estimation.job_groups import name_stem

MAX_TOKENS = 24
BUCKETS = 1024
"""Tokens are distinguished by a digest: no vocabulary has to be kept, and a token that was never seen is one too."""
WIDTH = 32
PAD, HIDDEN = 0, 1
_SPECIAL = 2
_HIDDEN_SHARE = 0.3
_TEMPERATURE = 0.1


def script_tokens(features: ScriptFeatures, name: str = "") -> tuple[str, ...]:
    """Return a script's features as words, and those of the job's name that say something; the order means nothing."""
    words = [
        f"{field}:{word}" for field in ("programs", "launchers", "frameworks") for word in getattr(features, field)
    ]
    words += [f"{field}:{getattr(features, field)}" for field in ("dataset", "precision", "code")]
    words += [f"model:{part}" for part in (features.model, *features.model.split("-"))]
    words += [
        f"{field}:{round(log2(number))}"
        for field in ("batch_size", "epochs", "steps")
        if (number := getattr(features, field)) is not None
    ]
    words += [f"name:{part}" for part in name_stem(name).split("_")]
    return tuple(dict.fromkeys(word for word in words if not word.endswith(":")))[:MAX_TOKENS]


def token_numbers(sequences: Sequence[Sequence[str]]) -> Tensor:
    """Return buckets of tokens, [num_scripts, MAX_TOKENS]; PAD behind the last of each."""
    rows = [[_bucket(token) for token in tokens[:MAX_TOKENS]] for tokens in sequences]
    return torch.tensor([row + [PAD] * (MAX_TOKENS - len(row)) for row in rows], dtype=torch.long).reshape(
        -1, MAX_TOKENS
    )


def _bucket(token: str) -> int:
    digest = hashlib.sha256(token.encode("utf-8", "replace")).digest()
    return _SPECIAL + int.from_bytes(digest[:4], "big") % (BUCKETS - _SPECIAL)


class ScriptEncoder(nn.Module):
    """Two layers of attention over a script's tokens.

    Shapes:
        tokens: [num_scripts, MAX_TOKENS]
        output: [num_scripts, WIDTH], of length 1
    """

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(BUCKETS, WIDTH, padding_idx=PAD)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def states(self, tokens: Tensor) -> Tensor:
        """Return what each token stands for among the others, [num_scripts, MAX_TOKENS, WIDTH]."""
        is_pad = tokens == PAD
        is_pad = is_pad & ~is_pad.all(dim=1, keepdim=True)  # attention over nothing at all is no number
        found: Tensor = self.layers(self.tokens(tokens), src_key_padding_mask=is_pad)
        return found

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the embeddings."""
        return pooled(tokens, self.states(tokens))

    def embedded(self, sequences: Sequence[Sequence[str]]) -> Tensor:
        """Return the embeddings of scripts by their tokens, for use."""
        with torch.inference_mode():
            found: Tensor = self(token_numbers(sequences))
        return found


def pooled(tokens: Tensor, states: Tensor) -> Tensor:
    """Return the mean of the states of each script's tokens, at length 1."""
    weight = (tokens != PAD).unsqueeze(-1).to(torch.float32)  # [num_scripts, MAX_TOKENS, 1]
    mean = (states * weight).sum(1) / weight.sum(1).clamp(min=1.0)
    return functional.normalize(mean, dim=1)


def trained_encoder(sequences: Sequence[Sequence[str]], seed: int, steps: int = 200) -> ScriptEncoder:
    """Return an encoder trained on a site's scripts; the same scripts and seed give the same.

    Args:
        sequences: Tokens of each script; like scripts count once.
        seed: Of first weights, batches and hidden tokens.
        steps: Of training.

    Raises:
        ValueRangeError: there are fewer than two different scripts.
    """
    distinct = sorted({tuple(tokens) for tokens in sequences if tokens})
    if len(distinct) < 2:
        raise ValueRangeError(f"{len(distinct)} different scripts are too few to train on: 2 are needed")
    tokens = token_numbers(distinct)
    tokens = tokens[:, : int((tokens != PAD).sum(dim=1).max())]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = ScriptEncoder()
        optimiser = torch.optim.Adam(encoder.parameters(), lr=3e-3)
        for _ in range(steps):
            batch = tokens[torch.randperm(len(tokens))[:64]]
            optimiser.zero_grad()
            loss = _loss(encoder, batch)
            loss.backward()  # type: ignore[no-untyped-call]  # torch's own
            optimiser.step()
    return encoder.eval()


def _loss(encoder: ScriptEncoder, batch: Tensor) -> Tensor:
    """Return masked-token loss plus InfoNCE (van den Oord et al., 2018) between two views of each script."""
    views = [_partly_hidden(batch) for _ in range(2)]
    states = [encoder.states(view) for view in views]
    one, other = (pooled(view, state) for view, state in zip(views, states, strict=True))
    alike = one @ other.T / _TEMPERATURE  # [num_scripts, num_scripts]
    contrast = functional.cross_entropy(alike, torch.arange(len(batch)))
    was_hidden = (views[0] == HIDDEN) & (batch != PAD)
    guessed = states[0][was_hidden] @ encoder.tokens.weight.T  # [num_hidden, BUCKETS]
    masked = functional.cross_entropy(guessed, batch[was_hidden]) if len(guessed) else contrast.new_zeros(())
    return contrast + 0.1 * masked


def _partly_hidden(batch: Tensor) -> Tensor:
    hidden = (torch.rand(batch.shape) < _HIDDEN_SHARE) & (batch != PAD)
    return batch.masked_fill(hidden, HIDDEN)
