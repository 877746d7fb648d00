import json
from pathlib import Path

import pytest
from measured_data import MEASURED

from scripts import TORCH_PROGRAM, TRANSFORMERS_PROGRAM, found, written
from slurm_energy.domain.script import ScriptFeatures
from slurm_energy.estimation.script.features import script_features
from slurm_energy.estimation.script.reading import SourceReader

HEADERS = MEASURED / "sbatch_headers" / "sbatch_headers.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return written(
        tmp_path, {"train.py": TORCH_PROGRAM, "helpers.py": "import deepspeed\n", "lm.py": TRANSFORMERS_PROGRAM}
    )


def test_a_program_speaks_through_its_command_line_and_its_source(folder: Path) -> None:
    assert found("#!/bin/bash\nsrun python -u train.py --model resnet50 -b 256 --amp --epochs $1\n", folder, "90") == (
        ScriptFeatures(
            programs=("python",),
            launchers=("srun",),
            frameworks=("pytorch", "torchvision", "deepspeed"),
            model="resnet50",
            dataset="cifar10",
            precision="mixed",
            batch_size=256,
            epochs=90,
            code=found("python train.py", folder).code,
        )
    )


def test_defaults_of_the_program_hold_where_nothing_is_given(folder: Path) -> None:
    features = found("python train.py", folder)
    assert (features.model, features.batch_size, features.epochs, features.precision) == ("resnet18", 64, 10, "")


def test_literal_arguments_of_calls_are_found(folder: Path) -> None:
    features = found("accelerate launch --num_processes 4 lm.py", folder)
    assert (features.model, features.dataset, features.precision) == ("bert-large", "wikitext", "bf16")
    assert (features.batch_size, features.epochs) == (32, 3)
    assert features.frameworks == ("transformers", "datasets", "accelerate")


@pytest.mark.parametrize(
    "line",
    [
        "srun --ntasks 4 --cpu-bind=none python train.py --model vit_base",
        "mpirun -np 4 -x PATH python3 train.py --model vit_base",
        "torchrun --nproc_per_node 4 --nnodes=2 train.py --model vit_base",
        "torchrun --standalone train.py --model=vit_base",
        "python -m torch.distributed.launch --nproc_per_node 8 train.py --model vit_base",
        "deepspeed --num_gpus 4 train.py --model vit_base",
        "apptainer exec --nv -B /data:/data image.sif python train.py --model vit_base",
        "singularity exec --nv image.sif bash -c 'python train.py --model vit_base'",
        "conda run -n torch python train.py --model vit_base",
        "env OMP_NUM_THREADS=4 CUDA_VISIBLE_DEVICES=0 nohup python train.py --model vit_base",
        "OMP_NUM_THREADS=4 timeout 3h python train.py --model vit_base",
        'MODEL=vit_base\nARGS="--model $MODEL"\nsrun python train.py $ARGS',
        'ARGS=(--model\n  "vit_base")\npython train.py "${ARGS[@]}"',
        "for model in vit_base vit_large; do python train.py --model $model; done",
        "run() { python train.py --model vit_base; }\nrun",
        "if true; then python \\\n  train.py \\\n  --model vit_base; fi",
        "python train.py --model ${MODEL:-vit_base} 2>&1 | tee log.txt",
        'srun bash -c "python train.py --model vit_base"',
        "cd $SLURM_SUBMIT_DIR && python train.py --model vit_base",
        "python $SLURM_SUBMIT_DIR/train.py --model vit_base",
        (
            'CMD="train.py --model vit_base"\nexport LAUNCHER="python -m torch.distributed.run --nproc_per_node 4"\n'
            "srun bash -c '$LAUNCHER --node_rank $SLURM_PROCID $CMD'"
        ),
        "eval python train.py --model vit_base",
        "python train.py --model vit_base \\\r\n  --epochs 5\r",
        "python - --x <<EOF\nEOF\npython train.py --model vit_base",
        "source activate x\nconda activate env\npython train.py --model vit_base",
        "ls | xargs -P4 -I{} python train.py --model vit_base",
        "uv run train.py --model vit_base",
        "nsys profile -o out python train.py --model vit_base",
        "python train.py model=vit_base",
        "source ./inner.sh",
        "bash inner.sh",
        "srun ./inner.sh",
    ],
)
def test_launchers_and_shell_forms_are_seen_through(folder: Path, line: str) -> None:
    written(folder, {"inner.sh": "#!/bin/bash\npython train.py --model vit_base\n"})
    features = found(f"#!/bin/bash\n#SBATCH -N 1\nmodule load cuda\n{line}\n", folder)
    assert (features.programs, features.model, features.dataset) == (("python",), "vit-base", "cifar10")


