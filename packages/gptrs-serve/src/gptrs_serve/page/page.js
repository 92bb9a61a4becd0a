/** The page: what a person does, what the server is asked, and what is shown of its answer. */

import {
  add, drop, dropAll, find, keep, kept, newChat, note, noted, path, title,
} from "./chats.js";
import { attached, contentOf } from "./files.js";
import { events, refusal } from "./stream.js";
import { View, actionsOf, button, editor, made } from "./view.js";
import { takesImages, welcome } from "./welcome.js";

const at = (id) => document.getElementById(id);
const models = new Map();
let chat = newChat();
let pending = [];
let running = null;

function headers() {
  const key = at("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function asked(url, options) {
  const response = await fetch(url, { headers: headers(), ...options });
  if (!response.ok) throw await refusal(response);
  return response;
}

async function listModels() {
  const { data } = await (await asked("v1/models")).json();
  const writers = data.filter((each) => each.capabilities.includes("causal_lm"));
  models.clear();
  for (const each of writers) models.set(each.id, each);
  at("model").replaceChildren(...writers.map((each) => new Option(each.id, each.id)));
  at("status").textContent = "";
  await greet();
}

const model = () => models.get(at("model").value);

/** Say what the model is for, while there is no conversation. */
async function greet() {
  const chosen = model();
  const body = JSON.stringify({ model: chosen?.id });
  // Another word than "" is a template; a server in front may hide what tells it.
  const shown = chosen && await asked("api/show", { method: "POST", body })
    .then((response) => response.json()).catch(() => null);
  const told = await welcome(chosen, shown?.template);
  if (chosen === model()) at("welcome").replaceChildren(...told);
}

function request(indices, goesOn) {
  const system = at("system").value.trim();
  const said = indices.map((index) => chat.messages[index]);
  // An answer that was stopped before its first token is none.
  const isSaid = ({ role, content, thoughts }) => role === "user" || content || thoughts;
  const told = said.filter(isSaid).map((message) => {
    const thoughts = message.thoughts && { reasoning_content: message.thoughts };
    return { role: message.role, content: contentOf(message), ...thoughts };
  });
  const body = {
    model: at("model").value,
    messages: system ? [{ role: "system", content: system }, ...told] : told,
    stream: true,
    stream_options: { include_usage: true },
    temperature: Number(at("temperature").value),
    top_p: Number(at("top_p").value),
  };
  if (at("max_tokens").value !== "") body.max_tokens = Number(at("max_tokens").value);
  if (at("seed").value !== "") body.seed = Number(at("seed").value);
  if (at("probabilities").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  if (goesOn) Object.assign(body, { continue_final_message: true, add_generation_prompt: false });
  return body;
}

function toldUsage(usage, started, first) {
  const seconds = (performance.now() - (first ?? started)) / 1000;
  const speed = ((usage.completion_tokens - 1) / seconds).toFixed(1);
  const cached = usage.prompt_tokens_details.cached_tokens;
  return `${usage.completion_tokens} tokens, ${speed} tok/s; prompt of ${usage.prompt_tokens}` +
    `, ${cached} of them cached`;
}

/** Read an answer into a message and its view. */
async function read(message, view, body, signal) {
  const started = performance.now();
  const length = model()?.max_model_len ?? Infinity;
  let first = null;
  const response = await asked("v1/chat/completions",
    { method: "POST", body: JSON.stringify(body), signal });
  for await (const event of events(response)) {
    for (const { delta, logprobs, finish_reason: end } of event.choices) {
      const thought = delta.reasoning_content ?? "";
      const content = delta.content ?? "";
      if (content || thought) first ??= performance.now();
      message.thoughts += thought;
      const scores = logprobs?.content;
      if (content && scores?.length) view.appendScores(message.content, content, scores);
      message.content += content;
      if (end === "length") message.end = end;
    }
    if (event.usage) {
      message.note = toldUsage(event.usage, started, first);
      if (message.end && event.usage.total_tokens >= length) message.end = "full";
    }
    follow(() => view.writeSoon(message));
  }
}

/** Keep the end in sight, unless a person has scrolled away from it. */
function follow(change) {
  const list = at("messages");
  const isAtEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 80;
  change();
  if (isAtEnd) list.scrollTop = list.scrollHeight;
}

/** Let the model answer, or go on with the answer `index`; `undo` is for an answer that failed. */
async function answer(undo, index = null) {
  const own = chat;
  const goesOn = index !== null;
  const body = request(path(own), goesOn);
  const here = goesOn ? index : add(own, { role: "assistant", content: "", thoughts: "" });
  const message = own.messages[here];
  const { end } = message;
  message.end = "";
  own.system = at("system").value;
  show();
  const view = views.get(here);
  running = new AbortController();
  setBusy(true);
  try {
    await read(message, view, body, running.signal);
  } catch (error) {
    message.end = "stopped";
    if (error.name !== "AbortError") {
      tell(error);
      if (goesOn) message.end = end;
      else if (!message.content && !message.thoughts) {
        own.messages.pop();
        undo();
      }
    }
  } finally {
    running = null;
    setBusy(false);
    finish(own, here, view);
    at("text").focus();
  }
}

/** Show the end of an answer, and keep its conversation. */
function finish(own, index, view) {
  const message = own.messages[index];
  if (own.leaf >= 0) save(own); // else nothing is said in it, or it was deleted
  if (own !== chat) return;
  if (views.get(index) !== view || !message) return show();
  follow(() => {
    view.write(message);
    view.actions.replaceChildren(...actionsOf(own, index, ACTS));
  });
}

function save(own) {
  own.changed = Date.now();
  if (!keep(own)) at("status").textContent ||= "This browser has no room to keep this conversation.";
  listChats();
}

let views = new Map();

/** Show the conversation as it is now. */
function show() {
  const shown = path(chat);
  views = new Map(shown.map((index) => [index, new View(chat.messages[index])]));
  for (const [index, view] of views) view.actions.append(...actionsOf(chat, index, ACTS));
  at("messages").replaceChildren(...[...views.values()].map((view) => view.article));
  at("messages").scrollTop = at("messages").scrollHeight;
  at("welcome").hidden = shown.length > 0;
  setBusy(running !== null);
  note(chat);
}

const ACTS = { edit, goOn, show: () => { running?.abort(); show(); save(chat); } };

/** Change a message: what is said instead is a branch beside it. */
function edit(index) {
  if (running) return;
  const message = chat.messages[index];
  const view = views.get(index);
  const form = editor(message, (text) => {
    form.replaceWith(view.text);
    view.actions.hidden = false;
    if (text === null || running || text === message.content && message.role === "assistant") return;
    if (!text.trim() && !message.files?.length) return;
    const { role, files } = message;
    if (role === "user") return say({ role, content: text.trim(), files }, message.parent);
    add(chat, { role, content: text, thoughts: message.thoughts }, message.parent);
    show();
    save(chat);
  });
  view.text.replaceWith(form);
  view.actions.hidden = true;
  form.querySelector("textarea").focus();
}

function goOn(index) {
  if (running) return;
  at("status").textContent = "";
  answer(() => {}, index);
}

/** Add a message and let the model answer it; one that was not answered may be changed again. */
function say(message, parent = chat.leaf) {
  const own = chat;
  const before = own.leaf;
  at("status").textContent = "";
  add(own, message, parent);
  answer(() => {
    own.messages.pop();
    own.leaf = before;
    if (own !== chat) return;
    at("text").value ||= message.content;
    if (!pending.length) setPending(message.files ?? []);
  });
}

function send(event) {
  event.preventDefault();
  const text = at("text").value.trim();
  if (running || !text && !pending.length) return;
  const files = pending;
  at("text").value = "";
  setPending([]);
  say({ role: "user", content: text, ...(files.length && { files }) });
}

function again() {
  if (running || chat.leaf < 0) return;
  const own = chat;
  const before = own.leaf;
  at("status").textContent = "";
  const last = own.messages[before];
  if (last.role === "assistant") own.leaf = last.parent;
  answer(() => { own.leaf = before; });
}

function setBusy(busy) {
  at("send").disabled = busy;
  at("stop").disabled = !busy;
  at("again").disabled = busy || chat.leaf < 0;
  at("messages").ariaBusy = String(busy);
}

function openChat(opened) {
  running?.abort();
  chat = opened;
  if (chat.messages.length) at("system").value = chat.system;
  at("status").textContent = "";
  show();
  listChats();
}

function listChats() {
  const rows = kept().map((each) => made("li", {},
    button(title(each), () => { openChat(find(each.id) ?? newChat()); at("history").open = false; },
      { className: "title", ariaCurrent: each.id === chat.id ? "true" : null }),
    made("small", {}, new Date(each.changed).toLocaleString()),
    button("Delete", () => deleteChat(each.id), { ariaLabel: `Delete ${title(each)}` })));
  at("chats").replaceChildren(...rows);
  at("delete_all").disabled = !rows.length;
}

function deleteChat(id) {
  drop(id);
  if (id === chat.id) leave();
  else listChats();
}

function deleteAll() {
  if (!confirm("Delete all conversations of this browser?")) return;
  dropAll();
  leave();
}

/** Begin a new conversation after the shown one was deleted. */
function leave() {
  chat.leaf = -1; // the end of an answer that is still read would keep it again
  openChat(newChat());
}

function setPending(files) {
  pending = files;
  at("attached").replaceChildren(...files.map((file) => made("li", {}, file.name, " ",
    button("×", () => setPending(pending.filter((each) => each !== file)),
      { ariaLabel: `Remove ${file.name}` }))));
}

async function attach(files) {
  at("status").textContent = "";
  for (const file of files) {
    try {
      setPending([...pending, await attached(file, takesImages(model()))]);
    } catch (error) {
      tell(error);
    }
  }
}

function tell(error) {
  at("status").textContent = error.message;
}

at("ask").addEventListener("submit", send);
at("stop").addEventListener("click", () => running?.abort());
at("again").addEventListener("click", again);
at("clear").addEventListener("click", () => openChat(newChat()));
at("delete_all").addEventListener("click", deleteAll);
at("key").addEventListener("change", () => listModels().catch(tell));
at("model").addEventListener("change", () => greet().catch(tell));
at("attach").addEventListener("click", () => at("files").click());
at("files").addEventListener("change", async () => {
  await attach([...at("files").files]);
  at("files").value = ""; // so that the same file may be chosen again
});
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
at("text").addEventListener("paste", (event) => {
  if (!event.clipboardData.files.length) return;
  event.preventDefault();
  attach([...event.clipboardData.files]);
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  if (!event.dataTransfer.files.length) return;
  event.preventDefault();
  attach([...event.dataTransfer.files]);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});
window.addEventListener("storage", listChats); // another tab has kept or deleted one
window.addEventListener("pagehide", () => {
  if (!running) return;
  chat.messages[chat.leaf].end = "stopped";
  save(chat);
});

openChat(noted() ?? newChat());
listModels().catch(tell);
at("text").focus();
