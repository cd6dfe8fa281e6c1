#!/usr/bin/env bash
# Everything that only a GPU can show, in one go: two hours, no network.
#
#     bash scripts/checks/gpu.sh                       # logs, CSV files and table.md in outputs/gpu
#     bash scripts/checks/gpu.sh FOLDER
#     bash scripts/checks/gpu.sh --only 'build|tests'  # steps of these names; the table keeps the rest
#     bash scripts/checks/gpu.sh --dry-run             # print the steps, run nothing
#
# Needs what `make install` installs, a torch with CUDA, nvcc of its major version, and of the CUDA
# toolkit compute-sanitizer. A step that fails is said in the table, and the next one runs; the exit
# status then is 1. Commit table.md as docs/reference/gpu.md.
set -u
cd "$(dirname "$0")/../.." || exit 2
dry= only=
while :; do
  case "${1:-}" in
    --dry-run) dry=1; shift ;;
    --only) only=${2:?--only: expected a pattern}; shift 2 ;;
    -*) printf 'expected --dry-run, --only REGEX or a folder, got %s\n' "$1" >&2; exit 2 ;;
    *) break ;;
  esac
done
out=${1:-outputs/gpu}
python=${PYTHON:-.venv/bin/python}
failed=0
steps=()

# step NAME COMMAND: runs a line of bash; what it prints goes to NAME.log, its row of the table, with
# the last line of that, to NAME.row.
step() {
  if [ -n "$only" ] && ! [[ $1 =~ ^($only)$ ]]; then steps+=("$1"); return; fi
  if [ -n "$dry" ]; then printf '%s: %s\n' "$1" "$2"; return; fi
  local begun=$SECONDS status note
  printf '%s …' "$1"
  timeout 3600 bash -o pipefail -c "$2" > "$out/$1.log" 2>&1; status=$?
  if [ $status = 0 ]; then status=ok; else status="failed: $status"; failed=1; fi
  note=$(grep -v '^[[:space:]]*$' "$out/$1.log" | tail -n 1 | tr '|' ' ' | cut -c 1-120)
  printf ' %s\n' "$status"
  printf '| %s | %s | %d | %s |\n' "$1" "$status" $((SECONDS - begun)) "$note" > "$out/$1.row"
  steps+=("$1")
}

# section NAME: what a step printed of tables, if it has run.
section() {
  [ -f "$out/$1.log" ] || return
  printf '\n## %s\n\n' "$1"
  grep '^|' "$out/$1.log"
}

[ -n "$dry" ] || mkdir -p "$out" || exit 2

arch="\$($python -c 'import torch; print(*torch.cuda.get_device_capability(), sep=\".\")')"
step build "FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST=$arch $python -m pip install --no-build-isolation --no-deps -e ."
step backend "$python -c 'import torch, cassi; found = cassi.ops.backend(torch.device(\"cuda\")); print(found); assert found == \"compiled\"'"
step tests "$python -m pytest -m cuda -ra tests"
# What the kernels of the CPU are tested by: every size, step, dtype, layout and lack of a gradient.
others='instruction or thread_count or larger_than or every_operator or compiles or lack_of or failed_before or too_little'
step parity "CASSI_TEST_DEVICE=cuda $python -m pytest -q -o timeout=3000 tests/ops/emulated_cases.py tests/ops/test_compiled*.py -k 'not ($others)'"

# Without torch's cache of memory, so that each tensor ends where its memory does.
random="$python -m pytest -x -p no:cacheprovider -o timeout=3000 tests/ops/test_cuda.py"
for tool in memcheck racecheck synccheck; do
  step $tool "PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $tool --error-exitcode 1 $random -k 'random_calls or test_tv_prox or test_taps or (test_camera and dtype2 and size0)'"
done

for dtype in float32 bfloat16; do
  step "ops_$dtype" "$python scripts/benchmarks/ops.py --device cuda --dtype $dtype --csv $out/ops_$dtype.csv"
done
step ops_channels_last "$python scripts/benchmarks/ops.py --device cuda --channels-last --workload operators --csv $out/ops_channels_last.csv"
step cameras "$python scripts/benchmarks/ops.py --device cuda --workload cameras --shapes 4x28x256x256 --csv $out/cameras.csv"
step models "$python scripts/benchmarks/models.py --device cuda --csv $out/models.csv"
step train "$python scripts/benchmarks/models.py --device cuda --train --models dauhst_2stg mst_s cassi_net --csv $out/train.csv"

train="trainer.accelerator=gpu trainer.enable_progress_bar=false model=cassi_net"
step train_bf16 "rm -rf $out/bf16 && $python -m cassi.apps.train $train trainer.precision=bf16-mixed trainer.max_steps=300 hydra.run.dir=$out/bf16"
step two_processes "rm -rf $out/two && $python scripts/checks/two_processes.py $train trainer.max_steps=20 hydra.run.dir=$out/two"
step methods "$python -m cassi.apps.evaluate device=cuda 'reconstructors=[gap_tv,auto,pretrained]' progress=false figures=false hydra.run.dir=$out/methods"

[ -n "$dry" ] && exit 0
{
  printf '# Measured on a GPU\n\n'
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null
  "$python" -c 'import torch; print("torch", torch.__version__, "of CUDA", torch.version.cuda)' 2> /dev/null
  git log -1 --format='commit %h, %cs' 2> /dev/null
  printf '\n| step | result | s | last words |\n|---|---|---|---|\n'
  for name in "${steps[@]}"; do cat "$out/$name.row" 2> /dev/null; done
  for name in methods ops_float32 ops_bfloat16 cameras models train; do section $name; done
} > "$out/table.md"
cat "$out/table.md"
exit $failed
