"""The kit works from Python, without the command line: smoke level, on the backend named."""

from __future__ import annotations

import sys

import gptrs

report = gptrs.api.backends.run_conformance(gptrs.get_backend(sys.argv[1]), "smoke")
assert report.passed, report
assert not report.failed, report
