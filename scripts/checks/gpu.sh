#!/usr/bin/env bash
# Run all checks that need a GPU, on a machine that is lent for an hour, in sittings of nine minutes.
#
#     bash scripts/checks/gpu.sh pack                  # here: outputs/gpu.tar.xz.00 …, each of at most 16 MB
#     cat gpu.tar.xz.* | tar xJ && cd cassi-gpu        # there: it needs bash, tar, xz, and Python with torch, numpy,
#                                                      # scipy, tifffile, h5py, nothing else and no network
#     bash scripts/checks/gpu.sh                       # there: run the next steps for nine minutes, into outputs/gpu
#     bash scripts/checks/gpu.sh FOLDER                # the same, into another folder
#     bash scripts/checks/gpu.sh --only 'c_.*'         # only steps of these names; the table keeps the others
#     bash scripts/checks/gpu.sh --dry-run             # print the steps, run nothing
#     bash scripts/checks/gpu.sh rehearse              # here: all steps in an empty environment, on the CPU
#
# Exit status: 0: all steps are done. 1: all are done, and some failed. 75: steps are left, so give the command again.
# A step that is done does not run again; to repeat it, remove FOLDER/NAME.row. A training resumes where it was stopped.
# After each sitting, the archives a.tar.xz (operators), b (memory and races), c (speed) and d (training) have the
# logs, with at most 16 MB each, and table.md has the table. Commit the table as docs/reference/gpu.md.
#
# DEVICE=cpu runs the steps on the CPU, with small sizes. PYTHON is the Python. SECONDS_EACH=540 is the length of a sitting.
set -u
cd "$(dirname "$0")/../.." || exit 2
LARGEST=16000000 # bytes of an archive
PACKAGES="hydra omegaconf antlr4 yaml safetensors tqdm tabulate.py tabulate typing_extensions.py packaging \
  _pytest pytest pluggy iniconfig pytest_timeout.py pytest_timeout-*.dist-info pygments lightning lightning_utilities torchmetrics"
BARE="torch torchgen functorch numpy numpy.libs scipy scipy.libs tifffile h5py h5py.libs sympy mpmath \
  networkx jinja2 markupsafe filelock fsspec setuptools"

# pack: archive the sources, the weights, the libraries for sm_90, and the packages in PACKAGES, which
# the machine need not have.
pack() {
  local into=outputs/gpu.tar.xz stage found package
  stage=$(mktemp -d) && mkdir -p outputs "$stage/cassi-gpu/carried" "$stage/cassi-gpu/lib" || exit 2
  git ls-files -z -- cassi conf data tests scripts pyproject.toml csrc \
    | grep -zvE 'plotly|^data/video|^cassi/viz/report' | xargs -0 cp --parents -t "$stage/cassi-gpu"
  found=$($python -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])')
  ln -s ../conf "$stage/cassi-gpu/cassi/conf" # as an installation has it
  for package in $(cd "$found" && ls -d $PACKAGES 2> /dev/null); do
    cp -rL "$found/$package" "$stage/cassi-gpu/carried"
  done
  find "$stage" -name __pycache__ -o -name '*.pyc' | xargs rm -rf
  # An installation for development has its library in another folder than its sources.
  cp "$($python -c 'import cassi, glob; print(*(f for p in cassi.ops.__path__ for f in glob.glob(p + "/_cpu.so")))')" \
    "$stage/cassi-gpu/lib" || exit 2
  if [ -f build/gpu/_cuda.so ]; then
    cp build/gpu/_cuda.so "$stage/cassi-gpu/lib"
  elif [ "$DEVICE" = cuda ]; then
    echo "no build/gpu/_cuda.so; build it first, with nvcc:" >&2
    echo "  FORCE_CUDA=1 TORCH_CUDA_ARCH_LIST=9.0 cmake -S . -B build/gpu && cmake --build build/gpu" >&2
    exit 2
  fi
  rm -f "$into".*
  tar c -C "$stage" cassi-gpu | xz -T0 -6 | split -b "$LARGEST" -d - "$into."
  rm -rf "$stage"
  ls -l "$into".*
}

