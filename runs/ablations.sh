#!/usr/bin/env bash
# What each part of reinforcement learning is worth, on one GPU. Resumable: call it again with the same arguments.
#   bash runs/ablations.sh OUT --weights SFT [--blind DIR] [--turned DIR] [--pretrained DIR --scratch DIR]
#       [--seeds "0 1 2"] [--results DIR] [--budget S] [--prepare] [ARM …] [-- OPTION …]
# OUT           run folders, OUT/ARM-SEED
# --weights     the fine-tuned policy that every arm begins with, but for those that are named with one of their own
# --blind       one that was fine-tuned without an encoder; without it, the arm 'blind' begins with --weights and is
#               shown the same entries for every matrix
# --turned      one that has learnt to write again what was judged; without it, the arm 'turns' begins with --weights,
#               which has never read a verdict
# --pretrained  and --scratch: fine-tuned alike, with pretraining and without. They are arms beside each other; without
#               the two there are none. `runs/arms.sh` makes all four of them
# --seeds       one run each
# --results     the table and the curves [OUT/results]; those of the arms that pretraining sets apart in 'pretraining'
# ARM           base (GRPO, best of k, hierarchical reward, one turn), ppo, mean, blind, speed, correct, turns,
#               pretrained, scratch
# OPTION        of `sparserl train rl`, for every run: --matrices DIR, --collection DIR, --device sim …
# --budget      seconds for this call; if that is not enough it ends with code 75 (try again)
# --prepare     only what needs no GPU: OUT/samples-SEED.npz and .jsonl
# A run judges 5 120 programs in four rounds, each on the same 40 pairs of matrix and problem, which are the seed's and
# thus those of all its arms; an episode of three turns is three programs, so the groups of 'turns' are a third as large
# (rounded up). Few large rounds: writing 1 280 programs takes hardly longer than writing 640. Matrices have 30 to 300
# thousand nonzeros.
# A process a seed, side by side on the GPU: while one writes or learns, in short pieces, another one's programs are
# judged, and who times something is alone (`pieces`). The arms of a seed come one after the other, with one judge
# (OUT/plan-SEED.txt): what a run judged on a matrix is not judged there again. OUT/seed-SEED.log says how far it is.
set -euo pipefail
trap 'kill $(jobs -rp) 2>/dev/null || :' EXIT  # what runs beside ends with this script, however that ends
out=${1:?give the folder of the runs} && shift
weights="" blind="" turned="" pretrained="" scratch="" seeds="0 1 2" results="" budget=0 prepare="" arms=() options=()
while (($#)); do
    case $1 in
        --weights) weights=$2 && shift 2 ;;
        --blind) blind=$2 && shift 2 ;;
        --turned) turned=$2 && shift 2 ;;
        --pretrained) pretrained=$2 && shift 2 ;;
        --scratch) scratch=$2 && shift 2 ;;
        --seeds) seeds=$2 && shift 2 ;;
        --results) results=$2 && shift 2 ;;
        --budget) budget=$2 && shift 2 ;;
        --prepare) prepare=yes && shift ;;
        --) shift && options=("$@") && break ;;
        -*) echo "ablations.sh: there is no option $1; the first lines of the script say which there are" >&2 && exit 2 ;;
        *) arms+=("$1") && shift ;;
    esac
done
[[ -n $weights ]] || { echo "ablations.sh: name the fine-tuned policy, --weights DIR" >&2 && exit 2; }
if ((!${#arms[@]})); then
    arms=(base ppo mean blind speed correct turns)
    [[ -z $pretrained || -z $scratch ]] || arms+=(pretrained scratch)
fi
python=${PYTHON:-.venv/bin/python}
read -ra sparserl <<<"${SPARSERL:-$python -m sparserl}"
rounds=${ROUNDS:-4} prompts=${PROMPTS:-40} group=${GROUP:-32}
mkdir -p "$out"

settings() {  # ARM: what sets it apart, in `own`
    own=(--weights "$weights")
    case $1 in
        base) ;;
        ppo) own+=(--algorithm ppo) ;;
        mean) own+=(--objective mean) ;;
        blind) if [[ -n $blind ]]; then own=(--weights "$blind"); else own+=(--blind); fi ;;
        speed | correct) own+=(--reward "$1") ;;
        turns) own=(--weights "${turned:-$weights}" --turns 3 --group $(((group + 2) / 3))) ;;
        pretrained) own=(--weights "${pretrained:?the arm pretrained needs --pretrained DIR}") ;;
        scratch) own=(--weights "${scratch:?the arm scratch needs --scratch DIR}") ;;
        *) echo "ablations.sh: there is no arm '$1': base ppo mean blind speed correct turns pretrained scratch" >&2 && exit 2 ;;
    esac
}

for arm in "${arms[@]}"; do settings "$arm"; done  # before hours are spent on the others
runs=() beside=() jobs=() many=$(wc -w <<<"$seeds")
workers=$((($(nproc) + many - 1) / many))
for seed in $seeds; do
    plan=$out/plan-$seed.txt
    : >"$plan"
    for arm in "${arms[@]}"; do
        settings "$arm"
        line=(--out "$out/$arm-$seed" --rounds "$rounds" --prompts "$prompts" --group "$group" --even 1
            --cases 100 --count "$prompts" --most-nonzeros 3e5 --minibatch 64 --warmup 10 --save-every 60 --seed "$seed"
            --samples "$out/samples-$seed.npz" --workers "$workers" --resume "${options[@]}" "${own[@]}")
        printf '%q ' "${line[@]}" >>"$plan"
        echo >>"$plan"
        if [[ $arm == pretrained || $arm == scratch ]]; then beside+=("$out/$arm-$seed"); else runs+=("$out/$arm-$seed"); fi
    done
    if [[ -n $prepare ]]; then  # the matrices of a seed are those of all its arms
        "${sparserl[@]}" train rl "${line[@]}" --only-samples
    else
        "${sparserl[@]}" train rl-many "$plan" --budget "$budget" >"$out/seed-$seed.log" 2>&1 &
        jobs+=($!)
    fi
done
[[ -z $prepare ]] || exit 0
code=0
for job in "${jobs[@]}"; do  # of several codes a fault's counts, not that of a time that was up
    wait "$job" || { found=$? && ((code != 0 && code != 75)) || code=$found; }
done
tail -qn 3 "$out"/seed-*.log
((code == 0)) || exit "$code"
results=${results:-$out/results}
((!${#runs[@]})) || "${sparserl[@]}" train curves --out "$results" "${runs[@]}"
((!${#beside[@]})) || "${sparserl[@]}" train curves --out "$results/pretraining" "${beside[@]}"
