/** Files beside a message: images for models that take them, and texts. */

const MOST_TEXT = 200_000;
/** Bytes above which an image is made smaller: a server reads 4 MB of a request by default. */
const MOST_IMAGE = 1_000_000;
const LONGEST_SIDE = 1536;

/** Return a file as `{ name, url }` or `{ name, text }`; an error if it is neither. */
export async function attached(file, takesImages) {
  if (file.type.startsWith("image/") && file.type !== "image/svg+xml") {
    if (!takesImages) throw new Error(`this model takes no images, and ${file.name} is one`);
    return { name: file.name, url: await imageUrl(file) };
  }
  if (file.size > MOST_TEXT) {
    throw new Error(`${file.name} has ${file.size} bytes, the most for a text is ${MOST_TEXT}`);
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    if (!text.includes("\0")) return { name: file.name, text };
  } catch { /* It is not UTF-8. */ }
  throw new Error(`${file.name} is neither an image nor a text in UTF-8`);
}

async function imageUrl(file) {
  if (file.size <= MOST_IMAGE) return read(file);
  const bitmap = await createImageBitmap(file).catch(() => {
    throw new Error(`${file.name} is not an image that this browser can read`);
  });
  const scale = Math.min(1, LONGEST_SIDE / Math.max(bitmap.width, bitmap.height));
  const canvas = document.createElement("canvas");
  canvas.width = Math.max(1, Math.round(scale * bitmap.width));
  canvas.height = Math.max(1, Math.round(scale * bitmap.height));
  const drawing = canvas.getContext("2d");
  drawing.fillStyle = "#fff"; // JPEG has no transparency; its pixels would be black
  drawing.fillRect(0, 0, canvas.width, canvas.height);
  drawing.drawImage(bitmap, 0, 0, canvas.width, canvas.height);
  return canvas.toDataURL("image/jpeg", 0.9);
}

function read(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.addEventListener("load", () => resolve(reader.result));
    reader.addEventListener("error", () => reject(new Error(`${file.name} cannot be read`)));
    reader.readAsDataURL(file);
  });
}

/** Return the `content` of a message for the server: its files come before its text. */
export function contentOf({ content, files = [] }) {
  const texts = files.filter((each) => each.text !== undefined).map(fenced);
  const text = [...texts, content].filter(Boolean).join("\n\n");
  const images = files.filter((each) => each.url);
  if (!images.length) return text;
  const parts = images.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return text ? [...parts, { type: "text", text }] : parts;
}

function fenced({ name, text }) {
  const runs = text.match(/`{3,}/g) ?? [];
  const fence = "`".repeat(Math.max(3, ...runs.map((run) => run.length + 1)));
  return `File ${name}:\n${fence}\n${text}${text.endsWith("\n") ? "" : "\n"}${fence}`;
}
