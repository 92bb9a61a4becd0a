"""What the library and Python's warnings report becomes one line each on standard error."""

from __future__ import annotations

import logging
import warnings

from gptrs_cli.terminal.streams import warnings_as_lines


def test_notes_warnings_and_errors_of_the_library(capsys):
    logger = logging.getLogger("gptrs")
    with warnings_as_lines():
        logger.debug("for developers")
        logger.info("compiling\n%d kernels", 3)
        logger.warning("backend `%s` is skipped", "x")
        logger.error("gone")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == ("compiling 3 kernels\nwarning: backend `x` is skipped\nerror: gone\n")


def test_warnings_are_lines(capsys):
    with warnings_as_lines(), warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old\nformat", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == "warning: old format\n"


def test_the_logger_is_left_as_it_was():
    logger = logging.getLogger("gptrs")
    before = (logger.level, logger.propagate, list(logger.handlers))
    with warnings_as_lines():
        assert logger.handlers != before[2]
    assert (logger.level, logger.propagate, list(logger.handlers)) == before
