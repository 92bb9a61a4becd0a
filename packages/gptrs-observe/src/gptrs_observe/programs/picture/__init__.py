"""Pictures of programs: a layered layout of their boxes and arrows, as SVG or for Graphviz."""
