#!/usr/bin/env bash
# The reference search of results/reference, on a machine with an H200. Resumable: call it again and it goes on.
#   bash runs/reference.sh MATRICES [OUT] [SECOND_OPINION.py]
# MATRICES holds the real matrices (NAME.mtx.gz). Every finalist is verified and timed beside every cuSPARSE variant in a
# fresh process; several races run side by side, but only one times at a time. About an hour and a half in all.
set -euo pipefail
matrices=$1 out=${2:-results/reference} tool=${3:-}
python=${PYTHON:-.venv/bin/python}
searches=${SEARCHES:-6} races=${RACES:-4}

shared() {  # COUNT WORDS…: the same command for every share, side by side
    local count=$1 jobs=() i && shift
    for ((i = 0; i < count; i++)); do
        "$python" -m sparserl.bench "$@" --out "$out" --matrices "$matrices" --share "$i/$count" &
        jobs+=($!)
    done
    for i in "${jobs[@]}"; do wait "$i"; done
}

for problem in "--op spmv --dtype f32" "--op spmv --dtype f64" "--op spmm --dtype f32 --columns 64"; do
    read -ra words <<<"$problem"
    shared "$searches" explore "${words[@]}"
    shared "$races" race "${words[@]}"
done
if [[ -n $tool ]]; then
    for dtype in f32 f64; do
        shared 2 anchors --tool "$tool" --dtype "$dtype"
        shared 2 anchors --tool "$tool" --dtype "$dtype" --solver
    done
fi
"$python" -c 'import zstandard' 2>/dev/null || { echo "measured; pack, table and page need zstandard"; exit 0; }
"$python" -m sparserl.bench pack "$out"
"$python" -m sparserl.bench table "$out" --into README.md
"$python" -m sparserl.bench page "$out"
