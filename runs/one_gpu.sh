#!/usr/bin/env bash
# The real training of `nano` on one GPU (an H200). Resumable: call it again, with the same arguments, and it goes on.
#   bash runs/one_gpu.sh OUT [--matrices DIR] [--corpus DIR] [--collection DIR] [--weights DIR] [--budget SECONDS]
#       [--study] [STAGE …]
# OUT         run folders; OUT/nano is the policy to ship
# --matrices  folder with the real matrices (NAME.mtx.gz); without it, generated ones alone
# --corpus    what `sparserl train corpus` wrote; without it, the corpus is downloaded to OUT/corpus
# --collection  what `sparserl train collect` wrote [OUT/collection]
# --weights   begin fine-tuning on what was measured with these, such as `src/sparserl/policy/nano`
# --budget    seconds for each stage of this call; a stage that is not done ends the call with code 75 (try again)
# --study     also the controls (blind, features, learnt) and what pretraining is worth (1, 10, 100 %, three seeds)
# STAGE       corpus tokens collect estimate misfits encoder pretrain sft rank ship; all of them without one; and turns:
#             rewriting what was judged, after rank, for `runs/rl.sh` with several turns
# About two hours: collection an hour and more, pretraining and fine-tuning minutes.
set -euo pipefail
trap 'kill $(jobs -rp) 2>/dev/null || :' EXIT  # what runs beside ends with this script, however that ends
out=${1:?give the folder of the run} && shift
matrices=() corpus="" collection="" weights="" budget=0 study="" stages=()
while (($#)); do
    case $1 in
        --matrices) matrices=(--matrices "$2") && shift 2 ;;
        --corpus) corpus=$2 && shift 2 ;;
        --collection) collection=$2 && shift 2 ;;
        --weights) weights=$2 && shift 2 ;;
        --budget) budget=$2 && shift 2 ;;
        --study) study=yes && shift ;;
        -*) echo "one_gpu.sh: there is no option $1; the first lines of the script say which there are" >&2 && exit 2 ;;
        *) stages+=("$1") && shift ;;
    esac
