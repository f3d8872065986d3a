#!/usr/bin/env bash
# What each part of reinforcement learning is worth, on one GPU. Resumable: call it again with the same arguments.
#   bash runs/ablations.sh OUT --weights SFT [--blind DIR] [--turned DIR] [--pretrained DIR --scratch DIR]
#       [--seeds "0 1 2"] [--results DIR] [--budget S] [--prepare] [ARM …] [-- OPTION …]
# OUT           run folders, OUT/ARM-SEED
# --weights     the fine-tuned policy that every arm begins with, but for those that are named with one of their own
# --blind       one that was fine-tuned without an encoder; without it, the arm 'blind' begins with --weights and is
#               shown the same entries for every matrix
# --turned      one that has learnt to write again what was judged: what the arms 'single' and 'turns' begin with.
#               Without it 'turns' begins with --weights, which has never read a verdict, and only if it is named
# --pretrained  and --scratch: fine-tuned alike, with pretraining and without. They are arms beside each other; without
#               the two there are none. `runs/arms.sh` makes all four of them
# --seeds       one run each: of reinforcement learning. All runs of an arm begin with the same weights, so one seed of
#               fine-tuning stands behind them, and the spread between the runs doesn't hold another one's
# --results     the tables and the curves [OUT/results]. Arms that begin with weights of their own stand beside each
#               other: 'single' and 'turns' in DIR/turns, 'pretrained' and 'scratch' in DIR/pretraining. A table that is
#               there already is added to: a run that it has takes the place of the earlier one
# ARM           base (GRPO, best of k, hierarchical reward, one turn), ppo, mean, blind, speed, correct; single (as
#               base, from --turned), turns (three of them); pretrained, scratch
# OPTION        of `sparserl train rl`, for every run: --matrices DIR, --collection DIR, --device sim …
# --budget      seconds for this call; if that is not enough it ends with code 75 (try again)
# --prepare     only what needs no GPU: OUT/samples-SEED.npz and .jsonl
# A run judges 5 120 programs in four rounds, each on the same 40 pairs of matrix and problem, which are the seed's and
# thus those of all its arms. An episode of three turns is at most three programs: 'turns' plays three eighths as many
# episodes, at most 5 760 programs, as some end early; and its minibatches are three eighths as large, so that it takes
# as many optimiser steps. Few large rounds: writing 1 280 programs takes hardly longer than writing 640. Matrices have
# 30 to 300 thousand nonzeros.
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
    arms=(base ppo mean blind speed correct)
    [[ -z $turned ]] || arms+=(single turns)
    [[ -z $pretrained || -z $scratch ]] || arms+=(pretrained scratch)
fi
python=${PYTHON:-.venv/bin/python}
read -ra sparserl <<<"${SPARSERL:-$python -m sparserl}"
rounds=${ROUNDS:-4} prompts=${PROMPTS:-40} group=${GROUP:-32}
mkdir -p "$out"

told() {  # NAME VALUE: what the options for every run say of --NAME, or the value
    local i value=$2
    for ((i = 0; i < ${#options[@]}; i++)); do
        case ${options[i]} in
            --"$1") value=${options[i + 1]:-$value} ;;
            --"$1"=*) value=${options[i]#*=} ;;
        esac
    done
    echo "$value"
}
k=$(told k 8) minibatch=$(told minibatch 64)

settings() {  # ARM: what sets it apart, in `own`
    own=(--weights "$weights")
    case $1 in
        base) ;;
        ppo) own+=(--algorithm ppo) ;;
        mean) own+=(--objective mean) ;;
        blind) if [[ -n $blind ]]; then own=(--weights "$blind"); else own+=(--blind); fi ;;
        speed | correct) own+=(--reward "$1") ;;
        single) own=(--weights "${turned:?the arm single needs --turned DIR}") ;;
        turns)
            local few=$(((3 * group + 7) / 8))
            ((few >= k && few >= 2)) || {
                echo "ablations.sh: of a GROUP of $group the arm 'turns' plays $few episodes, fewer than the $k of" \
                    "best-of-k: set GROUP to $((8 * (k - 1) / 3 + 1)) or more, or give a smaller --k behind --" >&2
                exit 2
            }
            own=(--weights "${turned:-$weights}" --turns 3 --group "$few" --minibatch $(((3 * minibatch + 7) / 8)))
            ;;
        pretrained) own=(--weights "${pretrained:?the arm pretrained needs --pretrained DIR}") ;;
        scratch) own=(--weights "${scratch:?the arm scratch needs --scratch DIR}") ;;
        *) echo "ablations.sh: there is no arm '$1': base ppo mean blind speed correct single turns pretrained scratch" >&2 && exit 2 ;;
    esac
}

for arm in "${arms[@]}"; do settings "$arm"; done  # before hours are spent on the others
jobs=() many=$(wc -w <<<"$seeds")
workers=$((($(nproc) + many - 1) / many))
for seed in $seeds; do
    plan=$out/plan-$seed.txt
    : >"$plan"
    for arm in "${arms[@]}"; do
        settings "$arm"
        line=(--out "$out/$arm-$seed" --rounds "$rounds" --prompts "$prompts" --group "$group" --even 1
            --cases 100 --count "$prompts" --most-nonzeros 3e5 --minibatch "$minibatch" --warmup 10 --save-every 60
            --seed "$seed" --samples "$out/samples-$seed.npz" --workers "$workers" --resume "${options[@]}" "${own[@]}")
        printf '%q ' "${line[@]}" >>"$plan"
        echo >>"$plan"
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

tabled() {  # FOLDER ARM …: the runs of those of the arms that were asked for, beside what the folder's table has
    local folder=$1 arm seed runs=() before=() && shift
    for arm in "$@"; do
        [[ " ${arms[*]} " != *" $arm "* ]] || for seed in $seeds; do runs+=("$out/$arm-$seed"); done
    done
    ((${#runs[@]})) || return 0
    [[ ! -f $folder/ablations.json ]] || before=("$folder/ablations.json")
    "${sparserl[@]}" train curves --out "$folder" --note "$note" "${before[@]}" "${runs[@]}"
}
results=${results:-$out/results}
note="All runs of an arm begin with the same weights: one seed of fine-tuning stands behind them, and what another one \
would have made of it is not in the spread."
tabled "$results" base ppo mean blind speed correct
tabled "$results/turns" single turns
tabled "$results/pretraining" pretrained scratch
