#!/usr/bin/env bash
# The reference search of results/reference, on a machine with an H200. Resumable: call it again and it goes on.
#   bash runs/reference.sh MATRICES [OUT] [SECOND_OPINION.py]
# MATRICES holds the real matrices (NAME.mtx.gz). Every finalist is verified and timed beside every cuSPARSE variant in a
# fresh process; several races run side by side, but only one times at a time. About an hour and a half in all.
set -euo pipefail
matrices=$1 out=${2:-results/reference} tool=${3:-}
python=${PYTHON:-.venv/bin/python}
searches=${SEARCHES:-3} races=${RACES:-4}

for problem in "--op spmv --dtype f32" "--op spmv --dtype f64" "--op spmm --dtype f32 --columns 64"; do
    for ((i = 0; i < searches; i++)); do
        # shellcheck disable=SC2086  # the words of a problem are words
        "$python" -m sparserl.bench explore --out "$out" --matrices "$matrices" $problem --share "$i/$searches" &
    done
    wait
    for ((i = 0; i < races; i++)); do
        # shellcheck disable=SC2086
        "$python" -m sparserl.bench race --out "$out" --matrices "$matrices" $problem --share "$i/$races" &
    done
    wait
done
if [[ -n $tool ]]; then
    "$python" -m sparserl.bench anchors --out "$out" --matrices "$matrices" --tool "$tool"
    "$python" -m sparserl.bench anchors --out "$out" --matrices "$matrices" --tool "$tool" --solver
fi
"$python" -c 'import zstandard' 2>/dev/null || { echo "measured; pack, table and page need zstandard"; exit 0; }
"$python" -m sparserl.bench pack "$out"
"$python" -m sparserl.bench table "$out" --into README.md
"$python" -m sparserl.bench page "$out"
