"""The backend named by the first argument is the default, and computes."""

from __future__ import annotations

import sys

import numpy as np

import gptrs
from gptrs import functionals as F

x = np.linspace(-3, 3, 24, dtype=np.float32).reshape(4, 6)
found = F.softmax(gptrs.tensor(x)).numpy()
wanted = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
np.testing.assert_allclose(found, wanted, rtol=1e-5)
assert gptrs.get_backend().name == sys.argv[1], gptrs.get_backend()
