/**
 * Conversations: trees of messages, which the browser keeps within bounds.
 *
 * A chat is `{ id, changed, system, messages, leaf }`. A message has the index of its `parent`, -1 at
 * the root; edits and further answers are siblings. Shown is the path from the root to `leaf`.
 */

const PREFIX = "gptrs.chat.";
const OPEN = "gptrs.open";
export const MOST_CHATS = 100;
/** Characters of all conversations; browsers give a site 5 million. */
export const MOST_LENGTH = 4_000_000;
/** A conversation above this length is kept without its images. */
const LONG = 1_000_000;

export function newChat() {
  // `crypto.randomUUID` is for pages over HTTPS alone.
  const id = `${Date.now().toString(36)}-${Math.random().toString(36).slice(2)}`;
  return { id, changed: Date.now(), system: "", messages: [], leaf: -1 };
}

/** Append a message below `parent`, by default the last shown one; return its index. */
export function add(chat, message, parent = chat.leaf) {
  chat.messages.push({ ...message, parent });
  chat.leaf = chat.messages.length - 1;
  return chat.leaf;
}

/** Return the indices of the shown messages. */
export function path(chat) {
  const found = [];
  for (let each = chat.leaf; each >= 0; each = chat.messages[each].parent) found.unshift(each);
  return found;
}

/** Return the indices of all versions of a message, oldest first. */
export function siblings(chat, index) {
  const { parent } = chat.messages[index];
  return [...chat.messages.keys()].filter((each) => chat.messages[each].parent === parent);
}

/** Show a message and the newest ones after it. */
export function choose(chat, index) {
  chat.leaf = index;
  chat.messages.forEach((each, at) => {
    if (each.parent === chat.leaf) chat.leaf = at; // children come after their parents
  });
}

export function title(chat) {
  const first = chat.messages[0];
  return (first.content || first.files?.[0]?.name || "Conversation").slice(0, 80);
}

/** Return the kept conversations, newest first; none where the browser keeps nothing. */
export function kept() {
  return keys().map(open).filter(Boolean).sort((a, b) => b.changed - a.changed);
}

/** Keep a conversation, dropping the oldest others to make room; return whether it fits. */
export function keep(chat) {
  const withoutImages = (key, value) => (key === "url" ? undefined : value);
  let text = JSON.stringify(chat);
  if (text.length > LONG) text = JSON.stringify(chat, withoutImages);
  const others = kept().filter((each) => each.id !== chat.id);
  const lengths = others.map((each) => localStorage.getItem(PREFIX + each.id)?.length ?? 0);
  let length = lengths.reduce((sum, each) => sum + each, text.length);
  for (;;) {
    try {
      if (length <= MOST_LENGTH && others.length < MOST_CHATS) {
        localStorage.setItem(PREFIX + chat.id, text);
        return true;
      }
    } catch { /* The browser has less room, or keeps nothing. */ }
    if (!others.length) return false;
    drop(others.pop().id);
    length -= lengths.pop();
  }
}

export function drop(id) {
  localStorage.removeItem(PREFIX + id);
}

export function dropAll() {
  for (const key of keys()) localStorage.removeItem(key);
}

/** Return a kept conversation, null if there is none that can be read. */
export function find(id) {
  return open(PREFIX + id);
}

/** Note which conversation this tab shows, for a reload. */
export function note(chat) {
  try {
    sessionStorage.setItem(OPEN, chat.id);
  } catch { /* a browser that lets no site keep anything */ }
}

/** Return the conversation that this tab showed before a reload, null if there is none. */
export function noted() {
  try {
    return find(sessionStorage.getItem(OPEN));
  } catch {
    return null;
  }
}

function keys() {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(PREFIX));
  } catch {
    return []; // a browser that lets no site keep anything
  }
}

function open(key) {
  try {
    const chat = JSON.parse(localStorage.getItem(key));
    return isChat(chat) && PREFIX + chat.id === key ? chat : null;
  } catch {
    return null;
  }
}

function isChat(chat) {
  const isMessage = ({ role, content, parent, files }, at) =>
    ["user", "assistant"].includes(role) && typeof content === "string" &&
    Number.isInteger(parent) && parent >= -1 && parent < at &&
    (files === undefined || Array.isArray(files));
  return Array.isArray(chat?.messages) && chat.messages.length > 0 && chat.messages.every(isMessage) &&
    Number.isInteger(chat.leaf) && chat.leaf >= -1 && chat.leaf < chat.messages.length;
}