done
all=(corpus tokens collect estimate misfits encoder pretrain sft rank ship)
((${#stages[@]})) || stages=("${all[@]}")
python=${PYTHON:-.venv/bin/python}
read -ra sparserl <<<"${SPARSERL:-$python -m sparserl}"
collection=${collection:-$out/collection}
tokens=$out/tokens.npz samples=$out/samples.npz
gently=(--learning-rate 2e-4 --epochs 2)
how=(--target h200 --budget "$budget" --resume)
fine=(--collection "$collection" --samples "$samples" "${matrices[@]}" "${how[@]}")
real=() && ((${#matrices[@]})) && real=(--real "${matrices[1]}")
mkdir -p "$out"

corpus() { [[ -n $corpus ]] || "${sparserl[@]}" train corpus --out "$out/corpus"; }
tokens() {
    [[ -f $tokens ]] || "${sparserl[@]}" train pretrain --only-tokens --out "$out/pretrain" --tokens "$tokens" \
        --corpus "${corpus:-$out/corpus}"
}
encoder() {  # the controls are pretrained like the encoder itself, on the same matrices
    local times=() && compgen -G "$collection/cases.jsonl*" >/dev/null && times=(--collection "$collection" --samples "$samples" "${real[@]}")
    one_encoder encoder "${times[@]}"
    [[ -n $study ]] || return 0
    local kind
    for kind in blind features learnt; do
        mkdir -p "$out/encoder-$kind" && ln -sfn ../encoder/examples "$out/encoder-$kind/examples"
    done
    one_encoder encoder-blind --source blind "${times[@]}"
    one_encoder encoder-features --source features "${times[@]}"
    one_encoder encoder-learnt --embedding learnt "${times[@]}"
}
one_encoder() {
    local folder=$out/$1 && shift
    [[ -f $folder/encoder/encoder.json ]] || "${sparserl[@]}" train encoder --out "$folder" "$@"
}
collect() {
    local share problem limit=() races=${RACES:-8} jobs=() problems=()
    for problem in "spmv f32:800" "spmv f64:300" "spmm f32 32:300" "spmm f32 64:300" "spmm f32 128:300"; do
        problems+=(--problem "$problem")
    done
    [[ $budget == 0 ]] || limit=(--budget "$budget")
    for ((share = 0; share < races; share++)); do
        "${sparserl[@]}" train collect --out "$collection" "${problems[@]}" --share "$share/$races" --workers 2 --ahead 1 \
            "${matrices[@]}" "${limit[@]}" >"$out/collect-$share.log" &
        jobs+=($!)
    done
    for share in "${!jobs[@]}"; do wait "${jobs[share]}"; done
    tail -qn 1 "$out"/collect-*.log
    ! grep -q "time is up" "$out"/collect-*.log || exit 75
}
estimate() {  # needs no GPU, but scikit-learn
    local problem cases cut others
    while IFS=, read -r problem cases cut others; do
        ((${#matrices[@]})) || others=0
        "${sparserl[@]}" train estimate --collection "$collection" --out "$out/estimated" --problem "$problem" \
            --cases "$cases" --cut "$cut" --real "$others" "${matrices[@]}" | tail -n 1
    done <<<"spmv f32,5200,1600,2000
spmv f64,1200,0,300
spmm f32 32,1000,0,0
spmm f32 64,1200,0,300
spmm f32 128,1000,0,0"
}
misfits() {  # needs no GPU
    "${sparserl[@]}" train misfits --collection "$collection" "${matrices[@]}" | tail -n 1
    [[ ! -f $out/estimated/cases.jsonl ]] || "${sparserl[@]}" train misfits --collection "$out/estimated" "${matrices[@]}" | tail -n 1
}
pretrain() {
    "${sparserl[@]}" train pretrain --out "$out/pretrain" --tokens "$tokens" --budget "$budget" --resume
}
sft() {
    local controls
    fine_tuned ""
    [[ -n $study ]] || return 0
    for controls in blind features learnt; do fine_tuned "-$controls" "--$controls"; done
    "${sparserl[@]}" train worth --out "$out/worth" --weights "$out/pretrain" --encoder "$out/encoder/encoder" \
        --collection "$collection" --samples "$samples" "${matrices[@]}" --target h200 --budget "$budget"
}
keeping() {  # what taught reading is gone over again: see LOG.md, 2026-11-16
    keep=()
    [[ ! -f $out/estimated/cases.jsonl ]] || keep=(--frozen --again "$out/estimated" --again-samples "$out/estimated.npz")
}
fine_tuned() {  # first on estimates, where there are some, then, at a lower rate, on what was measured; the encoder stays
                # as it was pretrained
    local name=$1 from=(--weights "$out/pretrain" --encoder "$out/encoder$1/encoder") && shift
    if [[ -n $weights && -z $name ]]; then
        from=(--weights "$weights" "${gently[@]}")
    elif [[ -f $out/estimated/cases.jsonl ]]; then
        "${sparserl[@]}" train sft --out "$out/guess$name" "${from[@]}" --collection "$out/estimated" --epochs 2 \
            --samples "$out/estimated.npz" --frozen --pull 4 "${matrices[@]}" "${how[@]}" "$@"
        from=(--weights "$out/guess$name" "${gently[@]}")
    fi
    keeping
    "${sparserl[@]}" train sft --out "$out/sft$name" "${from[@]}" --pull 4 "${keep[@]}" "${fine[@]}" "$@"
}
rank() {
    local name names=("")
    [[ -z $study ]] || names+=(-blind -features -learnt)
    keeping
    for name in "${names[@]}"; do
        "${sparserl[@]}" train rank --out "$out/rank$name" --weights "$out/sft$name" "${keep[@]}" "${fine[@]}"
    done
}
turns() { "${sparserl[@]}" train turns --out "$out/turns" --weights "$out/rank" "${fine[@]}"; }
ship() {
    "${sparserl[@]}" train ship --policy "$out/rank/policy" --out "$out/nano" --temperature "${TEMPERATURE:-0.6}" \
        --problem "spmv f32" --problem "spmv f64" --problem "spmm f32 64"
}

for stage in "${stages[@]}"; do
    [[ " ${all[*]} turns " == *" $stage "* ]] || { echo "one_gpu.sh: there is no stage '$stage': ${all[*]} turns" >&2 && exit 2; }
    printf '== %s\n' "$stage"
    "$stage"
done
