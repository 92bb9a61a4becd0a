"""Callbacks that report the progress of long work, and whether the library itself reports any."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with how many are done (texts, images, windows, pairs, rows) and how many there are."""
StepProgress = Callable[[int, int, str], None]
"""Called with how many are done (steps, bytes), how many there are, the name of the next one."""
SoundProgress = Callable[[float, float], None]
"""Called with the seconds of audio transcribed so far, and the total."""


class Notices:
    """Lines on standard error about what the library waits for."""

    are_shown = True
    """False where a program shows more itself, as the command line does."""


NOTICES = Notices()
"""Those of this process."""
