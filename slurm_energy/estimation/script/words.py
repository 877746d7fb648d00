"""The fixed lists that features are taken from, what is on none of them is never sent; and the words of launchers.

Words are looked for in names and values that mean one thing, such as `--model` or an import, not in the whole text.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

LAUNCHERS: Final = frozenset(
    """
    srun mpirun mpiexec mpiexec.hydra orterun prun torchrun accelerate deepspeed horovodrun singularity apptainer
    shifter podman charliecloud conda mamba micromamba poetry pipenv uv pixi ray colossalai
""".split()
)
SUBCOMMANDS: Final[Mapping[str, frozenset[str]]] = {
    **dict.fromkeys(("conda", "mamba", "micromamba", "poetry", "pipenv", "uv", "pixi"), frozenset({"run"})),
    **dict.fromkeys(("singularity", "apptainer", "podman"), frozenset({"exec", "run"})),
    "accelerate": frozenset({"launch"}),
    "colossalai": frozenset({"run"}),
    "ray": frozenset({"submit", "job"}),
}
"""With which a launcher starts a program; others of its words do something else."""
TRANSPARENT: Final = frozenset(
    """
    time nohup exec command builtin parallel xargs numactl taskset nice ionice stdbuf timeout env nsys ncu strace
    catchsegv xvfb-run
    """.split()
)
"""Commands that run the rest of their words, and say nothing of the work."""
PYTHON_LAUNCHERS: Final = frozenset({"torchrun", "accelerate", "deepspeed", "horovodrun", "colossalai"})
PYTHON_LAUNCHER_MODULES: Final = frozenset(
    {"torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch", "deepspeed.launcher.runner"}
)
SHELLS: Final = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
LAUNCHING: Final = PYTHON_LAUNCHERS | LAUNCHERS | TRANSPARENT
SILENT: Final = frozenset(
    """
    : [ [[ alias awk basename bg break cat cd chmod cp curl cut date declare df dirname disown du echo env exit
    export false fg find free git grep gunzip gzip hash head hostname id install jobs kill ldd let ln local ls lscpu
    lspci make mapfile mkdir mktemp ml module mv nproc nvidia-smi pip pip3 popd printenv printf ps pushd pwd read
    readlink readonly realpath rm rmdir rsync sacct scancel scontrol scp sed seq set shift shopt sleep sort source
    spack squeue ssh sstat stat su sudo tail tar tee test touch tr trap true type typeset ulimit umask unalias uname
    unset unzip wait wc wget which whoami
""".split()
)
"""Commands that prepare or report; none of them is what the job is for."""

_PROGRAMS: Final[tuple[tuple[str, str], ...]] = (
    ("gromacs", r"gmx(?:_\w+)?|mdrun(?:_\w+)?"),
    ("lammps", r"lmp(?:[_-][\w-]+)?|lammps"),
    ("namd", r"namd[23]?(?:\.\w+)?"),
    ("amber", r"(?:pmemd|sander)(?:\.\w+)*"),
    ("vasp", r"vasp(?:[_.][\w.]+)?"),
    ("quantum-espresso", r"(?:pw|ph|cp|neb)\.x"),
    ("cp2k", r"cp2k(?:\.\w+)?"),
    ("openfoam", r"(?:simple|pimple|piso|inter|rhoCentral|buoyant\w*)Foam"),
    ("relion", r"relion(?:_\w+)*"),
    ("alphafold", r"run_alphafold(?:\.sh)?"),
    ("hoomd", r"hoomd"),
    ("wrf", r"wrf(?:\.exe)?"),
    ("nekrs", r"nekrs|nekbone"),
    ("hpl", r"x?hpl(?:\.\w+)?|hpcg|xhpcg"),
    ("ansys", r"ansys\w*|fluent"),
    ("abaqus", r"abaqus"),
    ("comsol", r"comsol"),
    ("matlab", r"matlab"),
    ("julia", r"julia"),
    ("r", r"Rscript|R"),
    ("octave", r"octave(?:-cli)?"),
    ("nccl-tests", r"(?:all_reduce|all_gather|reduce_scatter|broadcast)_perf"),
    ("blender", r"blender"),
    ("ollama", r"ollama"),
    ("vllm", r"vllm"),
    ("llama.cpp", r"llama-(?:cli|server|bench)"),
    ("jupyter", r"jupyter(?:-\w+)?"),
    ("python", r"python(?:[23](?:\.\d+)?)?|ipython"),
)
_PROGRAM = re.compile("|".join(f"(?P<p{number}>{pattern})" for number, (_, pattern) in enumerate(_PROGRAMS)))

FRAMEWORK_OF_MODULE: Final[Mapping[str, str]] = {
    "torch": "pytorch", "torchvision": "torchvision", "torchaudio": "torchaudio", "torchtext": "torchtext",
    "pytorch_lightning": "lightning", "lightning": "lightning", "tensorflow": "tensorflow", "keras": "keras",
    "jax": "jax", "flax": "flax", "haiku": "haiku", "optax": "jax", "mxnet": "mxnet", "paddle": "paddle",
    "transformers": "transformers", "diffusers": "diffusers", "datasets": "datasets", "peft": "peft", "trl": "trl",
    "accelerate": "accelerate", "deepspeed": "deepspeed", "megatron": "megatron", "fairseq": "fairseq",
    "nemo": "nemo", "colossalai": "colossalai", "horovod": "horovod", "apex": "apex", "timm": "timm",
    "torch_geometric": "torch-geometric", "dgl": "dgl", "detectron2": "detectron2", "mmcv": "mmcv", "mmdet": "mmdet",
    "ultralytics": "ultralytics", "monai": "monai", "xgboost": "xgboost", "lightgbm": "lightgbm",
    "catboost": "catboost", "sklearn": "scikit-learn", "cupy": "cupy", "numba": "numba", "cudf": "rapids",
    "cuml": "rapids", "openmm": "openmm", "hoomd": "hoomd", "ase": "ase", "stable_baselines3": "stable-baselines3",
    "gymnasium": "gymnasium", "ray": "ray", "vllm": "vllm", "cv2": "opencv",
}  # fmt: skip

_SIZE: Final = r"(?:[-_]?(?:[bv]?\d{1,4}(?:\.\d+)?[bmkls]?|tiny|mini|small|base|medium|large|xxl|xl|huge)(?![a-z0-9]))"
_MODELS: Final = """
    wide_resnet resnext resnet vgg alexnet inception googlenet densenet efficientnet mobilenet shufflenet squeezenet
    mnasnet regnet convnext deit beit swin vit nvit u-?net deeplab yolo(?:v?\\d+[nsmlx]?)? mask-?rcnn faster-?rcnn
    retinanet ssd detr distilbert roberta deberta albert electra bert codegen starcoder gpt-?neox gpt-?neo gpt-?j
    gpt llama mixtral mistral qwen falcon bloom phi gemma deepseek opt t5 bart pegasus whisper wav2vec2? hubert
    conformer tacotron waveglow deepspeech clip stable-?diffusion sdxl unet2d ddpm dlrm ncf recoder autoencoder vae
    cyclegan dcgan stylegan gan transformer lstm gru rnn graphsage gcn gat gin schnet dimenet egnn pointnet nerf
    alphafold openfold esm ppo dqn a3c sac pinn fno mlp cnn
""".split()
_MODEL = re.compile(rf"(?P<family>{'|'.join(_MODELS)})(?P<size>{_SIZE}{{0,2}})")
_DATASETS: Final = """
    imagenet cifar100 cifar10 cifar-100 cifar-10 fashion-?mnist mnist svhn coco voc ade20k cityscapes kitti kinetics
    celeba lsun laion wikitext-?103 wikitext-?2 wikitext wikipedia openwebtext bookcorpus c4 pile redpajama alpaca
    squad glue sst2 mnli cola imdb wmt14 wmt16 multi30k librispeech ljspeech commonvoice movielens ml-20m ml-1m
    ml-100k criteo ogbn-products ogbn-arxiv ogbn-papers100m ogbn-proteins ogbn-mag ogbg-molhiv ogbg-molpcba ogbg-ppa
    cora citeseer pubmed reddit qm9 md17 zinc modelnet shapenet mc4
""".split()
_DATASET = re.compile(rf"(?<![a-z0-9])(?:{'|'.join(_DATASETS)})(?![a-z0-9])")

BATCH_KEYS: Final = frozenset(
    """
    batch_size batchsize bs train_batch_size per_device_train_batch_size per_gpu_train_batch_size micro_batch_size
    train_micro_batch_size_per_gpu global_batch_size batch
""".split()
)
EPOCH_KEYS: Final = frozenset(
    """
    epochs epoch num_epochs n_epochs max_epochs num_train_epochs train_epochs nepochs
""".split()
)
STEP_KEYS: Final = frozenset(
    """
    max_steps steps num_steps n_steps total_steps train_steps num_train_steps train_iters iterations iters max_iters
    num_iters niter nsteps max_train_steps total_timesteps
""".split()
)
MODEL_KEYS: Final = frozenset(
    """
    model arch architecture model_name model_type model_name_or_path backbone net network encoder model_id
    pretrained_model_name_or_path config_name base_model
""".split()
)
DATASET_KEYS: Final = frozenset(
    """
    dataset data dataset_name data_path data_dir task datasets train_data data_root
""".split()
)
PRECISION_KEYS: Final = frozenset(
    """
    precision dtype mixed_precision torch_dtype amp fp16 bf16 half tf32 fp8 use_amp
""".split()
)
CONFIG_KEYS: Final = frozenset(
    """
    config config_file cfg conf configuration deepspeed_config ds_config
""".split()
)
_PRECISIONS: Final[tuple[tuple[str, str], ...]] = (
    ("bf16", r"bf16|bfloat16"),
    ("fp16", r"fp16|float16|half|16(?:-true)?"),
    ("tf32", r"tf32"),
    ("fp8", r"fp8"),
    ("fp64", r"fp64|float64|double|64(?:-true)?"),
    ("int8", r"int8"),
    ("fp32", r"fp32|float32|float|32(?:-true)?|no"),
    ("mixed", r"amp|mixed\S*|16-mixed|use_amp|o[12]"),
)


def known_program(name: str) -> str:
    """Return the word for a program's file name; empty where it is on no list."""
    match = _PROGRAM.fullmatch(name) if len(name) <= 64 else None
    return "" if match is None else _PROGRAMS[int(str(match.lastgroup)[1:])][0]


def model_word(text: str) -> str:
    """Return the first model family in a name with its size; empty where there is none."""
    text = text[:256].rstrip("/").rpartition("/")[2][:128]
    if not text.isascii():
        text = text.encode("ascii", "replace").decode()
    for match in _MODEL.finditer(text.lower()):
        begin, end = match.span("family")
        if _begins_word(text, begin) and (end == len(text) or not text[end].islower() or match["size"]):
            return (match["family"] + match["size"]).replace("_", "-")[:32]
    return ""


def _begins_word(text: str, index: int) -> bool:
    before = text[index - 1] if index else " "
    return not before.isalpha() or (before.islower() and text[index].isupper())


def dataset_word(text: str) -> str:
    """Return the first data set in a name; empty where there is none."""
    match = _DATASET.search(text[:256].lower().replace("_", "-"))
    return "" if match is None else match[0][:32]


def precision_word(text: str) -> str:
    """Return the word for a precision as options write it; empty where it is none."""
    word = text[:32].lower().removeprefix("torch.").removeprefix("tf.").removeprefix("jnp.")
    return next((name for name, pattern in _PRECISIONS if re.fullmatch(pattern, word)), "")


def option_key(text: str) -> str:
    """Return the one spelling of an option's name: `--Batch-Size` and `batch_size` are one."""
    return text[:64].lstrip("-").lower().replace("-", "_")


def behind_subcommand(words: Sequence[str], subcommands: frozenset[str] | None) -> Sequence[str]:
    """Return a launcher's words from its subcommand on; nothing where it is none that starts a program."""
    if subcommands is None:
        return words
    first = next((index for index, word in enumerate(words[1:], start=1) if not word.startswith("-")), 0)
    return words[first:] if first and words[first] in subcommands else ()


def program_index(words: Sequence[str]) -> int | None:
    """Return where the program begins behind a launcher and its options."""
    for index, word in enumerate(words[1:], start=1):
        base = word.rpartition("/")[2]
        starts = known_program(base) or base in LAUNCHERS or base in TRANSPARENT or base in SHELLS
        if not word.startswith("-") and "=" not in word and (starts or base.endswith((".py", ".sh"))):
            return index
    index = 1
    while index < len(words):
        word = words[index]
        if word == "--":
            return index + 1 if index + 1 < len(words) else None
        if word.startswith("-"):
            takes_next = "=" not in word and index + 1 < len(words) and not _looks_started(words[index + 1])
            index += 2 if takes_next else 1
        elif "=" in word:
            index += 1
        else:
            return index
    return None


def _looks_started(word: str) -> bool:
    return word.startswith(("-", "./", "/", "../"))


def given_inline(words: Sequence[str]) -> str:
    """Return what a shell is given with -c; empty where it is given a file."""
    for index, word in enumerate(words[1:], start=1):
        if not word.startswith("-"):
            return ""
        if not word.startswith("--") and word.endswith("c"):
            return words[index + 1] if index + 1 < len(words) else ""
    return ""
