/** How messages are shown. */

import { choose, siblings } from "./chats.js";
import { markdown } from "./markdown.js";

/** Make an element of a tag, with fields and what it contains. */
export function made(tag, fields = {}, ...inside) {
  const element = Object.assign(document.createElement(tag), fields);
  element.append(...inside);
  return element;
}

export function button(label, act, fields = {}) {
  const element = made("button", { type: "button", ...fields }, label);
  element.addEventListener("click", () => act(element));
  return element;
}

/** Copy a text, and say so on the button that was pressed. */
export async function copy(text, pressed) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    copyAsSelection(text); // over HTTP from another machine there is no clipboard
  }
  const label = pressed.textContent;
  pressed.textContent = "Copied";
  setTimeout(() => { pressed.textContent = label; }, 1500);
}

function copyAsSelection(text) {
  const area = made("textarea", { value: text, className: "hidden" });
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

/** The article of a message, and its parts. */
export class View {
  constructor(message) {
    this.text = made("div", { className: "text" });
    this.note = made("small");
    this.actions = made("div", { className: "actions" });
    const title = message.role === "user" ? "You" : "Model";
    this.article = made("article", { className: message.role }, made("h2", {}, title),
      ...(message.files ?? []).map(fileView), this.text, this.note, this.actions);
    this.scored = false;
    this.due = 0;
    this.write(message);
  }

  /** Show a message as it is now. */
  write(message) {
    clearTimeout(this.due);
    this.due = 0;
    if (message.thoughts) this.thoughts().textContent = message.thoughts;
    this.note.textContent = message.note ?? "";
    if (this.scored) return; // its tokens stay as they came, each with its probability
    if (message.role === "user") this.text.textContent = message.content;
    else this.text.replaceChildren(markdown(message.content, copy));
  }

  /** Show a growing message within 80 ms: each time, all of its Markdown is parsed again. */
  writeSoon(message) {
    this.due ||= setTimeout(() => this.write(message), 80);
  }

  /** Return where thoughts go: folded, before the text. */
  thoughts() {
    if (!this.folded) {
      this.folded = made("p");
      this.text.before(made("details", {}, made("summary", {}, "Thoughts"), this.folded));
    }
    return this.folded;
  }

  /** Append tokens with their probabilities to the text `before` them. */
  appendScores(before, content, scores) {
    const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
    const told = scores.flatMap((one) => [`${JSON.stringify(one.token)} ${percent(one.logprob)}`,
      ...one.top_logprobs.map((top) => `  ${JSON.stringify(top.token)} ${percent(top.logprob)}`)]);
    if (!this.scored) this.text.replaceChildren(before);
    this.scored = true;
    this.text.append(made("span", { title: told.join("\n") }, content));
  }
}

function fileView({ name, url, text }) {
  if (url?.startsWith("data:image/")) return made("img", { src: url, alt: name, title: name });
  if (text === undefined) return made("p", { className: "file" }, `${name} (the image was not kept)`);
  return made("details", { className: "file" }, made("summary", {}, name), made("pre", {}, text));
}

/** Return the buttons of a message; they call `acts.edit`, `acts.goOn` and `acts.show`. */
export function actionsOf(chat, index, acts) {
  const message = chat.messages[index];
  const actions = [button("Copy", (pressed) => copy(message.content, pressed)),
    button("Edit", () => acts.edit(index))];
  const versions = siblings(chat, index);
  if (versions.length > 1) {
    const at = versions.indexOf(index);
    const turn = (to) => () => { choose(chat, versions[to]); acts.show(); };
    actions.push(
      button("‹", turn(at - 1), { disabled: at === 0, ariaLabel: "Previous version" }),
      made("span", {}, `${at + 1}/${versions.length}`),
      button("›", turn(at + 1), { disabled: at === versions.length - 1, ariaLabel: "Next version" }),
    );
  }
  if (index === chat.leaf && message.end) actions.push(...endOf(message, () => acts.goOn(index)));
  return actions;
}

const ENDS = {
  length: "Cut off: this answer has as many tokens as it may.",
  full: "Cut off: the context of the model is full. Begin a new conversation.",
  stopped: "Stopped.",
};

function endOf(message, goOn) {
  const notice = made("strong", { className: "end" }, ENDS[message.end] ?? "");
  if (message.end === "full") return [notice];
  // Chat templates can continue a text, not thoughts.
  if (!message.content) return [notice, "Allow more tokens in Settings and regenerate."];
  return [notice, button("Continue", goOn)];
}

/** Return a form that edits a message; it calls `done` with the new text, null to cancel. */
export function editor(message, done) {
  const area = made("textarea", { value: message.content, rows: 4, ariaLabel: "Edited message" });
  const label = message.role === "user" ? "Send" : "Save";
  const form = made("div", { className: "editor" }, area,
    button(label, () => done(area.value)), button("Cancel", () => done(null)));
  form.addEventListener("keydown", (event) => {
    if (event.key === "Escape") done(null);
  });
  return form;
}
