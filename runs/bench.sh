#!/usr/bin/env bash
# The benchmark of the shipped policy on one GPU, and the page, picture and table that are made of it. Resumable: call it
# again with the same arguments, and it goes on.
#   bash runs/bench.sh OUT --matrices DIR [--tool PATH.py] [--processes N] [--budget S] [--device D] [--readme FILE]
#                      [STAGE …] [-- OPTION …]
# OUT          folder of the records, such as results/bench; what tuning costs lies in OUT/16, OUT/4 and OUT/1
# --matrices   folder with the real matrices (NAME.mtx.gz)
# --tool       an independent script that times cuSPARSE, for the stage anchors
# --processes  side by side on the GPU [5]: one tunes and verifies while another one's programs are timed
# --budget     seconds for this call, from when on no matrix is begun; if that is not enough it ends with code 75 (try again)
# --device     cuda or sim [cuda]
# --readme     a file that gets the table and the picture between its markers [README.md where OUT is results/bench]
# STAGE        spmv    float32 in solver and chain mode: real matrices outside of training, unseen families, fresh seeds
#                      (fresh.txt, fresh_large.txt: on no list that anybody worked with), and those that training saw
#              double  the same in float64
#              spmm    float32 with 32 and 128 columns, solver mode; without the large ones
#              cost    16, 4 and 1 candidates on a few matrices of every size, in one process that is alone, has tuned
#                      another matrix before, and has nothing at hand that was compiled for these
#              anchors the second opinion on the same matrices, if there is a --tool
#              report  page, picture, goals and the README's table
# OPTION       of every `sparserl bench`
# The records name the commit that was measured; where the repository is not there, it is what SPARSERL_COMMIT says.
set -euo pipefail
cache=""
# what runs beside ends with this script, however that ends
trap 'kill $(jobs -rp) 2>/dev/null || :; rm -rf "$cache"' EXIT
out=${1:?give the folder of the records} && shift
folder="" tool="" readme="" processes=5 budget=0 device=cuda stages=() options=()
while (($#)); do
    case $1 in
        --matrices) folder=$2 && shift 2 ;;
        --tool) tool=$2 && shift 2 ;;
        --processes) processes=$2 && shift 2 ;;
        --budget) budget=$2 && shift 2 ;;
        --device) device=$2 && shift 2 ;;
        --readme) readme=$2 && shift 2 ;;
        --) shift && options=("$@") && break ;;
        -*) echo "bench.sh: there is no option $1; the first lines of the script say which there are" >&2 && exit 2 ;;
        *) stages+=("$1") && shift ;;
    esac
done
[[ -n $folder ]] || { echo "bench.sh: name the folder of the real matrices, --matrices DIR" >&2 && exit 2; }
((${#stages[@]})) || stages=(spmv double spmm cost anchors report)
python=${PYTHON:-.venv/bin/python}
read -ra sparserl <<<"${SPARSERL:-$python -m sparserl}"
lists=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
read -ra held <<<"${HELD:-real unseen $lists/fresh.txt}"
read -ra large <<<"${LARGE-$lists/fresh_large.txt}"
read -ra trained <<<"${TRAINED-train}"
read -ra columns <<<"${COLUMNS_OF_B:-32 128}"
read -ra candidates <<<"${CANDIDATES:-16 4 1}"
costed=${COSTED:-$lists/cost.txt}
warm_up=${WARM_UP:-family:uniform,rows=30000,columns=30000,per_row=8,seed=9300001}  # on no list
last=$((budget ? SECONDS + budget : 0))
mkdir -p "$out"
[[ -n $readme || ! $out -ef $lists/../results/bench ]] || readme=$lists/../README.md

left() { if ((last)); then echo $((last > SECONDS ? last - SECONDS : 1)); else echo 1e9; fi; }
some() {  # LIST …: as options of `sparserl bench`
    printf -- '--matrices\n%s\n' "$@"
}
bench() {  # FOLDER OPTION …
    "${sparserl[@]}" bench --out "$1" --folder "$folder" --device "$device" --budget "$(left)" "${@:2}" \
        "${options[@]}"
}
side_by_side() {  # COMMAND …: as so many processes, each with its --share
    local jobs=() i code=0
    for ((i = 0; i < processes; i++)); do
        "$@" --share "$i/$processes" >"$out/process-$i.log" 2>&1 &
        jobs+=($!)
    done
    for i in "${!jobs[@]}"; do wait "${jobs[i]}" || { code=$? && tail -n 5 "$out/process-$i.log" >&2; }; done
    return "$code"
}
spmv() { mapfile -t which < <(some "${held[@]}" "${large[@]}" "${trained[@]}") && measure --mode solver --mode chain; }
double() { mapfile -t which < <(some "${held[@]}" "${large[@]}") && measure --dtype f64 --mode solver --mode chain; }
spmm() {
    local n
    mapfile -t which < <(some "${held[@]}")
    for n in "${columns[@]}"; do measure --op spmm --columns "$n"; done
}
measure() { side_by_side bench "$out" "${which[@]}" "$@"; }
cost() {
    local n
    mapfile -t which < <(some "$costed")
    for n in "${candidates[@]}"; do
        cache=$(mktemp -d)  # an empty one: what the stages before compiled for the same matrices is not at hand
        SPARSERL_CACHE=$cache bench "$out/$n" "${which[@]}" --candidates "$n" --bare --warm-up "$warm_up"
        rm -rf "$cache"
    done
}
anchors() {
    local of=() each mode
    [[ -n $tool ]] || return 0
    for each in "${held[@]}" "${large[@]}"; do of+=(--of "$each"); done
    for mode in "" --solver; do
        side_by_side "$python" -m sparserl.bench anchors --out "$out" --tool "$tool" --matrices "$folder" "${of[@]}" \
            ${mode:+"$mode"}
    done
}
report() {
    local beside=() asked=() each
    for each in "${candidates[@]}"; do
        [[ ! -f $out/$each/bench.jsonl && ! -f $out/$each/bench.jsonl.zst ]] || beside+=(--beside "$out/$each")
    done
    for each in "${held[@]}"; do asked+=(--of "$each"); done
    for each in "${large[@]}"; do asked+=(--large "$each"); done
    "${sparserl[@]}" report "$out" "${beside[@]}" --picture "$out/picture.svg"
    "$python" -m sparserl.bench goals "$out" "${beside[@]}" "${asked[@]}" --costed "$costed" --matrices "$folder" \
        ${readme:+--into "$readme"}
}

for stage in "${stages[@]}"; do
    case $stage in
        spmv | double | spmm | cost | anchors | report) ;;
        *) echo "bench.sh: there is no stage '$stage': spmv double spmm cost anchors report" >&2 && exit 2 ;;
    esac
done
for stage in "${stages[@]}"; do
    if ((last && SECONDS >= last)) && [[ $stage != report ]]; then
        echo "bench.sh: the time is up before $stage; call it again to go on" >&2 && exit 75
    fi
    "$stage"
done
