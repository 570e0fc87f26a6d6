// A server's own source: its results as server-sent events and its annotated preview as MJPEG. Both are read with fetch,
// because EventSource and <img> can't send the token.

import { request } from "./server.js";

/**
 * Follow a source until it ends; a signal that aborts is an error.
 * @param {string} id
 * @param {{onEvent: (event: object) => void, onPicture: (picture: ImageBitmap) => void, signal: AbortSignal}} options
 */
export async function followSource(id, { onEvent, onPicture, signal }) {
  const base = `v1/sources/${encodeURIComponent(id)}`;
  await Promise.all([
    request(`${base}/events`, { signal, headers: { Accept: "text/event-stream" } }).then((response) => readEvents(response, onEvent)),
    request(`${base}/preview.mjpeg`, { signal }).then((response) => readPictures(response, onPicture)),
  ]);
}

export async function readEvents(response, onEvent) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    const events = (text + piece.value).replaceAll("\r\n", "\n").split("\n\n");
    text = events.pop();
    for (const event of events) {
      const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart());
      if (data.length) onEvent(JSON.parse(data.join("\n")));
    }
  }
}

/** Read the JPEGs of a multipart answer by their markers; while one is decoded, others are left out. */
export async function readPictures(response, onPicture) {
  const reader = response.body.getReader();
  let bytes = new Uint8Array(0), isDecoding = false;
  for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
    bytes = joined(bytes, piece.value);
    for (let part = takePart(bytes); part; part = takePart(bytes)) {
      bytes = part.rest;
      if (isDecoding || !part.body.length) continue;
      isDecoding = true;
      createImageBitmap(new Blob([part.body], { type: "image/jpeg" })).then(onPicture).catch(() => {}).finally(() => { isDecoding = false; });
    }
  }
}

function joined(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}

/** The first whole part of a multipart body, or null; it ends after Content-Length bytes, or else at JPEG's end marker. */
function takePart(bytes) {
  const head = indexOf(bytes, [13, 10, 13, 10], 0);
  if (head < 0) return null;
  const start = head + 4;
  const length = /content-length:\s*(\d+)/i.exec(new TextDecoder().decode(bytes.subarray(0, head)))?.[1];
  const end = length !== undefined ? start + Number(length) : indexOf(bytes, [0xff, 0xd9, 13, 10], start) + 2;
  if (end < start || end > bytes.length) return null;
  return { body: bytes.slice(start, end), rest: bytes.subarray(end) };
}

function indexOf(bytes, wanted, from) {
  for (let at = bytes.indexOf(wanted[0], from); at >= 0; at = bytes.indexOf(wanted[0], at + 1)) {
    if (wanted.every((value, i) => bytes[at + i] === value)) return at;
  }
  return -1;
}
