"""No kernel touches memory that is not its own, or races: compute-sanitizer over a sample."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU that torch can use"),
    pytest.mark.skipif(not shutil.which("compute-sanitizer"), reason="compute-sanitizer is not installed"),
]
SAMPLE = Path(__file__).with_name("sanitized.py")


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_sample(tool):
    # torch's allocator would hide what is written past the end of a tensor
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(
        ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", sys.executable, str(SAMPLE)],
        env=environment, capture_output=True, text=True, timeout=500)
    if "Device not supported" in done.stdout:
        pytest.skip("compute-sanitizer does not support this device")
    assert done.returncode == 0 and "all as eager" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]
