/**
 * Markdown as nodes of the page.
 *
 * markdown-it only splits the text into tokens. The nodes are made here, of a few known tags and with
 * text as text: whatever a model writes, no HTML is parsed, and nothing is loaded.
 */

import MarkdownIt from "./markdown-it.js";

const parser = new MarkdownIt({ html: false, linkify: true, breaks: true });
// Without this, `page.js` and `name@host` in an answer about code would become links.
parser.linkify.set({ fuzzyLink: false, fuzzyEmail: false });
// The builder decides which addresses are links; a refused one would be shown as Markdown source.
parser.validateLink = () => true;

const TAGS = new Set(["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "hr",
  "br", "em", "strong", "s", "table", "thead", "tbody", "tr", "th", "td"]);
const SCHEMES = new Set(["http:", "https:", "mailto:"]);

/** Return Markdown as a fragment; `copy` is called with the text of a code block. */
export function markdown(text, copy) {
  const fragment = document.createDocumentFragment();
  build(parser.parse(text, {}), fragment, copy);
  return fragment;
}

function build(tokens, parent, copy) {
  let inner = parent;
  for (const token of tokens) {
    if (token.hidden) continue; // the paragraphs of a tight list
    if (token.nesting > 0) inner = inner.appendChild(opened(token));
    else if (token.nesting < 0) inner = inner.parentNode;
    else if (token.type === "inline") build(token.children, inner, copy);
    else inner.append(leaf(token, copy));
  }
}

function opened(token) {
  if (token.tag === "a") return link(token.attrGet("href"));
  const element = document.createElement(TAGS.has(token.tag) ? token.tag : "span");
  const align = /text-align:(center|right)/.exec(token.attrGet("style") ?? "");
  if (align) element.className = align[1]; // the policy of the page admits no style of an element
  if (token.tag === "ol") element.start = Number(token.attrGet("start") ?? 1);
  return element;
}

/** Return a link for a web or mail address, and a plain `span` for any other. */
function link(href) {
  const url = URL.canParse(href) ? new URL(href) : null;
  if (!url || !SCHEMES.has(url.protocol)) return document.createElement("span");
  const element = document.createElement("a");
  element.href = url.href;
  element.title = url.href; // a text may name another site than its link leads to
  element.target = "_blank";
  element.rel = "noopener noreferrer nofollow";
  return element;
}

function leaf(token, copy) {
  if (token.type === "fence" || token.type === "code_block") return codeBlock(token, copy);
  if (token.type === "image") return image(token);
  if (token.type === "code_inline") {
    const code = document.createElement("code");
    code.textContent = token.content;
    return code;
  }
  if (token.type === "softbreak" || token.type === "hardbreak") return document.createElement("br");
  if (token.type === "hr") return document.createElement("hr");
  return token.content;
}

/** Return an image as a link: its URL can carry what was said, so loading it could leak that. */
function image(token) {
  const element = link(token.attrGet("src"));
  element.textContent = `[image: ${token.content || "without a text"}]`;
  return element;
}

function codeBlock(token, copy) {
  const block = document.createElement("div");
  block.className = "code";
  const language = document.createElement("span");
  language.textContent = token.info.trim().split(/\s/)[0];
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  button.addEventListener("click", () => copy(token.content, button));
  const pre = document.createElement("pre");
  const code = document.createElement("code");
  code.textContent = token.content;
  pre.tabIndex = 0; // long lines are scrolled by keys, too
  pre.append(code);
  block.append(language, button, pre);
  return block;
}
