"""Callbacks that report the progress of long work, and whether the library itself prints
notices."""

from collections.abc import Callable

Progress = Callable[[int, int], None]
"""Called with the number done (texts, images, windows, pairs, rows) and the total."""
StepProgress = Callable[[int, int, str], None]
"""Called with the number done (steps, bytes), the total, and the name of the next one."""
SoundProgress = Callable[[float, float], None]
"""Called with the seconds of audio transcribed so far, and the total."""


class Notices:
    """Notices on standard error that say what the library is waiting for."""

    are_shown = True
    """False where a program shows progress itself, as the command line does."""


NOTICES = Notices()
"""The notices of this process."""
