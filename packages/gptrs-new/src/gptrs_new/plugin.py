"""The description of the command; running it imports the renderer of templates."""

from gptrs.api import CommandPlugin

PLUGIN = CommandPlugin(
    name="new",
    summary="Make a package with a plugin of your own.",
    factory="gptrs_new.command:new",
    api="0.1",
)
