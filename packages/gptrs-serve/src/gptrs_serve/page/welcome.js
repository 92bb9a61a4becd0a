/** What the page says before a conversation: what the model does, or which model to try. */

import { made } from "./view.js";

/**
 * Return the nodes that describe `model`, undefined if no served model writes texts.
 *
 * `template` is its chat template: "" for none, undefined if unknown.
 */
export async function welcome(model, template) {
  if (model && template !== "") return [about(model)];
  const told = model
    ? [made("h2", {}, `${model.id} has no chat template`),
      made("p", {}, "It was trained to continue texts, not to answer. It serves /v1/completions; " +
        "to talk, serve a model for chats, such as:")]
    : [made("h2", {}, "No model here writes texts"),
      made("p", {}, "To talk, serve a model for chats, such as:")];
  return [...told, await suggestions()];
}

function about({ id, capabilities, max_model_len: length }) {
  const facts = [`${id} is ready.`];
  if (length) facts.push(`Its context is ${length} tokens.`);
  if (takesImages({ capabilities })) facts.push("It reads images, too: attach, paste or drop them.");
  return made("p", {}, facts.join(" "));
}

export function takesImages(model) {
  return model?.capabilities.includes("image_lm") ?? false;
}

async function suggestions() {
  const { recommended } = await (await fetch("page.json")).json();
  const rows = recommended.map(({ short, about: told, bytes }) => made("li", {},
    made("code", {}, `gptrs serve ${short}`), ` (${(bytes / 1e9).toFixed(1)} GB): ${told}`));
  return made("ul", {}, ...rows);
}
