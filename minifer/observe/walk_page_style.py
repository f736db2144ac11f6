"""How the page of a walk looks: light and dark, wide and narrow."""

STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1c2024; --soft: #5c6670; --rule: #dde1e6;
  --panel: #f5f7f9; --prefill: #d9730d; --decode: #2f6fde; }
@media (prefers-color-scheme: dark) { :root { --paper: #14171a; --ink: #e4e7ea; --soft: #98a2ad;
  --rule: #2c3238; --panel: #1d2126; --prefill: #f0954a; --decode: #74a5ff; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); line-height: 1.5;
  font-family: system-ui, sans-serif; }
main { max-width: 1400px; margin: 0 auto; padding: 1.5rem 1rem 14rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; }
h3 { font: 600 1rem ui-monospace, monospace; margin: 1.8rem 0 .4rem; overflow-wrap: anywhere; }
h3 span { font-weight: 400; color: var(--soft); margin-left: .6rem; }
a { color: inherit; text-decoration-color: var(--soft); text-underline-offset: .2em; }
.lead { font-size: 1.1rem; max-width: 46rem; margin: 0 0 1rem; }
.note { color: var(--soft); max-width: 46rem; font-size: .9rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; margin: 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(15rem, 1fr)); gap: 1rem;
  margin: 1.2rem 0; }
.card { background: var(--panel); border-radius: .5rem; padding: .8rem 1rem; }
.card b { font-size: 1.9rem; line-height: 1.2; display: block; }
.card i { display: block; height: .5rem; border-radius: .25rem; min-width: .3rem; margin: .4rem 0;
  width: var(--s); background: var(--hue); }
.prefill { --hue: var(--prefill); } .decode { --hue: var(--decode); }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
.totals { width: 100%; max-width: 36rem; }
.totals th, .totals td { padding: .2rem .5rem; border-bottom: 1px solid var(--rule);
  text-align: right; }
.totals th:first-child { text-align: left; font-weight: 400; padding-left: 0; }
.hot { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr));
  gap: 0 2rem; }
.hot ol { list-style: none; padding: 0; margin: 0; font-size: .85rem; }
.hot li { border-bottom: 1px solid var(--rule); padding: .3rem 0 .4rem; }
.hot code { display: block; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.hot li span { color: var(--soft); }
.hot i { display: block; height: .3rem; width: var(--s); min-width: 2px; background: var(--hue);
  border-radius: .15rem; margin-top: .25rem; }
.hot h3 { font-family: inherit; margin-top: .4rem; }
nav { font: .85rem/1.9 ui-monospace, monospace; } nav a { margin-right: .9rem; }
.scroll { overflow-x: auto; border: 1px solid var(--rule); border-radius: .4rem; }
.code { width: 100%; font: 12px/1.5 ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; }
.code th { font-weight: 400; color: var(--soft); text-align: right; padding: .15rem .35rem;
  border-bottom: 1px solid var(--rule); white-space: nowrap; }
.code th.source { text-align: left; padding-left: .8rem; }
.code td { padding: .05rem .35rem; text-align: right; vertical-align: top; white-space: pre; }
.code td.no { color: var(--soft); padding-left: .6rem; }
.code td.source { text-align: left; width: 100%; padding-left: .8rem; }
.code td.heat { --bar: color-mix(in srgb, var(--hue) 45%, transparent);
  background: linear-gradient(var(--bar), var(--bar)) no-repeat 0 0 / var(--s) 100%; }
.code .first { border-left: 1px solid var(--rule); min-width: 3.2rem; }
.code .more { min-width: 2.5rem; }
.code tr:first-child th { text-align: center; border-bottom: 0; padding-bottom: 0; }
.code th.prefill, .code th.decode { color: var(--hue); }
.still { color: var(--soft); } .comment { color: var(--soft); }
.made { color: var(--hue); }
.ran:hover, .ran:focus { background: var(--panel); outline: none; }
.ran:focus-visible { outline: 2px solid var(--decode); outline-offset: -2px; }
:target { background: var(--panel); }
.facts { display: none; position: fixed; right: 1rem; bottom: 1rem; width: 27rem; z-index: 1;
  max-width: calc(100vw - 2rem); background: var(--paper); border: 1px solid var(--soft);
  border-radius: .5rem; padding: .5rem .7rem; box-shadow: 0 4px 18px #0005; pointer-events: none;
  white-space: normal; }
.ran:hover .facts, .ran:focus .facts { display: block; }
.code:has(.ran:hover) .ran:focus:not(:hover) .facts { display: none; }
.facts table { width: 100%; } .facts td, .facts th { white-space: normal; border: 0;
  padding: .05rem .3rem; text-align: right; width: 36%; }
.facts td:first-child, .facts th:first-child { width: 28%; text-align: left;
  color: var(--soft); padding-left: 0; }
.facts tr:first-child th { text-align: right; }
.facts p { margin: 0 0 .2rem; overflow: hidden; text-overflow: ellipsis; white-space: nowrap;
  text-align: left; }
@media (max-width: 600px) {
  main { padding: 1rem .8rem 18rem; } h1 { font-size: 1.35rem; }
  .code { font-size: 11px; } .code td.no { padding-left: .3rem; }
  .code td, .code th { padding-left: .25rem; padding-right: .25rem; }
  .code .first { min-width: 2.9rem; } .code .more, .code .phases { display: none; }
  .facts { right: 0; left: 0; bottom: 0; width: auto; max-width: none;
    border-radius: .5rem .5rem 0 0; border-width: 1px 0 0; }
}
"""
