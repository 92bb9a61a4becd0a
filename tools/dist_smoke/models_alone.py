"""Models without a backend are loaded, and say what is missing when they are to be run."""

from __future__ import annotations

import gptrs

try:
    gptrs.generate(gptrs.load_model(), "import os", max_tokens=1)
except gptrs.errors.BackendError as error:
    assert "no backend is available" in str(error), error
else:
    raise SystemExit("there is a backend")
