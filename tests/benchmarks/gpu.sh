#!/usr/bin/env bash
# Test and measure the trainer on an NVIDIA GPU, in at most eight minutes:
#
#     bash tests/benchmarks/gpu.sh [OUTPUT_DIRECTORY]
#
# It needs no environment of this project, only a Python with torch, numpy, pytest and prometheus-client (the variable
# PYTHON names it). It writes gpu.json and gpu.log; docs/benchmarks/trainer.md has the figures. The exit code is 1 if a
# test failed or a figure was missed.
set -uo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3}
output=${1:-docs/benchmarks}
mkdir -p "$output"
export PYTHONPATH=.
failed=0
{
    nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || failed=1
    "$python" -c 'import torch; assert torch.cuda.is_available(), "torch finds no GPU"; print("torch", torch.__version__)' || exit 1
    # Without the project's conftest.py, which needs its environment.
    timeout 120 "$python" -m pytest -q --noconftest -p no:cacheprovider -W ignore::pytest.PytestUnknownMarkWarning \
        tests/integration/trainer/test_waiting.py tests/integration/trainer/test_input.py || failed=1
    timeout 60 "$python" -m torch.distributed.run --standalone --nproc-per-node=1 -m trainer.fabric_check || failed=1
    timeout 300 "$python" -m tests.benchmarks.trainer --gpu --raw "$output/gpu.json" || failed=1
    exit "$failed"
} 2>&1 | tee "$output/gpu.log"
exit "${PIPESTATUS[0]}"
