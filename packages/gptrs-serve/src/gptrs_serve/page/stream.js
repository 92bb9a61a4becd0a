/** What a server sends: a stream of events, or why there is none. */

/** Return the error that a refused request answers with. */
export async function refusal(response) {
  const told = await response.json().catch(() => null);
  return new Error(told?.error?.message ?? `the server answered ${response.status}`);
}

/** Yield the objects of a stream of events. */
export async function* events(response) {
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
