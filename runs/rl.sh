#!/usr/bin/env bash
# Reinforcement learning on one GPU (an H200), from a fine-tuned policy, and what must be shown of it. Resumable: call it
# again with the same arguments, and it goes on.
#   bash runs/rl.sh OUT --weights SFT [--matrices DIR] [--collection DIR] [--reference DIR] [--earlier DIR]
#       [--budget SECONDS] [STAGE …]
# OUT           run folders and records; OUT/nano is the policy to ship
# --weights     the policy to begin with, such as OUT/sft of runs/one_gpu.sh; its hash is printed and kept in OUT/from.txt
# --matrices    folder with the real matrices (NAME.mtx.gz); without it, generated ones alone
# --collection  what `sparserl train collect` wrote: the best known of each of its matrices; for the controls of eval
# --reference   the reference search to be held against, such as results/reference
# --earlier     earlier evaluations by split, such as results/rl: what trees, neighbours and single chose is taken from
#               there, in place of minutes for each split
# --budget      seconds, whole ones, for each stage of this call, whatever it has of commands; a stage that is not done
#               ends the call with code 75 (try again)
# STAGE         rl      117 rounds of 64 matrices and 32 programs: 239 616 judged rollouts. Twice as many matrices as a
#                       collection has, and other kinds: on those that it was fine-tuned on there is little to learn.
#                       The run in results/rl/run (113 rounds, of which it has the curves and the rollouts of the last
#                       nine, all in the history: f9a5380; the weights after 109 are shipped, as dev has it) had no
#                       --large-drawn and --strewn matrices in the first 59 rounds, 150 large drawn ones in the next
#                       ten, --admit-steps from the 70th on, --far from the 80th on, played from the 89th on, --shown
#                       from the 102nd on (900, 3000 from the 107th on); --choose-steps, openings of every kind of
#                       layout and --varied 8 in the last four, which were no better
#               ship    int8 weights, as they are evaluated and shipped
#               eval    SFT and RL side by side, with the controls, on the unseen, seen and real split
#               climb   the control: hill-climbing from the best recipe, as many judged tries, on 200 of the matrices
#               play    on the matrices of the climbs the last weights write as many programs once more, twice as many to
#                       choose those from that differ
#               beyond  new programs against the best recipes, and climbs: of the whole run and of 'play' on these 200,
#                       and within 16 samples on the unseen ones; then whether what counts is right elsewhere, too
# All of them without one. On several GPUs: SPARSERL="accelerate launch --num_processes 4 -m sparserl" for the stage rl.
set -euo pipefail
trap 'kill $(jobs -rp) 2>/dev/null || :' EXIT  # what runs beside ends with this script, however that ends
out=${1:?give the folder of the run} && shift
weights="" matrices=() twisted=() collection=() reference=() earlier="" budget=0 stages=()
while (($#)); do
    case $1 in
        --weights) weights=$2 && shift 2 ;;
        --matrices) matrices=(--matrices "$2") twisted=(--twisted 600) && shift 2 ;;
        --collection) collection=(--collection "$2") && shift 2 ;;
        --reference) reference=(--reference "$2") && shift 2 ;;
        --earlier) earlier=$2 && shift 2 ;;
        --budget) budget=$2 && shift 2 ;;
        -*) echo "rl.sh: there is no option $1; the first lines of the script say which there are" >&2 && exit 2 ;;
        *) stages+=("$1") && shift ;;
    esac
