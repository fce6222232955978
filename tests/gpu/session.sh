#!/usr/bin/env bash
# Takes the figures of tests/gpu on a machine with an NVIDIA device, the most important first, within
# twelve minutes. Each is written as soon as it is known; a later call goes on with what is missing.
#
# usage: tests/gpu/session.sh [OUT] [ARCHIVE]...
#   OUT       folder of the figures (default: gpu-session); what it has is not measured again
#   ARCHIVE   Python packages that the machine lacks, as .tar.xz of a site folder or as .whl
# PYTHON names the interpreter (default: python3), MINUTES the time for all of it.
# Without a device, and before anything is measured, it says what is missing.
set -uo pipefail
cd "$(dirname "$0")/../.."
out=$(realpath -m "${1:-gpu-session}")
shift || true
python=${PYTHON:-python3}
ends_at=$((SECONDS + 60 * ${MINUTES:-12}))
mkdir -p "$out"
# What is compiled and measured is kept here, so that a second call finds it.
export COLLAGE_CACHE_DIR=${COLLAGE_CACHE_DIR:-$out/store} PYTHONUNBUFFERED=1
export PYTHONPATH=$PWD${PYTHONPATH:+:$PYTHONPATH}

for archive in "$@"; do
  site=$out/site/$(basename "$archive")
  if [ ! -e "$site.ready" ]; then
    mkdir -p "$site"
    "$python" -c 'import shutil, sys; shutil.unpack_archive(*sys.argv[1:])' "$archive" "$site" \
      "$(case $archive in *.whl) echo zip ;; *) echo xztar ;; esac)" || exit 2
    touch "$site.ready"
  fi
  PYTHONPATH=$PYTHONPATH:$site
done

say() { echo "[$SECONDS s] $*" | tee -a "$out/log"; }

# Does a step that has not been done: step NAME LIMIT_S COMMAND...; its output goes to OUT/NAME.log.
step() {
  local name=$1 limit=$2 left=$((ends_at - SECONDS))
  shift 2
  [ -e "$out/$name.done" ] && { say "$name: done before"; return; }
  ((left < 20)) && { say "$name: no time left"; return; }
  ((limit > left)) && limit=$left
  local began=$SECONDS
  if timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1; then
    touch "$out/$name.done"
    say "$name: done in $((SECONDS - began)) s"
  else
    say "$name: failed after $((SECONDS - began)) s ($out/$name.log): $(tail -n 1 "$out/$name.log")"
  fi
}

# 1. What is here and what is missing, before anything is measured.
if ! "$python" -m tests.gpu.figures need | tee "$out/missing.txt"; then
  say "nothing was measured: what is named above is missing"
  exit 1
fi
step toolchains 90 "$python" -m collage_engine toolchains
cat "$out/toolchains.log"

# 2. The comparison that the project is judged by, then the operators, then the other models.
bench() {
  step "$1-$2" "$3" "$python" -m tests.gpu.bench "$1" "$2" --budget "$4" --out "$out"
}
bench bert_base float16 210 60s
step operators 120 "$python" -m pytest -q -n 12 --junitxml "$out/operators.xml" tests/gpu
bench resnet50 float16 210 60s
bench qwen2 float16 180 60s
for model in vit_b_16 gpt2 convnext_tiny unet_block efficientnet_b0; do
  bench "$model" float16 180 60s
done
for model in bert_base resnet50 qwen2 vit_b_16 gpt2 convnext_tiny unet_block efficientnet_b0; do
  bench "$model" float32 180 60s
done

"$python" -m tests.gpu.figures table "$out" | tee "$out/figures.md"
