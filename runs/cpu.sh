#!/usr/bin/env bash
# All stages on a tiny policy, with the simulator in place of a GPU: minutes on two cores, no network.
#   bash runs/cpu.sh [OUT] [CORPUS]          (DEVICE=cuda: the same walk on a GPU, to see that all of it works there)
# CORPUS is a folder of CUDA text (what `sparserl train corpus` wrote, or any folder with .cu files); without one, recipe
# texts stand in for it. What comes out has learnt next to nothing: the script shows that every stage works and where its
# files go. runs/one_gpu.sh is the real training.
set -euo pipefail
out=${1:-out/cpu} corpus=${2:-}
python=${PYTHON:-.venv/bin/python}
judged=sim learn=cpu target=sim
[[ ${DEVICE:-sim} == sim ]] || judged=cuda learn=cuda target=h200
read -ra sparserl <<<"${SPARSERL:-$python -m sparserl}"
export TOKENIZERS_PARALLELISM=false
mkdir -p "$out"

say() { printf '\n== %s\n' "$*"; }

if [[ -z $corpus ]]; then
    say "corpus: recipe texts stand in for it"
    corpus=$out/corpus
    "$python" - "$corpus" <<'PY'
import sys
from pathlib import Path
from sparserl.recipes import space
from sparserl.records import Problem
from sparserl.train.withheld import withheld_recipe

folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
for number, recipe in enumerate([r for r in space(Problem()) if not withheld_recipe(r)][::250]):
    (folder / f"{number:03d}.cu").write_text(recipe.text)
PY
fi

say "collection: recipes and variants, judged and timed"
"${sparserl[@]}" train collect --out "$out/collection" --device "$judged" --cases 3 --most-nonzeros 1000 --variants 6 \
    --cheapest 4 --at-random 2 --workers 1 --ahead 0

say "encoder: pretraining on generated matrices and measured times"
"${sparserl[@]}" train encoder --out "$out/encoder" --matrices 48 --withheld 16 --epochs 1 --batch 16 --largest 1000 \
    --width 64 --inner 64 --queries 8 --workers 1 \
    --collection "$out/collection" --samples "$out/samples.npz"

say "pretraining: CUDA text, half of it with a piece to fill in"
"${sparserl[@]}" train pretrain --out "$out/pretrain" --corpus "$corpus" --size tiny --epochs 1 --context 128 \
    --batch-tokens 512 --warmup 5 --device "$learn" --resume

say "estimates: what would be fast on matrices that nobody timed"
"${sparserl[@]}" train estimate --out "$out/estimated" --collection "$out/collection" --cases 3 --most-nonzeros 1000 \
    --workers 0

say "misfits: programs that are fast elsewhere and wrong here"
"${sparserl[@]}" train misfits --collection "$out/collection" --workers 0

say "fine-tuning on estimates"
"${sparserl[@]}" train sft --out "$out/guess" --collection "$out/estimated" --weights "$out/pretrain" \
    --encoder "$out/encoder/encoder" --samples "$out/estimated.npz" --target "$target" --epochs 1 --least-steps 4 \
    --batch-tokens 2560 --warmup 2 --device "$learn" --resume

say "fine-tuning: fast programs for each matrix, and the estimates again"
"${sparserl[@]}" train sft --out "$out/sft" --collection "$out/collection" --weights "$out/guess" \
    --samples "$out/samples.npz" --target "$target" --epochs 1 --least-steps 8 --batch-tokens 2560 --warmup 2 \
    --device "$learn" --resume --frozen --again "$out/estimated" --again-samples "$out/estimated.npz"

say "ranking: the way to the faster of two programs"
"${sparserl[@]}" train rank --out "$out/rank" --collection "$out/collection" --weights "$out/sft" \
    --samples "$out/samples.npz" --target "$target" --batch-tokens 2560 --warmup 2 --device "$learn" --resume \
    --frozen --again "$out/estimated" --again-samples "$out/estimated.npz"

say "rewriting: a faster program, or a right one, after one that was judged"
"${sparserl[@]}" train turns --out "$out/turns" --collection "$out/collection" --weights "$out/rank" \
    --samples "$out/samples.npz" --target "$target" --epochs 1 --least-steps 4 --batch-tokens 2816 --warmup 2 \
    --device "$learn" --resume

say "the policy as it would be shipped, and a sample of it"
"${sparserl[@]}" train ship --policy "$out/rank/policy" --out "$out/nano" --target "$target" --problem "spmv f32"
"$python" - "$out/nano" "$target" <<'PY'
import sys
from pathlib import Path
from sparserl.families import make
from sparserl.policy.sampler import SampleSettings
from sparserl.policy.writer import Writer
from sparserl.records import Problem

pattern = make("stencil2d", 0, nx=16, ny=16, points=5)
settings = SampleSettings(temperature=0.8, max_tokens=120)
writer = Writer(Path(sys.argv[1]))
print(writer.write([pattern], Problem(), 1, machine=sys.argv[2], settings=settings)[0][0].text)
PY