def test_launch_lines_of_real_scripts_name_their_program(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in HEADERS.read_text().splitlines()]
    launched = [row for row in rows if row["launch_line"]]
    assert len(launched) > 20
    before = (
        "LAUNCHER='python -m torch.distributed.launch --nproc_per_node 4'\nCMD='pretrain_gpt.py --micro-batch-size 4'\n"
    )
    features = [
        found("\n".join([row["shebang"], *row["directives"], before, *row["launch_line"]]), tmp_path)
        for row in launched
    ]
    by_variables = [one for row, one in zip(launched, features, strict=True) if "$CMD" in row["launch_line"][0]]
    assert len(by_variables) > 20
    assert {(one.programs, one.model, one.batch_size) for one in by_variables} == {(("python",), "gpt", 4)}


def test_other_programs_are_known_by_name_and_strange_ones_by_a_digest(tmp_path: Path) -> None:
    assert found("mpirun -np 4 gmx_mpi mdrun -deffnm md", tmp_path).programs == ("gromacs",)
    assert found("srun lmp_gpu -in in.lj", tmp_path).programs == ("lammps",)
    one, other = found("srun ./solver_v1 in", tmp_path), found("srun ./miner in", tmp_path)
    assert one.programs == () and len(one.code) == 8
    assert one.code == found("srun ./solver_v2 other", tmp_path).code != other.code


@pytest.mark.parametrize(
    "line",
    ["conda activate env", "apptainer pull docker://x", "srun hostname", "srun --pty bash", "echo python train.py"],
)
def test_what_starts_no_program_says_nothing(tmp_path: Path, line: str) -> None:
    assert not found(line, tmp_path).is_telling


def test_a_program_that_cannot_be_read_is_told_by_a_name_that_says_something(tmp_path: Path) -> None:
    assert found("python train.py", tmp_path).key == found("python /data/main_7.py", tmp_path).key == ""
    assert found("python fold_proteins.py", tmp_path).key != found("python melt_ice.py", tmp_path).key


def test_commands_that_prepare_are_no_programs(tmp_path: Path) -> None:
    text = "module load cuda\necho python train.py\ncp a b\nmkdir -p out\nnvidia-smi\nls *.py\nsleep 5\n"
    assert found(text, tmp_path) == ScriptFeatures()


def test_edits_that_change_no_call_leave_the_digest(tmp_path: Path) -> None:
    before = found("python a.py", written(tmp_path, {"a.py": "import numpy\nx = numpy.ones(3)\n"})).code
    after = found("python a.py", written(tmp_path, {"a.py": "# more\nimport numpy\nx = numpy.ones(500)\n"})).code
    other = found("python a.py", written(tmp_path, {"a.py": "import numpy\nx = numpy.fft.fft(3)\n"})).code
    assert before == after != other


def test_nothing_private_is_among_the_features(folder: Path) -> None:
    secret = "hf_SECRET"
    line = f"python train.py --model /home/smith/{secret}/resnet50 --api-key={secret} --data /scratch/smith/{secret}"
    text = f"export TOKEN={secret}\ncurl -H 'Authorization: {secret}' https://{secret}.example\n{line} --name smith\n"
    sent = found(text, folder, secret, environment={"SECRET": secret}).encode()
    assert found("python train.py --data ogbn-smith", folder).dataset == "cifar10"
    assert "smith" not in sent and secret.lower() not in sent.lower()
    assert "model=resnet50" in sent


def test_configuration_files_are_read_where_the_site_allows_it(folder: Path) -> None:
    written(folder, {"a.yaml": "model: bert-base\nbatch_size: 16  # per GPU\nkey: x\n", "b.json": '{\n "epochs": 7,\n'})
    text = "python train.py --config a.yaml --cfg=b.json"
    assert found(text, folder).model == "resnet18"
    features = found(text, folder, reader=SourceReader(folder, reads_configurations=True))
    assert (features.model, features.batch_size, features.epochs) == ("bert-base", 16, 7)


def test_the_script_alone_is_read_where_the_site_says_so(folder: Path) -> None:
    features = found("srun python train.py --epochs 5", folder, reader=SourceReader(folder, reads_programs=False))
    assert (features.epochs, features.frameworks, features.dataset) == (5, (), "")


def test_what_the_script_says_is_known_before_its_programs_are_read(folder: Path) -> None:
    first, *_, last = script_features("python train.py --epochs 5", (), {}, SourceReader(folder))
    assert (first.epochs, first.frameworks) == (5, ())
    assert last.frameworks == ("pytorch", "torchvision", "deepspeed")