done
[[ -n $weights ]] || { echo "rl.sh: name the policy to begin with, --weights DIR" >&2 && exit 2; }
((${#stages[@]})) || stages=(rl ship eval climb play beyond)
python=${PYTHON:-.venv/bin/python}
read -ra sparserl <<<"${SPARSERL:-$python -m sparserl}"
rounds=${ROUNDS:-117} prompts=${PROMPTS:-64} group=${GROUP:-32} count=${COUNT:-200} device=${DEVICE:-cuda}
mkdir -p "$out"
spend() {  # left: the seconds that the stage has still, 0: no limit
    left=0
    [[ $budget != 0 ]] || return 0
    left=$((until - SECONDS))
    ((left > 0)) || { echo "The time is up: call again to go on." && exit 75; }
}
start=$weights
[[ ! -d $weights/policy ]] || start=$weights/policy

rl() {
    sha256sum "$start"/*.safetensors | tee "$out/from.txt"
    "${sparserl[@]}" train rl --weights "$weights" --out "$out/rl" --rounds "$rounds" --prompts "$prompts" \
        --group "$group" --imitate-steps 64 --choose-steps 32 --admit-steps 192 --learning-rate 4e-5 --frozen \
        --cases 1400 --large 250 --drawn 600 --large-drawn 400 --strewn 300 --far 800 --shown 3000 "${twisted[@]}" \
        "${matrices[@]}" "${collection[@]}" \
        --samples "$out/samples.npz" --device "$device" --budget "$budget" --save-every 90 --resume
}
evaluate() {  # written by one process, measured by several; the clock is one process's at a time
    local split name controls minutes share jobs told races=${RACES:-8}
    for split in unseen seen real; do
        [[ $split != real || ${#matrices[@]} -gt 0 ]] || continue
        spend
        controls=() && ((!${#reference[@]})) || controls+=(--policy reference)
        for name in trees neighbours single; do
            if [[ -f $earlier/$split/written-$name.jsonl.zst ]]; then controls+=(--policy "$name=$earlier/$split");
            elif ((${#collection[@]})); then controls+=(--policy "$name"); fi
        done
        told=(eval --policy "sft=$start" --policy "rl=$out/nano" --policy recipes "${controls[@]}" --split "$split"
            --out "$out/eval-$split" --device "$device"
            "${matrices[@]}" "${collection[@]}" "${reference[@]}")
        "${sparserl[@]}" "${told[@]}" --choose-only
        spend
        minutes=$(printf '%d.%02d' $((left / 60)) $((left % 60 * 100 / 60)))
        jobs=()
        for ((share = 0; share < races; share++)); do
            "${sparserl[@]}" "${told[@]}" --minutes "$minutes" --share "$share/$races" >"$out/eval-$split-$share.log" &
            jobs+=($!)
        done
        for share in "${!jobs[@]}"; do wait "${jobs[share]}"; done
        ! grep -h "time is up" "$out/eval-$split"-*.log || exit 75
        "${sparserl[@]}" "${told[@]}" --report-only
    done
}
climb() {
    "${sparserl[@]}" train climb --like "$out/rl" --out "$out/climb" --count "$count" --device "$device" \
        --budget "$budget" "${matrices[@]}"
}
play() {
    "${sparserl[@]}" train play --weights "$out/rl" --like "$out/climb" --out "$out/play" --temperature 0.7 --draws 2 \
        --samples "$out/samples.npz" --device "$device" --budget "$budget" "${matrices[@]}"
}
beyond() {  # against the recipes that the climbs began with: they were fitted to these very matrices
    local side=(--climb "$out/climb" --device "$device" "${matrices[@]}") tried
    for tried in rl play; do
        spend
        mkdir -p "$out/beyond-$tried"
        [[ ! -f $out/climb/recipes.jsonl || -f $out/beyond-$tried/recipes.jsonl ]] ||
            cp "$out/climb/recipes.jsonl" "$out/beyond-$tried/"
        "${sparserl[@]}" train beyond --rollouts "$out/$tried" --out "$out/beyond-$tried" --budget "$left" "${side[@]}"
    done
    spend
    "${sparserl[@]}" train beyond --evaluation "$out/eval-unseen" --writer rl --out "$out/beyond-unseen" \
        --device "$device" --budget "$left" "${matrices[@]}"
    for tried in rl unseen; do "${sparserl[@]}" train beyond --out "$out/beyond-$tried" --elsewhere; done
}
ship() {
    "${sparserl[@]}" train ship --policy "$out/rl/policy" --out "$out/nano" \
        --temperature "${TEMPERATURE:-0.6}" --top-p "${TOP_P:-1}" \
        --problem "spmv f32" --problem "spmv f64" --problem "spmm f32 64"
}

for stage in "${stages[@]}"; do
    printf '== %s\n' "$stage"
    until=$((SECONDS + budget))
    case $stage in
        eval) evaluate ;;
        rl | climb | play | beyond | ship) "$stage" ;;
        *) echo "rl.sh: there is no stage '$stage': rl ship eval climb play beyond" >&2 && exit 2 ;;
    esac
done
