"""The style of the page, light and dark, and the policy that admits nothing else."""

from __future__ import annotations

import base64
import hashlib

STYLE = """
:root { color-scheme: light dark; --ground: #fff; --panel: #f6f8fa; --ink: #1d2733; --dim: #5c6975;
  --line: #d4dbe2; --k0: #2f6fb7; --k1: #d9822b; --k2: #3c8f4f; --k3: #8d5bb5; --k4: #c2484d;
  --k5: #23919a; --k6: #8b7a1e; --k7: #7d8894; --roof: #1d2733 }
@media (prefers-color-scheme: dark) { :root { --ground: #14181d; --panel: #1d232a; --ink: #e4e9ee;
  --dim: #9aa7b4; --line: #36404a; --k0: #6aa7ec; --k1: #eda354; --k2: #6cc180; --k3: #ba91de;
  --k4: #ec7d82; --k5: #59c3cc; --k6: #c9b651; --k7: #94a0ac; --roof: #e4e9ee } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 70rem; padding: 1.5rem; background: var(--ground);
  color: var(--ink); font: 15px/1.5 system-ui, sans-serif }
h1 { font-size: 1.3rem; margin: 0 } h2 { font-size: 1.05rem; margin: 2.2rem 0 .5rem }
p { margin: .3rem 0 } .dim, figcaption { color: var(--dim) } figure { margin: 0 }
.verdict { background: var(--panel); border-left: 4px solid var(--k0); border-radius: 4px;
  padding: .8rem 1.1rem; margin: 1rem 0 } .verdict p:first-child { font-size: 1.15rem }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(9rem, 1fr)); gap: .6rem }
.facts div { background: var(--panel); border-radius: 4px; padding: .5rem .8rem }
.facts b { display: block; font-size: 1.25rem } .facts span { color: var(--dim); font-size: 13px }
.wide { overflow-x: auto; border: 1px solid var(--line); border-radius: 4px }
table { border-collapse: collapse; width: 100%; font-size: 13px }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--line) }
tr:last-child td { border-bottom: 0 } th { color: var(--dim); font-weight: 500 }
.text { text-align: left } .ops { font: 12px ui-monospace, monospace; white-space: normal;
  min-width: 16rem; overflow-wrap: anywhere }
svg { display: block; width: 100%; height: auto } svg.bar { width: 7rem; height: .7rem }
.scroll { overflow-x: auto } .scroll svg { min-width: 44rem }
svg text { fill: var(--ink); font: 12px system-ui, sans-serif } svg .dim { fill: var(--dim) }
.grid { stroke: var(--line) } .roof { stroke: var(--roof); fill: none; stroke-width: 2 }
.track { fill: var(--panel) } .band0 { fill: var(--panel) } .band1 { fill: var(--line) }
.k0 { fill: var(--k0) } .k1 { fill: var(--k1) } .k2 { fill: var(--k2) } .k3 { fill: var(--k3) }
.k4 { fill: var(--k4) } .k5 { fill: var(--k5) } .k6 { fill: var(--k6) } .k7 { fill: var(--k7) }
.point { fill-opacity: .75 } svg text.tag { font-size: 11px }
.legend { display: flex; flex-wrap: wrap; gap: .2rem 1rem; font-size: 13px }
.legend svg { display: inline-block; width: .7rem; height: .7rem; margin-right: .35rem }
@media print { body { max-width: none } }
"""


def content_policy() -> str:
    """Return a Content-Security-Policy that admits this style, and nothing from anywhere."""
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
