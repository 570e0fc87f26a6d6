// The forms of /docs: each sends the request that it describes, and shows the beginning of the answer.

import { request } from "./server.js";

const MOST_BYTES = 2 ** 22, MOST_MS = 3000; // of an answer: events and previews have no end

for (const form of document.querySelectorAll("form")) {
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const shown = form.querySelector("output");
    shown.replaceChildren("…");
    try {
      shown.replaceChildren(...await send(form));
    } catch (error) {
      shown.replaceChildren(error.status ? `${error.status}: ${error.message}` : error.message);
    }
  });
}

async function send(form) {
  const { method, path } = form.dataset, params = {}, headers = {};
  let filled = path.slice(1), body; // relative, so that the service may live below a prefix
  for (const input of form.querySelectorAll("[data-in]")) {
    if (input.dataset.in === "path") filled = filled.replace(`{${input.name}}`, encodeURIComponent(input.value));
    else if (input.value) params[input.name] = input.value;
  }
  const { body: given, accept } = form.elements;
  if (given) body = given.files ? given.files[0] : given.value;
  if (given && !given.files) headers["Content-Type"] = "application/json";
  if (accept) headers.Accept = accept.value;
  const response = await request(filled, { method, params, headers, body });
  const type = response.headers.get("Content-Type") ?? "";
  const bytes = await readSome(response);
  const head = Object.assign(document.createElement("p"), { textContent: `${response.status} ${type}` });
  if (type.startsWith("image/")) return [head, Object.assign(new Image(), { src: URL.createObjectURL(bytes), alt: "The answer" })];
  const text = type.startsWith("multipart/") ? `${bytes.size} bytes` : await bytes.text();
  return [head, Object.assign(document.createElement("pre"), { textContent: type.includes("json") ? pretty(text) : text })];
}

async function readSome(response) {
  const reader = response.body?.getReader(), pieces = [];
  if (!reader) return new Blob();
  const timer = setTimeout(() => reader.cancel(), MOST_MS);
  for (let size = 0, piece = await reader.read(); !piece.done; piece = await reader.read()) {
    pieces.push(piece.value);
    size += piece.value.length;
    if (size > MOST_BYTES) reader.cancel();
  }
  clearTimeout(timer);
  return new Blob(pieces, { type: response.headers.get("Content-Type") ?? "" });
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 1);
  } catch {
    return text; // cut off
  }
}