# rehearse: unpack into an empty folder, and run with a Python that only has the packages in BARE.
rehearse() {
  local place found package status=75 real
  pack || exit 2
  place=$(mktemp -d) && mkdir "$place/bare" || exit 2
  found=$($python -c 'import torch, pathlib; print(pathlib.Path(torch.__file__).parents[1])')
  for package in $BARE; do
    [ -e "$found/$package" ] && ln -s "$found/$package" "$place/bare"
  done
  cat outputs/gpu.tar.xz.* | tar xJ -C "$place"
  real=$($python -c 'import sys, os; print(os.path.realpath(sys.executable))')
  while [ $status = 75 ]; do
    env -i PATH=/usr/bin:/bin HOME="$place" ${OMP_NUM_THREADS:+OMP_NUM_THREADS=$OMP_NUM_THREADS} DEVICE=cpu SECONDS_EACH="$each" PYTHON="$real -s" \
      PYTHONPATH="$place/bare" bash "$place/cassi-gpu/scripts/checks/gpu.sh" "$@"
    status=$?
  done
  mkdir -p outputs/gpu-rehearsal && cp "$place"/cassi-gpu/outputs/gpu/* outputs/gpu-rehearsal/ 2> /dev/null
  rm -rf "$place"
  exit $status
}

DEVICE=${DEVICE:-cuda}
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-4} # the reference of the tests runs on the CPU, on small tensors
python=${PYTHON:-.venv/bin/python}
each=${SECONDS_EACH:-540}
[ -d carried ] && python=${PYTHON:-python3} && export PYTHONPATH=$PWD:$PWD/carried:${PYTHONPATH:-} CASSI_LIBRARY_DIR=$PWD/lib
case "${1:-}" in
  pack) pack; exit ;;
  rehearse) shift; DEVICE=cpu; rehearse "$@" ;;
esac
dry= only=
while :; do
  case "${1:-}" in
    --dry-run) dry=1; shift ;;
    --only) only=${2:?--only: expected a pattern}; shift 2 ;;
    -*) printf 'expected pack, rehearse, --dry-run, --only REGEX or a folder, got %s\n' "$1" >&2; exit 2 ;;
    *) break ;;
  esac
done
out=${1:-outputs/gpu}
failed=0 left=0
steps=()

# step NAME COMMAND: run a line of bash in the rest of the sitting. Its output goes to NAME.log, and its
# row of the table, which has the last line of the output, to NAME.row. If the sitting ends before the
# step, the next sitting begins with this step. If a whole sitting is too short, the step has failed.
# A step whose name ends in + resumes in the next sitting instead, and cannot fail in this way.
step() {
  local name=${1%+} begun=$SECONDS time status note
  if [ -n "$only" ] && ! [[ $name =~ ^($only)$ ]]; then steps+=("$name"); return; fi
  if [ -n "$dry" ]; then printf '%s: %s\n' "$name" "$2"; return; fi
  steps+=("$name")
  if [ -f "$out/$name.row" ]; then grep -q '| failed' "$out/$name.row" && failed=1; return; fi
  time=$((each - SECONDS))
  if [ $left = 1 ] || [ $time -lt $((each / 20)) ]; then left=1; return; fi
  printf '%s …' "$name"
  timeout -s TERM -k 20 "$time" bash -o pipefail -c "$2" > "$out/$name.log" 2>&1; status=$?
  case $status in
    0) status=ok ;;
    124 | 137 | 143)
      if [ "$name" != "$1" ] || [ "$begun" -gt 10 ]; then
        printf ' goes on in the next sitting\n'; left=1; return
      fi
      status="failed: longer than $each s"; failed=1 ;;
    *) status="failed: $status"; failed=1 ;;
  esac
  note=$(grep -v '^[[:space:]]*$' "$out/$name.log" | tail -n 1 | tr '|' ' ' | cut -c 1-120)
  printf ' %s\n' "$status"
  printf '| %s | %s | %d | %s |\n' "$name" "$status" $((SECONDS - begun)) "$note" > "$out/$name.row"
}

# section NAME: print the tables in the output of a step, if it has run.
section() {
  [ -f "$out/$1.log" ] || return
  printf '\n## %s\n\n' "$1"
  grep '^|' "$out/$1.log"
}

# archive LETTER: put the files of these steps into one archive; if it is too large, only logs and rows.
archive() {
  local file="$out/$1.tar.xz"
  (cd "$out" && tar cJ --exclude='*.ckpt' --exclude=starts "$1"_*) > "$file" 2> /dev/null
  if [ "$(stat -c %s "$file")" -gt $LARGEST ]; then
    (cd "$out" && tar cJ "$1"_*.log "$1"_*.row) > "$file" 2> /dev/null
  fi
}

[ -n "$dry" ] || mkdir -p "$out" || exit 2

# A: the operators on the device against the reference.
step a_backend "$python -c 'import torch, cassi; found = cassi.ops.backend(torch.device(\"$DEVICE\")); print(found); assert found == \"compiled\"'"
quiet="-p no:cacheprovider -o timeout=3000"
[ "$DEVICE" = cuda ] && marked="-m cuda" || marked="-k data_step"
step a_tests "$python -m pytest -q $quiet $marked -ra tests/ops tests/systems tests/solvers"
# The same tests as for the CPU's kernels: every size, step, dtype and layout. Tests of `others` do not
# apply to another device.
others='instruction or thread_count or larger_than or every_operator or compiles or lack_of or failed_before or too_little'
[ "$DEVICE" = cuda ] || others="$others or random or property or more_than_fits" # shared memory is that of a GPU
for file in emulated_cases test_compiled test_compiled_camera test_compiled_signal test_compiled_tv; do
  step "a_parity_$file" "CASSI_TEST_DEVICE=$DEVICE $python -m pytest -q $quiet tests/ops/$file.py -k 'not ($others)'"
done

# B: memory errors and races. Without torch's cache, each tensor has its own memory, so that an access
# beyond its end is seen.
for tool in memcheck racecheck synccheck; do
  for case in random_calls test_tv_prox '(test_every_operator and taps)' '(test_camera and dtype2 and size0)'; do
    name=b_${tool}_$(printf %s "$case" | tr ' ' _ | tr -dc '[:alpha:]_')
    random="$python -m pytest -x $quiet tests/ops/test_cuda.py -k '$case'"
    if [ "$DEVICE" = cuda ]; then
      step "$name" "PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $tool --error-exitcode 1 $random"
    fi
  done
done

# C: speed.
[ "$DEVICE" = cuda ] && sizes= small="--seconds 0.2" || sizes="--sizes 64 --seconds 0.1" small="--shapes 1x8x64x64 --seconds 0.01"
ops="$python -m scripts.benchmarks.ops --device $DEVICE"
step c_ops "$ops --workload memory --dtype float32 bfloat16 --json $out/c_ops.json $small"
step c_ops_channels_last "$ops --workload memory --channels-last --json $out/c_ops_channels_last.json $small"
step c_forms "$ops --workload operators --json $out/c_forms.json $small"
step c_cameras "$ops --workload cameras --json $out/c_cameras.json $small"
networks="$python -m scripts.benchmarks.networks --device $DEVICE $sizes --models dauhst_2stg mst_s cassi_net"
step c_models "$networks --json $out/c_models.json"
step c_train "$networks --train --json $out/c_train.json"
step c_methods "$python -m scripts.benchmarks.methods --device $DEVICE --batches 1 16 --trace $out/c_methods ${sizes:+--size 64}"

# D: training, resumed in each sitting.
[ "$DEVICE" = cuda ] && count=300 more=trainer.precision=bf16-mixed || count=4 more="data.crop=32 model.start=2 model.training_start=2"
[ "$DEVICE" = cuda ] && kind=gpu || kind=cpu
train="model=cassi_net trainer.accelerator=$kind trainer.enable_progress_bar=false logger=csv data.workers=0"
step d_steps "$python -m cassi.apps.train $train $more trainer.max_steps=$count --dry-run"
step d_steps_kept "$python -m cassi.apps.train $train $more trainer.max_steps=$count data.pool=8 data.reuse=8 task.starts=$out/d_starts --dry-run"
step d_train+ "$python -m cassi.apps.train $train $more trainer.max_steps=$count callbacks.last.every_minutes=2 ckpt=last hydra.run.dir=$out/d_train"
if [ "$DEVICE" = cuda ]; then
  step d_two_processes "rm -rf $out/d_two && $python -m scripts.checks.two_processes $train trainer.max_steps=20 hydra.run.dir=$out/d_two"
fi

[ -n "$dry" ] && exit 0
for letter in a b c d; do archive $letter; done
{
  printf '# Measured on a GPU\n\n'
  nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2> /dev/null
  $python -c 'import torch; print("torch", torch.__version__, "of CUDA", torch.version.cuda)' 2> /dev/null
  git log -1 --format='commit %h, %cs' 2> /dev/null
  printf '\n| step | result | s | last words |\n|---|---|---|---|\n'
  for name in "${steps[@]}"; do cat "$out/$name.row" 2> /dev/null; done
  for name in c_methods c_ops c_ops_channels_last c_forms c_cameras c_models c_train d_steps d_steps_kept; do section $name; done
} > "$out/table.md"
cat "$out/table.md"
if [ $left = 1 ]; then echo "steps are left: give the same command again"; exit 75; fi
exit $failed
