"""Batch scripts and Python programs in common forms, and what is found in them."""

from collections.abc import Mapping
from pathlib import Path

from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.estimation.script.features import script_features
from slurm_energy.estimation.script.reading import SourceReader

TORCH_PROGRAM = """
import argparse, torch
from torchvision import models, datasets
from helpers import fit

def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="resnet18")
    parser.add_argument("-b", "--batch-size", type=int, default=64)
    parser.add_argument("--epochs", default=10, type=int)
    parser.add_argument("--amp", action="store_true")
    parser.add_argument("--api-key")
    args = parser.parse_args()
    data = datasets.CIFAR10("/home/smith/private")
    fit(models.__dict__[args.model](), data)
"""
TRANSFORMERS_PROGRAM = """
from transformers import AutoModelForMaskedLM, Trainer, TrainingArguments
from datasets import load_dataset

model = AutoModelForMaskedLM.from_pretrained("bert-large-uncased")
data = load_dataset("wikitext", "wikitext-103-raw-v1")
settings = TrainingArguments(per_device_train_batch_size=32, num_train_epochs=3, bf16=True)
Trainer(model=model, args=settings, train_dataset=data).train()
"""


def written(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def found(
    text: str,
    folder: Path,
    *arguments: str,
    environment: Mapping[str, str] | None = None,
    reader: SourceReader | None = None,
) -> ScriptFeatures:
    return list(script_features(text, arguments, environment or {}, reader or SourceReader(folder)))[-1]
