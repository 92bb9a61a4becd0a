"use strict";

const at = (id) => document.getElementById(id);
const messages = [];
let running = null;

function headers() {
  const key = at("key").value.trim();
  return { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) };
}

async function refusal(response) {
  const told = await response.json().catch(() => null);
  return new Error(told?.error?.message ?? `the server answered ${response.status}`);
}

async function listModels() {
  const response = await fetch("v1/models", { headers: headers() });
  if (!response.ok) throw await refusal(response);
  const writers = (await response.json()).data.filter((m) => m.capabilities.includes("causal_lm"));
  at("model").replaceChildren(...writers.map((m) => new Option(m.id, m.id)));
}

function shown(role) {
  const article = document.createElement("article");
  article.className = role;
  const title = document.createElement("h2");
  title.textContent = role === "user" ? "You" : "Model";
  const text = document.createElement("p");
  const note = document.createElement("small");
  article.append(title, text, note);
  at("messages").append(article);
  return { article, text, note };
}

/** Return where the thoughts of an answer go: folded, before its text. */
function thoughtsOf(view) {
  if (!view.thoughts) {
    const folded = document.createElement("details");
    const summary = document.createElement("summary");
    summary.textContent = "Thoughts";
    view.thoughts = document.createElement("p");
    folded.append(summary, view.thoughts);
    view.text.before(folded);
  }
  return view.thoughts;
}

function request() {
  const system = at("system").value.trim();
  const told = system ? [{ role: "system", content: system }, ...messages] : messages;
  const body = {
    model: at("model").value,
    messages: told,
    stream: true,
    stream_options: { include_usage: true },
    temperature: Number(at("temperature").value),
    top_p: Number(at("top_p").value),
    max_tokens: Number(at("max_tokens").value),
  };
  if (at("seed").value !== "") body.seed = Number(at("seed").value);
  if (at("probabilities").checked) Object.assign(body, { logprobs: true, top_logprobs: 5 });
  return body;
}

/** Yield the objects of a stream of events. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      const data = part.replace(/^data: /, "");
      if (data === "[DONE]") return;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      yield event;
    }
  }
}

function appended(choice, place) {
  const content = choice.delta.content ?? "";
  const scores = choice.logprobs?.content;
  if (!scores?.length) {
    place.append(content);
    return content;
  }
  const span = document.createElement("span");
  span.textContent = content;
  const percent = (logprob) => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
  span.title = scores
    .flatMap((one) => [`${JSON.stringify(one.token)} ${percent(one.logprob)}`,
      ...one.top_logprobs.map((top) => `  ${JSON.stringify(top.token)} ${percent(top.logprob)}`)])
    .join("\n");
  place.append(span);
  return content;
}

function toldUsage(usage, started, first) {
  const seconds = (performance.now() - (first ?? started)) / 1000;
  const speed = ((usage.completion_tokens - 1) / seconds).toFixed(1);
  const cached = usage.prompt_tokens_details.cached_tokens;
  return `${usage.completion_tokens} tokens, ${speed} tok/s; prompt of ${usage.prompt_tokens}` +
    `, ${cached} of them cached`;
}

async function read(view, signal) {
  const started = performance.now();
  let first = null;
  let text = "";
  try {
    const response = await fetch("v1/chat/completions", {
      method: "POST", headers: headers(), body: JSON.stringify(request()), signal,
    });
    if (!response.ok) throw await refusal(response);
    for await (const event of events(response)) {
      for (const choice of event.choices) {
        const thought = choice.delta.reasoning_content;
        if (choice.delta.content || thought) first ??= performance.now();
        if (thought) thoughtsOf(view).append(thought);
        text += appended(choice, view.text);
      }
      if (event.usage) view.note.textContent = toldUsage(event.usage, started, first);
      view.article.scrollIntoView({ block: "end" });
    }
  } catch (error) {
    if (error.name !== "AbortError") throw error;
    view.note.textContent = "stopped";
  } finally {
    const thoughts = view.thoughts && { reasoning_content: view.thoughts.textContent };
    if (text || thoughts) messages.push({ role: "assistant", content: text, ...thoughts });
  }
}

async function answer() {
  const view = shown("assistant");
  running = new AbortController();
  setBusy(true);
  try {
    await read(view, running.signal);
  } catch (error) {
    at("status").textContent = error.message;
    if (!view.text.textContent && !view.thoughts) {
      view.article.remove();
      takeBack();
    }
  } finally {
    running = null;
    setBusy(false);
    at("text").focus();
  }
}

/** Put a message that was not answered back to where it was written, to be changed. */
function takeBack() {
  if (messages.at(-1)?.role !== "user") return;
  const text = messages.pop().content;
  at("messages").lastElementChild.remove();
  at("text").value ||= text;
}

function setBusy(busy) {
  at("send").disabled = busy;
  at("stop").disabled = !busy;
  at("again").disabled = busy || !messages.length;
  at("messages").setAttribute("aria-busy", String(busy));
}

function send(event) {
  event.preventDefault();
  const text = at("text").value.trim();
  if (!text || running) return;
  at("status").textContent = "";
  at("text").value = "";
  messages.push({ role: "user", content: text });
  shown("user").text.textContent = text;
  answer();
}

function again() {
  if (running || !messages.length) return;
  at("status").textContent = "";
  if (messages.at(-1).role === "assistant") {
    messages.pop();
    at("messages").lastElementChild.remove();
  }
  answer();
}

function clear() {
  running?.abort();
  messages.length = 0;
  at("messages").replaceChildren();
  at("status").textContent = "";
  setBusy(false);
}

at("ask").addEventListener("submit", send);
at("stop").addEventListener("click", () => running?.abort());
at("again").addEventListener("click", again);
at("clear").addEventListener("click", clear);
at("key").addEventListener("change", () => listModels().catch(tell));
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) send(event);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") running?.abort();
});

function tell(error) {
  at("status").textContent = error.message;
}

listModels().catch(tell);
at("text").focus();
