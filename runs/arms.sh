#!/usr/bin/env bash
# What arms of `runs/ablations.sh` begin with, where that is not the fine-tuned policy itself. Resumable: call it again
# with the same arguments, and what is done is not done again.
#   bash runs/arms.sh OUT --weights SFT --collection DIR (--corpus DIR | --pretrain DIR) [--matrices DIR] [--prepare]
#       [--epochs N] [--size NAME] [--budget S] [STAGE …] [-- OPTION …]
# OUT           OUT/blind (for --blind), OUT/turns (--turned), OUT/with/1-0-with and OUT/without/1-0-without
#               (--pretrained and --scratch)
# --weights     the fine-tuned policy: without its encoder it learns for two epochs to do without, taught to write again
#               it becomes the one for turns, and its encoder is that of the two for pretraining
# --corpus      what `sparserl train corpus` wrote; --pretrain: a run of `sparserl train pretrain` that is there already.
#               Only the stage 'with' needs one of them
# --prepare     only what needs no GPU: OUT/tokens.npz, OUT/samples.npz
# --epochs      of the fine-tunings 'with' and 'without' [4]. After two of them these policies are right in two of three
#               programs, and what fails makes judging five times as slow (LOG.md, 2026-11-19)
# --size        of the policy [nano]
# --budget      seconds for this call; if that is not enough it ends with code 75 (try again)
# STAGE         blind, turns, with, without [all of them]
# OPTION        of all four trainings of SFT's kind, such as --target sim --device cpu
# The trainings are done side by side: with two epochs, 216 s for all four on an H200 that a CUDA MPS daemon shares out.
# Each has one seed, which stands behind all seeds of the arms that begin with it.
set -euo pipefail
trap 'kill $(jobs -rp) 2>/dev/null || :' EXIT  # what runs beside ends with this script, however that ends
out=${1:?give the folder of the runs} && shift
weights="" collection="" corpus="" pretrain="" matrices=() only="" epochs=4 size=nano budget=0 stages=() options=()
while (($#)); do
    case $1 in
        --weights) weights=$2 && shift 2 ;;
        --collection) collection=$2 && shift 2 ;;
        --corpus) corpus=$2 && shift 2 ;;
        --pretrain) pretrain=$2 && shift 2 ;;
        --matrices) matrices=(--matrices "$2") && shift 2 ;;
        --prepare) only=yes && shift ;;
        --epochs) epochs=$2 && shift 2 ;;
        --size) size=$2 && shift 2 ;;
        --budget) budget=$2 && shift 2 ;;
        --) shift && options=("$@") && break ;;
        blind | turns | with | without) stages+=("$1") && shift ;;
        -*) echo "arms.sh: there is no option $1; the first lines of the script say which there are" >&2 && exit 2 ;;
        *) echo "arms.sh: there is no stage '$1': blind turns with without" >&2 && exit 2 ;;
    esac
done
((${#stages[@]})) || stages=(blind turns with without)
asked() { [[ " ${stages[*]} " == *" $1 "* ]]; }
[[ -n $weights && -n $collection ]] || { echo "arms.sh: give --weights DIR and --collection DIR" >&2 && exit 2; }
! asked with || [[ -n $corpus || -n $pretrain || -f $out/tokens.npz ]] ||
    { echo "arms.sh: give --corpus DIR or --pretrain DIR" >&2 && exit 2; }
python=${PYTHON:-.venv/bin/python}
read -ra sparserl <<<"${SPARSERL:-$python -m sparserl}"
mkdir -p "$out"
tokens=(--tokens "$out/tokens.npz") && [[ -z $corpus ]] || tokens+=(--corpus "$corpus")
fine=(--collection "$collection" --samples "$out/samples.npz" "${matrices[@]}")

train() {  # WORD …: `sparserl train`, in what is left of the time
    local left=0
    if ((budget)); then
        left=$((budget - SECONDS))
        ((left > 0)) || { echo "the time is up; call again to go on" && exit 75; }
    fi
    "${sparserl[@]}" train "$@" --budget "$left"
}
prepare() {  # not within the trainings: they would all make the same file
    ! asked with || [[ -n $pretrain || -f $out/tokens.npz ]] ||
        "${sparserl[@]}" train pretrain --only-tokens --out "$out/pretrain" "${tokens[@]}"
    [[ -f $out/samples.npz ]] || "${sparserl[@]}" train sft --only-samples --out "$out/blind" --weights "$weights" "${fine[@]}"
}
blind() {
    train sft --out "$out/blind" --weights "$weights" --blind "${fine[@]}" --epochs 2 --learning-rate 4e-4 --resume \
        "${options[@]}"
}
turns() { train turns --out "$out/turns" --weights "$weights" "${fine[@]}" --epochs 1 --resume "${options[@]}"; }
fine_tuned() {  # FOLDER SHARE PRETRAINED: alike, but for what they begin with
    train worth --out "$out/$1" --share "$2" --weights "$3" --encoder "$weights" "${fine[@]}" --size "$size" \
        --fraction 1 --seeds 1 --epochs "$epochs" "${options[@]}"
}
with() {
    [[ -n $pretrain ]] || train pretrain --out "$out/pretrain" "${tokens[@]}" --size "$size" --resume
    fine_tuned with 0/2 "${pretrain:-$out/pretrain}"
}
without() { fine_tuned without 1/2 "$weights"; }  # of the weights it is told the size alone

prepare
[[ -z $only ]] || exit 0
jobs=() code=0
for stage in "${stages[@]}"; do
    "$stage" >"$out/$stage.log" 2>&1 &
    jobs+=($!)
done
for i in "${!jobs[@]}"; do  # of several codes a fault's counts, not that of a time that was up
    wait "${jobs[i]}" || {
        found=$? && ((code != 0 && code != 75)) || code=$found
        tail -n 5 "$out/${stages[i]}.log" >&2
    }
done
for stage in "${stages[@]}"; do tail -n 1 "$out/$stage.log"; done
exit "$code"
